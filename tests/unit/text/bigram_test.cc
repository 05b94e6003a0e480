#include "text/bigram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace trireme {
namespace {

// Counted by hand: V = 4, text 0 1 0 2 0 1. Pairs: 01 twice, 10, 02 and 20 once, so n1 = 3, n2 = 1 and D =
// 3/5. Each of 0, 1, 2 has P: 2 (after 1 and 2), 1, 1; 3 has 0. So q = 3/8, 2/8, 2/8, 1/8 (4 pairs, V = 4).
TEST(Bigram, EqualsTheHandComputedExample) {
  BigramModel m(4);
  m.add(std::vector<int32_t>{0, 1, 0});
  m.add(std::vector<int32_t>{2, 0, 1});  // continues where the first stretch ended
  EXPECT_DOUBLE_EQ(m.probability(0, 1), (2 - 0.6 + 0.6 * 2 * 0.25) / 3);
  EXPECT_DOUBLE_EQ(m.probability(0, 2), (1 - 0.6 + 0.6 * 2 * 0.25) / 3);
  EXPECT_DOUBLE_EQ(m.probability(0, 0), (0 + 0.6 * 2 * 0.375) / 3);
  EXPECT_DOUBLE_EQ(m.probability(0, 3), (0 + 0.6 * 2 * 0.125) / 3);
  EXPECT_DOUBLE_EQ(m.probability(1, 0), 1 - 0.6 + 0.6 * 0.375);
  EXPECT_DOUBLE_EQ(m.probability(2, 3), 0.6 * 0.125);
  EXPECT_DOUBLE_EQ(m.probability(3, 2), 0.25);  // no context: q

  // 0, 1, 0, 2, 0 precede another token: 5 counted.
  EXPECT_DOUBLE_EQ(m.unigram_probability(0), 4.0 / 9);
  EXPECT_DOUBLE_EQ(m.unigram_probability(3), 1.0 / 9);
  BigramScore unigram;
  m.score_unigram(std::vector<int32_t>{0, -1, 3}, unigram);
  EXPECT_EQ(unigram.tokens, 2);
  EXPECT_NEAR(unigram.nll, -std::log(4.0 / 9) - std::log(1.0 / 9), 1e-12);

  BigramScore score;
  std::vector<int32_t> tokens = {0, 1, 2, 3}, targets = {1, 0, -1, 2};
  m.score(tokens, targets, score);
  EXPECT_EQ(score.tokens, 3);
  EXPECT_NEAR(score.nll, -std::log(1.7 / 3) - std::log(0.625) - std::log(0.25), 1e-12);
  EXPECT_NEAR(score.mean(), score.nll / 3, 1e-15);
  m.score(tokens, targets, score);  // scores add up
  EXPECT_EQ(score.tokens, 6);
  EXPECT_EQ(BigramScore{}.mean(), 0);
}

TEST(Bigram, ProbabilitiesSumToOne) {
  for (int32_t vocab : {1, 2, 37}) {
    BigramModel m(vocab);
    std::vector<int32_t> text;
    for (uint64_t i = 0; i < 500; i++) text.push_back(int32_t(below(9, i, uint64_t(vocab))) * (i % 3 != 0));
    m.add(text);
    for (int32_t u = 0; u < vocab; u++) {
      double sum = 0;
      for (int32_t w = 0; w < vocab; w++) sum += m.probability(u, w);
      EXPECT_NEAR(sum, 1, 1e-12) << vocab << " " << u;
    }
  }
}

TEST(Bigram, LearnsWhatFollows) {
  BigramModel m(64);
  std::vector<int32_t> cycle;
  for (int32_t i = 0; i < 6400; i++) cycle.push_back(i * 7 % 64);
  m.add(cycle);
  BigramScore score;
  m.score(std::span(cycle).first(6399), std::span(cycle).subspan(1), score);
  EXPECT_LT(score.mean(), 0.02);  // ln 64 = 4.16 without context
}

}  // namespace
}  // namespace trireme
