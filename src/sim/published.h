// What papers say of a schedule: its bubble and the activations it holds, as formulas and as numbers.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/pipeline.h"

namespace trireme {

// Times of a rank's whole share of one microbatch, in any unit that chunks divide.
struct Published {
  std::string idle_formula, held_formula;
  std::optional<int64_t> idle;   // where the formula holds exactly: of these times, without links
  std::vector<int> held;         // by rank, in chunks; none where papers give no exact number
  std::optional<int> most_held;  // of any rank, in chunks, where papers say no more
};
// Nothing for a name that no paper has. Needs as many microbatches as the sequence is written for, else no
// numbers.
std::optional<Published> published_of(std::string_view schedule, int pp, int chunks, int microbatches,
                                      const StageTimes& whole);

}  // namespace trireme
