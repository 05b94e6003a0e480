// Microbatches that ranks of V schedules hold at their peak moments, counted from the schedules' own
// orders.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "cost/pipeline_held.h"

namespace trireme {

// A moment before a backward pass, an input gradient or a weight gradient; or after an input gradient, which
// counts as waiting.
struct CountedMoment {
  enum class At : uint8_t { backward, input, after_input, weight } at = At::backward;
  int chunk = 0;                 // whose pass it is: 0 on the way down, 1 on the way up
  std::array<int, 2> before{};   // microbatches of each chunk: forward done, input gradient not
  std::array<int, 2> waiting{};  // for their weight gradient
};

// By rank: its moments, none of which holds at least as much of everything as another one of its kind.
// Requires is_v(order). Remembered by thread.
const std::vector<std::vector<CountedMoment>>& counted_moments(PipelineOrder, int64_t pp,
                                                               int64_t microbatches);

}  // namespace trireme
