// What tests of layouts expect of a case, whatever its axes: the frames that they share.
#pragma once
#include <string_view>

#include "compare.h"
#include "layout_case.h"

namespace trireme::parity {

// A layout and the one rank that is its measure.
struct Pair {
  Ran layout, one;
};

// Over all steps: losses within 1e-5.
Pair expect_bounded_losses(const Case&);
// At equal weights: every gradient within 1e-4 of max(its norm, 1e-6 of the global one), of a sum that is 0
// in exact arithmetic of its terms (compare.h); norms within 1e-5.
Pair expect_bounded_gradients(const Case&);
// Both; the runs over all steps.
Pair expect_bounded(const Case&);
// The loss fell from the first step to the last.
void expect_learned(const Ran&);

// Low precision at equal weights: no further from f32 than one rank in that precision by half; at equal
// choices of experts.
void expect_low_bounded(const Case&);
// The same of whole runs, where errors may add up: the losses of every step and the weights at the end.
// Experts are chosen as the run in f32 chose them.
void expect_low_runs_bounded(const Case&);
// ZeRO 0 to 3 beside what else the case has: to the bit. Of one microbatch a step.
void expect_zero_stages_identical(Case);

// How often rank 0 made this call in the last step: "all_reduce 1656".
int64_t calls_of(const Ran&, std::string_view call);

}  // namespace trireme::parity
