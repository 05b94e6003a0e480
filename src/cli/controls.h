// Models that need no training, which a trained model is compared with over the same held-out tokens.
#pragma once
#include <cstdint>

#include "spec/run_spec.h"

namespace trireme::cli {

struct Controls {
  double uniform = 0;  // nats per token: every token equally likely
  double unigram = 0;  // each token as frequent as in the training text
  double bigram = 0;   // interpolated Kneser-Ney (text/bigram.h)
  int64_t tokens = 0;  // predicted tokens of the held-out shard
};
// Counts the first training shard and scores the windows that the evaluation uses.
Controls controls_of(const RunSpec&);

}  // namespace trireme::cli
