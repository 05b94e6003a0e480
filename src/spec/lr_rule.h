// optimizer.lr = "auto": peak learning rates by the width of the residual stream, n = model.hidden.
//
// The best rate at one width is the best at others if an update changes each layer's output alike at every
// width (Yang et al. 2022, Tensor Programs V, arXiv 2203.03466). Then the spectral norm of an update of a
// [rows, cols] matrix grows like sqrt(rows / cols) (Yang et al. 2023, arXiv 2310.17813).
//
// - AdamW moves each weight by about its rate, and updates correlate with their inputs. A sum over n inputs
//   needs a rate like 1 / n: hidden matrices and the head.
// - An embedding, a norm's gain and a bias do not sum over n: their rate is constant.
// - Muon's update has spectral norm 0.2 sqrt(max(rows, cols)) times its rate with adjust_lr =
//   "match_rms_adamw", so the rate is like 1 / sqrt(n). With "original" it is constant.
//
// AdamW's constants are from sweeps at n = 128 and 256, Muon's at n = 128 (bench/scaling_rule.py,
// docs/optim.md).
#pragma once
#include <string>

#include "spec/run_spec.h"

namespace trireme {

struct LearningRates {
  double lr = 0;        // AdamW: hidden matrices and head; Muon: hidden matrices
  double adamw_lr = 0;  // Muon: head; 0 with AdamW
  double embed_lr = 0;  // embeddings that are not tied, norms, biases
  bool operator==(const LearningRates&) const = default;
};
// Rates of the rule, to three digits. Uses optimizer.name, optimizer.adjust_lr and model.hidden.
LearningRates learning_rates_by_rule(const RunSpec&);

// Puts the rule's rates in place of optimizer.lr = "auto", and of adamw_lr and embed_lr where they are 0.
// Does nothing if lr is a number.
// Throws Error (request) if optimizer.min_lr is above the rate.
void apply_lr_rule(RunSpec&);

// Puts numbers in place of model.init_std = "auto", and of embed_std and head_std if they are 0 and
// embeddings are not tied. Each output of a fresh hidden layer has one size at every width: 1 / sqrt(n). The
// head has 1 / n (Yang et al. 2022, table 8): an update of its input correlates with its rows, and their sum
// over n would grow like sqrt(n).
void apply_init_rule(ModelSpec&);

// One line with the run's rates and whether they are the rule's; for plans. Requires: resolved.
std::string lr_text(const RunSpec&);

}  // namespace trireme
