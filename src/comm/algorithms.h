// The fast orders of reductions, over nothing but messages between two ranks: written once for all backends.
//
// A buffer of n elements is cut into one block a rank. reduce_scatter leaves in block r of rank r the sum of
// all ranks' blocks r (the other blocks hold partial sums then); all_gather copies block r of rank r to all.
//   ring          size - 1 rounds of one block to the next neighbour (Patarasuk and Yuan 2009)
//   halving       ceil(log2 size) rounds for any size: in each, rank r sends the further half of the blocks
//                 that it still gathers, r + d to r + s - 1, to rank r + d, where s is what is left and
//                 d = ceil(s / 2); all_gather runs the rounds backwards (Traeff 2024, arXiv 2410.14234).
//                 For powers of two these are the rounds of recursive halving and doubling.
//   hierarchical  halving inside each node, then among those with the same place in every node; back for
//                 all_gather
// All move each block of others exactly once out of (reduce_scatter) or into (all_gather) a rank: (size - 1)
// / size of the buffer. Partial sums are rounded to the buffer's type after each addition, and the order of
// the additions depends on algorithm, size and block: these are the "fast" modes of DESIGN.md section 4.
#pragma once
#include <span>
#include <vector>

#include "comm/options.h"

namespace trireme {

struct Segment {
  std::byte* data = nullptr;
  int64_t numel = 0;
};

// A backend's way to send and receive, blocking, on the calling thread.
class PeerLink {
 public:
  virtual ~PeerLink() = default;
  // Sends the elements of `out` to rank `to` of the group while those of `in` come from rank `from`: into
  // their place, or, with fold, added to what is there. The peer's `in` has the same sizes as `out` here.
  virtual void exchange(int to, std::span<const Segment> out, int from, std::span<const Segment> in,
                        bool fold) = 0;
};

struct BlockBuffer {
  std::byte* data = nullptr;
  int64_t numel = 0;  // of all blocks; pieces as piece_of() cuts them
  DType dtype = DType::f32;
  Segment block(int r, int size) const {
    const Range p = piece_of(numel, size, r);
    return {data + p.begin * size_of(dtype), p.size()};
  }
};

// Lists of segments that calls use again.
struct AlgorithmScratch {
  std::vector<Segment> out, in;
};

// Neither is for Algorithm::ordered. rank: in the group.
void reduce_scatter_blocks(Algorithm, const GroupShape&, int rank, const BlockBuffer&, PeerLink&,
                           AlgorithmScratch&);
void all_gather_blocks(Algorithm, const GroupShape&, int rank, const BlockBuffer&, PeerLink&,
                       AlgorithmScratch&);

// Messages one after another that an all_reduce, all_gather, ... of this algorithm takes: the alphas.
int rounds_of(Collective, std::string_view algorithm, const GroupShape&);

// Seconds of a call over links of one kind: alpha a round, and beta for each byte that the rank's link
// carries: its wire bytes, or, where only one side sends, what comes in.
double link_seconds(const CommCall&, const GroupShape&, const LinkCost&);

// Seconds of a call between machines as these options know them (half_seconds for reductions and gathers). Of
// p2p, on the slower link. 0 where no link is known.
double call_seconds(const CommCall&, const GroupShape&, const CommOptions&);

}  // namespace trireme
