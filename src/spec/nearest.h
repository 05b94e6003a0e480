// From a layout that is refused to the nearest one that is not.
#pragma once
#include <optional>
#include <string>

#include "spec/run_spec.h"

namespace trireme {

// The same model, global batch and number of ranks, with as few keys changed as possible: sizes of axes
// (their product stays; nearer sizes before others), ep, other keys of [layout] put back to their defaults
// (the fewest of two; where more are in the way, those that are complained about), and batch.micro. What is
// found passes every check of a run file, and its schedule is valid. Nothing: none was found, or something
// else than the layout is wrong. The model is finished, values are in their ranges.
std::optional<RunSpec> nearest_layout(const RunSpec&);

// "; the nearest layout of 4 ranks that works: layout.dp = 4, layout.tp = 1" (of what changes), or "".
std::string nearest_layout_text(const RunSpec&);

}  // namespace trireme
