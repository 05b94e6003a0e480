// A bigram model: what any language model must beat, computed over the same predicted tokens.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "text/pair_map.h"

namespace trireme {

// Negative log-likelihood, in nats, of some predicted tokens.
struct BigramScore {
  double nll = 0;
  int64_t tokens = 0;
  double mean() const { return tokens ? nll / double(tokens) : 0; }
};

// p(w|u) = (c(u,w) + T(u) p(w)) / (c(u) + T(u)), the interpolation of Witten and Bell (1991): T(u) is the
// number of different tokens seen after u. p(w) = (c(w) + 1) / (N + V). It has no parameter to choose, and no
// zero.
class BigramModel {
 public:
  explicit BigramModel(int32_t vocab);

  // Counts a stretch of text. Stretches follow each other: the last token of one is the context of the next.
  void add(std::span<const int32_t> tokens);  // ids in [0, vocab)
  double probability(int32_t prev, int32_t next) const;
  // Adds -ln p(targets[i] | tokens[i]) for every target that is not -1 (no loss at this place).
  void score(std::span<const int32_t> tokens, std::span<const int32_t> targets, BigramScore&) const;

 private:
  int32_t vocab_, last_ = -1;
  int64_t total_ = 0;
  std::vector<int64_t> count_;      // c(w)
  std::vector<int64_t> context_;    // c(u) as the first of a pair
  std::vector<int32_t> followers_;  // T(u)
  PairMap<int64_t> pairs_;          // c(u,w)
};

}  // namespace trireme
