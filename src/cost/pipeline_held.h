// What ranks of a pipeline hold of microbatches at their fullest moments, in closed form (Qi et al. 2024 and
// 2024b; docs/search.md).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

// one_f_one_b: of several chunks a rank, interleaved.
enum class PipelineOrder { one_f_one_b, gpipe, zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe_v };

// Two chunks a rank, down and up again: rank 0 has the embedding and the head.
constexpr bool is_v(PipelineOrder o) {
  return o == PipelineOrder::zb_v || o == PipelineOrder::v_half || o == PipelineOrder::v_min ||
         o == PipelineOrder::dualpipe_v;
}

// A moment of a rank, in microbatches of its whole share (a chunk of two is half of one).
struct HeldMoment {
  double before = 0;   // forward done, input gradient not
  double waiting = 0;  // for their weight gradient: they hold what it reads
  double logits = 0;   // microbatches whose logits are there; 0 on ranks without the head
};
struct HeldMoments {
  std::array<HeldMoment, 6> at;
  int count = 0;
  const HeldMoment* begin() const { return at.data(); }
  const HeldMoment* end() const { return at.data() + count; }
};

// The moments of rank `rank` of `pp` one of which is its fullest, whatever a waiting microbatch holds
// relative to one before its input gradient. `chunks`: stages of a rank. Of a V rank 0 is told from the
// others, which are as one: the fullest of them. As the generators order their actions; of V-Half and V-Min
// up to a chunk more.
HeldMoments held_moments(PipelineOrder, int64_t pp, int64_t chunks, int64_t microbatches, int64_t rank);

}  // namespace trireme
