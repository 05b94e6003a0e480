// A step of many microbatches as one of few: behind its warm-up each rank does the same over and over, for
// later microbatches. What is left out of that part leaves a valid schedule of fewer microbatches, and what
// repeats once the same state has come back need not be run to be known (runtime/short_booking.h,
// sim/steady_step.h).
#pragma once
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {

// Of a list the part [begin, end) in which what is `step` places further on is the same.
struct Repeats {
  size_t begin = 0, end = 0, step = 0;
  size_t times() const { return step > 0 ? (end - begin) / step : 0; }
};
// The longest such part of n places around [at, at + step); same(i): is place i + step as place i? Empty
// where the first `step` are not.
template <class Same>
Repeats repeats_around(size_t at, size_t step, size_t n, const Same& same) {
  Repeats r{.begin = at, .end = at, .step = step};
  while (r.end + step < n && same(r.end)) r.end++;
  if (r.end - r.begin < step) return {};
  while (r.begin > 0 && same(r.begin - 1)) r.begin--;
  r.end += step;
  return r;
}

struct SteadyPart {
  int period = 0;              // microbatches
  std::vector<Repeats> ranks;  // by rank, of its actions; a step is of one period
  // So many microbatches can go, if each rank's part is to be left with so many steps.
  int removable(size_t steps) const;
};
// None: stages have copies, or nothing repeats within twice as many microbatches as there are ranks.
std::optional<SteadyPart> steady_part(const Schedule&);
// Without so many microbatches, a multiple of the period and no more than removable(1); those behind are
// numbered on. A rank's part ends so many steps earlier.
Schedule shortened(const Schedule&, const SteadyPart&, int fewer);
// Equal but for the numbers by which actions are issued together.
bool same_actions(const Schedule&, const Schedule&);
// Of a rank's actions, from the first to the last of one microbatch: the most of those in the part.
size_t longest_life(const std::vector<Action>&, const Repeats&);

}  // namespace trireme
