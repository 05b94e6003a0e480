// batch.global, train.steps and optimizer.warmup = "auto", the defaults of a run file: sizes of a run by the
// size of its model.
//
// - Tokens: D = 20 per active parameter, the best use of training FLOPs (Hoffmann et al. 2022, arXiv
//   2203.15556). If train.steps is given, D follows from it.
// - Batch: 0.58 D^0.571 tokens per step (Li et al. 2025, Step Law, arXiv 2503.04715, eq. 1). The batch grows
//   like the gradient's noise scale, which grows while the loss falls (McCandlish et al. 2018, arXiv
//   1812.06162). train.noise_scale measures it.
// - Warmup: a tenth of the steps, at most 2,000.
#pragma once
#include <string>

#include "spec/run_spec.h"

namespace trireme {

// Makes every default of a run file that follows a rule "auto": these sizes, learning rates and initial
// weights.
void ask_for_rules(RunSpec&);

inline constexpr double kTokensPerParameter = 20;

// Tokens that a model is trained on by the rule, and tokens of a step in a run over that many.
double tokens_by_rule(const ModelSpec&);  // Requires: finish()ed
double batch_tokens_by_rule(double tokens);

// One line with tokens per parameter and per step, and the rule's; for plans. tokens: all tokens of the run.
// Requires: resolved.
std::string size_text(const RunSpec&, double tokens);

// The largest microbatch up to 8 that divides every batch of the run over dp, and over pp if the batch itself
// does; with train.noise_scale not the whole batch.
int64_t micro_by_rule(const RunSpec&);

// Puts numbers in place of kAutomaticCount. The batch is a power of two of sequences, the nearest to the
// rule's. It is then rounded to a multiple of dp * pp, and of batch.micro if that is given. Otherwise
// batch.micro becomes micro_by_rule().
// Requires: model finish()ed; other keys within their ranges.
void apply_size_rule(RunSpec&, bool micro_given);

}  // namespace trireme
