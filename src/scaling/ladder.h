// Small runs that identify a law of loss best for a compute budget.
//
// A ladder has budgets (levels) of FLOPs, each `ratio` times the one below. Its sizes lie around Chinchilla's
// best. All runs of a level have equal FLOPs, so that the levels are IsoFLOP curves too.
//
// Each size is one stable run at constant learning rate. At the tokens of each level a branch lowers the rate
// over its last tenth. So a further number of tokens costs a tenth of itself (Hu et al. 2024, arXiv
// 2404.06395; Haegele et al. 2024, arXiv 2405.18392).
//
// Ladders of equal cost are compared by the determinant of the information matrix. The largest one is taken
// (D-optimal): the confidence ellipsoid of log E, log A, log B, alpha and beta is the smallest. Each level
// must have sizes on both sides of its best one. Runs with other learning rates and batches are paid from the
// same budget, and do not count there.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scaling/law.h"
#include "spec/run_spec.h"

namespace trireme {

struct LadderSize {
  ModelSpec model;
  double parameters = 0;
  double token_cost = 0;  // FLOPs, or seconds, of training on a token
};

// The base model with 1 to most_layers layers and width in proportion, and half as many layers again at each
// width; ascending, each at least 1.2 times the previous one. Costs are FLOPs.
std::vector<LadderSize> ladder_family(const ModelSpec& base, int64_t seq, int64_t most_layers);

struct LadderRun {
  size_t size = 0;       // index into the sizes
  double flops = 0;      // its level
  double tokens = 0;     // in whole steps
  int64_t steps = 0;     // until the end
  int64_t branches = 0;  // step of the stable run that it starts from; variants: 0
  double rate = 1;       // learning rate over the rule's or the run file's
  int64_t batch = 0;     // sequences per step
  // Trained from the start with another rate or batch, for the laws of the best rate and of the critical
  // batch.
  bool variant = false;
};

struct LadderDesign {
  std::vector<LadderSize> sizes;  // used sizes, ascending
  std::vector<int64_t> batch;     // sequences per step of each
  std::vector<double> levels;     // FLOPs, ascending
  std::vector<LadderRun> runs;    // by size, then steps
  double cost = 0;
  double flops = 0;
  double log_det = 0;   // information matrix
  int64_t designs = 0;  // that were compared
};

struct LadderRequest {
  std::vector<LadderSize> sizes;  // candidates, ascending
  double budget = 0;              // in the unit of token_cost
  bool in_seconds = false;        // that unit, for messages
  int64_t seq = 0;
  int64_t batch = 0;                   // sequences per step; 0 = by the rule of run files
  std::vector<double> rates, batches;  // factors, other than 1: variants of each size's two shortest runs
  int64_t least_runs = 6;              // variants not counted
  int64_t least_steps = 60;
  // Tokens per parameter of a run, over those of the prior's best run with the same FLOPs.
  double least_ratio = 0.1;
  double most_ratio = 10;
  ChinchillaLaw prior;
};

// Throws Error (request) if no ladder of at least least_runs runs fits into the budget.
LadderDesign design_ladder(const LadderRequest&);

// log det of the information matrix of runs at these (N, D), each with the same error of log loss.
double log_determinant(const ChinchillaLaw&, const std::vector<Allocation>& runs);

// Run files of a ladder, in the order in which they can run.
struct LadderItem {
  std::string name;   // "s2-run-3": size 2, level 3; "s2-stable-3": its stable part; "s2-run-3-lr0.5"
  std::string after;  // name of the item that it branches from; empty = none
  size_t size = 0;
  bool point = false;  // a run of the law; false: a stable part
  RunSpec run;
  double parameters = 0, tokens = 0, flops = 0;
};
// `base` gives all but sizes, batch, steps, schedule and places. Run folders are in `folder`, the ladder's.
std::vector<LadderItem> ladder_items(const LadderDesign&, const RunSpec& base, const std::string& folder);

}  // namespace trireme
