// How full the fullest rank of experts is in a run's first steps. A router that has not been trained is not
// balanced: what it compares with its experts' directions has a part in common for many tokens, because
// causal attention hands each token the mean of those before it, and whatever the experts' directions happen
// to say of that part they say of all of these tokens at once.
//
// Two steps, both of a model at initialisation (docs/moe.md, "Untrained routers"). First how alike the
// router's inputs are, block by block: covariances of tokens by their positions in a sequence, carried
// through the blocks as random matrices carry them (mean field: Poole et al. 2016, 1606.05340). Then what k
// choices of experts make of logits that are so alike: experts' logits are drawn with these covariances,
// tokens choose, and rows for the fullest rank are counted, some hundred times, always with the same numbers.
#pragma once
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// Rows for the fullest rank's experts over the mean, in one exchange, the mean over blocks.
struct UntrainedLoad {
  double mean = 1, low = 1, high = 1;  // low, high: four of five runs are between them
};
// repeat: the chance that two tokens of the data are the same (token_repeat). 1 where no rank divides
// experts.
UntrainedLoad untrained_load(const RunSpec&, double repeat);

// Of the run's training data as far as a look at its first shard says, else of words by Zipf's law, p ~ 1 /
// rank.
double token_repeat(const RunSpec&);

// The run with numbers in the place of ep_load = "untrained".
RunSpec with_expected_load(const RunSpec&);

// How alike the inputs of routers are, by block with experts: the mean correlation of two tokens of a
// sequence, and of two sequences.
struct RouterLikeness {
  double within = 0, between = 0;
};
std::vector<RouterLikeness> router_likeness(const RunSpec&, double repeat);

}  // namespace trireme
