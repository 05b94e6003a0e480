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

// Interpolated Kneser-Ney (Ney, Essen and Kneser 1994; Chen and Goodman 1999, section 2.7):
//   p(w|u) = max(c(u,w) - D, 0) / c(u) + D T(u) / c(u) * q(w),   q(w) = (P(w) + 1) / (pairs + V)
// T(u) is the number of different tokens seen after u, P(w) the number of different tokens seen before w,
// `pairs` the number of different pairs. D = n1 / (n1 + 2 n2), clipped to [0.1, 0.9], where n1 and n2 pairs
// were seen once and twice. The 1 in q keeps every probability above 0.
class BigramModel {
 public:
  explicit BigramModel(int32_t vocab);

  // Counts a stretch of text. The last token of one stretch is the context of the next.
  // Requires: ids in [0, vocab).
  void add(std::span<const int32_t> tokens);
  double probability(int32_t prev, int32_t next) const;
  // P(next) by its frequency alone: (c(next) + 1) / (tokens + V). The last token counted so far is left out.
  double unigram_probability(int32_t next) const;
  // Adds -ln P(targets[i]) for every target that is not -1.
  void score_unigram(std::span<const int32_t> targets, BigramScore&) const;
  // Adds -ln p(targets[i] | tokens[i]) for every target that is not -1 (no loss at this place).
  void score(std::span<const int32_t> tokens, std::span<const int32_t> targets, BigramScore&) const;

 private:
  double discount() const;

  int32_t vocab_;
  int32_t last_ = -1;
  int64_t counted_ = 0;              // sum of context_
  int64_t once_ = 0;                 // n1
  int64_t twice_ = 0;                // n2
  std::vector<int64_t> context_;     // c(u): occurrences of u as the first of a pair
  std::vector<int32_t> followers_;   // T(u)
  std::vector<int32_t> precursors_;  // P(w)
  PairMap<int64_t> pairs_;           // c(u,w)
};

}  // namespace trireme
