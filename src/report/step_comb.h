// The use of every nanosecond of one rank in one traced step.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "sim/comb.h"
#include "trace/span.h"

namespace trireme {

// Host time between two ops counts as launch overhead up to this; a longer pause without a cause is
// `unknown`.
inline constexpr int64_t kMostLaunch = 500'000;  // ns

// A pause of the compute lane and the transfer that it waits for; null: none.
struct Pause {
  int64_t begin = 0, end = 0;
  Use use = Use::unknown;
  const Span* transfer = nullptr;
  int32_t microbatch = -1;
  std::string_view action;
};

struct StepUse {
  std::vector<Stretch> stretches;  // from the step's begin to its end, ns as the spans
  std::vector<Pause> pauses;
  int64_t begin = 0, end = 0;
};

// Returns the use of a rank's step. `spans`: of that step and rank, in any order. alone: the rank has no
// others to agree with.
//
// Spans on compute's lane name their own use. A pause belongs to the transfers on other streams that end in
// it, in the order of their ends. From its begin until a transfer has met its peers the rank waits for them
// (bubble, peers), and afterwards for data in flight. Transfers that continue after the pause are concurrent
// with compute and explain nothing. The rest of a pause is the agreement on the norm if one is due, else host
// time.
StepUse use_of_step(std::span<const Span> spans, bool alone);

}  // namespace trireme
