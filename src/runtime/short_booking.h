// A step's memory without running its repetitions. Behind the warm-up the runner does the same for one
// microbatch after the other, and asks its arena for the same blocks in the same order; where they lie may
// differ every time, for best fit is chaotic. So a step of few microbatches is run, and what it asked for in
// one round is placed as often as the whole step has rounds: to the byte, holes included.
#pragma once
#include <optional>

#include "runtime/booking.h"
#include "schedule/steady.h"

namespace trireme {

struct ShortBooking {
  int64_t arena_bytes = 0;
  int microbatches = 0;  // of the step that was run: the whole one's, where nothing was found to repeat
};
// arena_of_stage(). part: of the schedule.
ShortBooking short_arena_of_stage(const RunSpec&, const Schedule&, const std::optional<SteadyPart>& part,
                                  int threads, const ClusterSpec&, int pp_rank);

}  // namespace trireme
