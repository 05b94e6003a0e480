#include "sim/steady_step.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "schedule/steady.h"
#include "sim/step_clock.h"
#include "sim/world_report.h"

namespace trireme {
namespace {

StepTotals totals_of_clock(const World& w) {
  const StepClock clock(w);
  return {clock.makespan(), clock.bubble(), clock.pieces(), w.schedule.microbatches};
}

}  // namespace

StepTotals step_totals(const World& w) {
  if (w.disturbed.any() || w.share_links) {
    const WorldReplay all = replay_world(w);
    return {all.replay.makespan, bubble_of(rows_of(w, all)), all.pieces, w.schedule.microbatches};
  }
  const std::optional<SteadyPart> part = steady_part(w.schedule);
  if (!part) return totals_of_clock(w);
  size_t life = 0;  // steps
  for (size_t r = 0; r < part->ranks.size(); r++)
    life = std::max(life, longest_life(w.schedule.ranks[r], part->ranks[r]) / part->ranks[r].step + 1);
  int round = part->period;
  for (size_t keep = 2 * life + StepClock::kAhead + 4;;) {
    const int fewer = part->removable(keep) / round * round;
    if (fewer < w.schedule.microbatches / 4) return totals_of_clock(w);
    World less{.mesh = w.mesh, .schedule = shortened(w.schedule, *part, fewer), .work = w.work};
    const StepClock clock(less);
    const std::optional<StepClock::Repeat> found = clock.repeat(*part, life);
    if (!found) {
      keep *= 2;
    } else if (fewer % found->microbatches == 0) {
      const int64_t times = fewer / found->microbatches;
      return {clock.makespan() + times * found->later, clock.bubble_with(*found, times), clock.pieces(),
              less.schedule.microbatches};
    } else {
      round = std::lcm(round, found->microbatches);
    }
  }
}

}  // namespace trireme
