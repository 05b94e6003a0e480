// Single changes of a run, each booked on meta and priced as the run was: what makes a run fit, or faster.
#pragma once
#include <string>

#include "forecast/forecast.h"

namespace trireme {

// Sets f.remedies of a run that does not fit; of one that fits nothing. Tried are recompute (selective,
// full), ZeRO's next stages, microbatches from half of it downwards, state and inputs that wait outside, and
// twice the tp or pp with half the dp, as far as the run has them: of each the first that fits, in the order
// of what they cost as a rule. asked: precision as the request has it, for what is "auto" there follows the
// microbatches. The run is resolved. Of a run of more pieces (of all stages) than `replayed` a change's bytes
// are those of the ranks that stand for all, and its time is estimated: minutes would else be seconds each.
inline constexpr int64_t kMostReplayedPieces = 100'000;
void find_remedies(Forecast& f, const RunSpec&, const PrecisionSpec& asked, const ClusterSpec&, int threads,
                   int64_t replayed = kMostReplayedPieces);

// "layout.zero = 2 saves 1.20 GB a rank and costs 0.4 % of the step's time"
std::string to_text(const Remedy&);

// Sets f.alternatives: the two single changes with the shortest steps that fit, relative to a run that fits.
// Each is forecast as find_remedies() forecasts a change. Leaves it empty if the step is the search's closed
// form (find_alternatives() has those) or not known.
void find_replayed_alternatives(Forecast& f, const RunSpec&, const PrecisionSpec& asked, const ClusterSpec&,
                                int threads, int64_t replayed = kMostReplayedPieces);

}  // namespace trireme
