// Where layers are cut into stages, against every possible cut.
#include "model/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "cost/flops.h"

namespace trireme {
namespace {

using Counts = std::vector<int64_t>;  // blocks of each stage

// What a stage of blocks [first, last) costs a token: by what a model costs with as many blocks and without
// them, the head on top of the last one.
double cost_of(const ModelSpec& m, int64_t seq, int64_t first, int64_t last) {
  const auto flops = [&](int64_t blocks) {
    ModelSpec part = m;
    part.layers = blocks;
    return forward_flops_per_token(part, seq);
  };
  const double head = 2.0 * double(m.vocab) * double(m.hidden);
  return flops(last) - (first > 0 ? flops(first) : head) + (last == m.layers ? head : 0);
}

void all_cuts(int64_t left, int stages, Counts& sofar, std::vector<Counts>& out) {
  if (stages == 1) {
    sofar.push_back(left), out.push_back(sofar), sofar.pop_back();
    return;
  }
  for (int64_t n = 1; n <= left - (stages - 1); n++)
    sofar.push_back(n), all_cuts(left - n, stages - 1, sofar, out), sofar.pop_back();
}
struct CutCost {
  double dearest = 0, squares = 0;
};
CutCost cost_of_cut(const ModelSpec& m, int64_t seq, const Counts& counts) {
  CutCost c;
  int64_t first = 0;
  for (int64_t n : counts) {
    const double cost = cost_of(m, seq, first, first + n);
    c.dearest = std::max(c.dearest, cost), c.squares += cost * cost;
    first += n;
  }
  return c;
}

Counts counts_of(const std::vector<StageRange>& stages) {
  Counts counts;
  for (const StageRange& s : stages) counts.push_back(s.last - s.first);
  return counts;
}

ModelSpec random_model(uint64_t seed) {
  const uint64_t key = rng_key(seed, 0, "stages");
  const auto draw = [&](uint64_t i, int64_t low, int64_t high) {
    return low + int64_t(below(key, i, uint64_t(high - low + 1)));
  };
  ModelSpec m = ModelSpec::of(seed % 3 == 2 ? "qwen2_moe" : seed % 3 == 1 ? "gpt2" : "llama");
  m.layers = draw(0, 1, 9), m.heads = 2, m.hidden = 8 * draw(1, 1, 9);
  m.vocab = draw(2, 0, 2) == 0 ? draw(3, 20, 90) : draw(3, 90, 60000);
  if (m.moe()) {
    m.experts = 4, m.experts_per_token = draw(4, 1, 3), m.moe_ffn = draw(5, 4, 99);
    m.expert_step = draw(6, 1, 2), m.dense_layers = draw(7, 0, 1);
  }
  m.finish(32);
  return m;
}

// No cut has a dearest stage that costs less; of those that cost as little, none has a smaller sum of
// squares, and of those with as small a one it is the one whose early stages have most.
TEST(Stages, TheDearestCostsAsLittleAsInAnyCut) {
  int uneven = 0;
  for (uint64_t seed = 1; seed <= 150; seed++) {
    const ModelSpec m = random_model(seed);
    const int64_t seq = 8 + int64_t(seed) * 5;
    for (int stages = 1; stages <= std::min<int64_t>(m.layers, 5); stages++) {
      std::vector<Counts> cuts;
      Counts sofar;
      all_cuts(m.layers, stages, sofar, cuts);
      double least = INFINITY, squares = INFINITY;
      for (const Counts& c : cuts) least = std::min(least, cost_of_cut(m, seq, c).dearest);
      std::erase_if(cuts,
                    [&](const Counts& c) { return cost_of_cut(m, seq, c).dearest > least * (1 + 1e-9); });
      for (const Counts& c : cuts) squares = std::min(squares, cost_of_cut(m, seq, c).squares);
      Counts want;
      for (const Counts& c : cuts)
        if (cost_of_cut(m, seq, c).squares <= squares * (1 + 1e-9)) want = std::max(want, c);
      const Counts got = counts_of(split_layers(m, seq, stages));
      EXPECT_EQ(got, want) << "seed " << seed << ", " << stages << " stages of " << m.layers;
      uneven += *std::max_element(got.begin(), got.end()) > *std::min_element(got.begin(), got.end()) + 1;
    }
  }
  EXPECT_GT(uneven, 20);  // the head weighs
}

TEST(Stages, EmbeddingFirstHeadLastAndBlocksInBetween) {
  for (uint64_t seed = 1; seed <= 30; seed++) {
    const ModelSpec m = random_model(seed);
    for (int stages = 1; stages <= m.layers; stages++) {
      const auto cut = split_layers(m, 32, stages);
      ASSERT_EQ(cut.size(), size_t(stages));
      int64_t next = 0;
      for (size_t s = 0; s < cut.size(); s++) {
        EXPECT_EQ(cut[s].first, next);
        EXPECT_GT(cut[s].last, cut[s].first);
        EXPECT_EQ(cut[s].embedding, s == 0);
        EXPECT_EQ(cut[s].head, s + 1 == cut.size());
        next = cut[s].last;
      }
      EXPECT_EQ(next, m.layers);
    }
  }
}

// A head worth three blocks: of 9 blocks on 3 stages, 4 and 4 and the last one.
TEST(Stages, AHeadOverALargeVocabularyIsWorthBlocks) {
  ModelSpec m = ModelSpec::of("llama");
  m.layers = 9, m.hidden = 64, m.heads = 2, m.vocab = 100;
  m.finish(32);
  const double block = cost_of(m, 32, 0, 1);
  m.vocab = int64_t(3 * block / (2.0 * double(m.hidden)));
  EXPECT_EQ(counts_of(split_layers(m, 32, 3)), (Counts{4, 4, 1}));
  m.vocab = 10;
  EXPECT_EQ(counts_of(split_layers(m, 32, 3)), (Counts{3, 3, 3}));
}

// Llama 3 70B: 80 blocks, and a head worth 1.2 of them. On 8 stages the dearest has 11 whatever is done: one
// such, none of three. In 40 parts it has 3: one, not all early ones.
TEST(Stages, WhatIsLeftOverIsSpread) {
  ModelSpec m = ModelSpec::of("llama");
  m.layers = 80, m.hidden = 8192, m.heads = 64, m.kv_heads = 8, m.ffn = 28672, m.vocab = 128256;
  m.finish(4096);
  EXPECT_EQ(counts_of(split_layers(m, 4096, 8)), (Counts{11, 10, 10, 10, 10, 10, 10, 9}));
  Counts forty(40, 2);
  forty.front() = 3, forty.back() = 1;
  EXPECT_EQ(counts_of(split_layers(m, 4096, 40)), forty);
}

// Llama 3 405B: a block a stage, none beside the embedding and none beside the head.
TEST(Stages, EvenlyTheEndsHaveOneLess) {
  const auto cut = [](int64_t layers, int stages) {
    ModelSpec m = ModelSpec::of("llama");
    m.layers = layers, m.hidden = 64, m.heads = 2, m.vocab = 60000;
    m.finish(32);
    const std::vector<StageRange> all = split_evenly(m, stages);
    int64_t next = 0;
    for (size_t s = 0; s < all.size(); s++) {
      EXPECT_EQ(all[s].first, next);
      EXPECT_EQ(all[s].embedding, s == 0);
      EXPECT_EQ(all[s].head, s + 1 == all.size());
      next = all[s].last;
    }
    EXPECT_EQ(next, layers);
    return counts_of(all);
  };
  EXPECT_EQ(cut(12, 4), (Counts{3, 3, 3, 3}));
  EXPECT_EQ(cut(11, 4), (Counts{3, 3, 3, 2}));
  EXPECT_EQ(cut(10, 4), (Counts{2, 3, 3, 2}));
  EXPECT_EQ(cut(9, 4), (Counts{2, 3, 2, 2}));
  EXPECT_EQ(cut(1, 2), (Counts{1, 0}));
  EXPECT_EQ(cut(2, 4), (Counts{0, 1, 1, 0}));
  Counts llama(128, 1);
  llama.front() = llama.back() = 0;
  EXPECT_EQ(cut(126, 128), llama);
}

// What a run file says.
TEST(Stages, TheRunSaysHow) {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = 9, run.model.hidden = 64, run.model.heads = 2, run.model.vocab = 60000;
  run.model.finish(32), run.data.seq_len = 32;
  EXPECT_EQ(counts_of(split_layers(run, 3)), counts_of(split_layers(run.model, 32, 3)));
  EXPECT_NE(counts_of(split_layers(run, 3)), (Counts{3, 3, 3}));
  run.layout.cut = "even";
  EXPECT_EQ(counts_of(split_layers(run, 3)), (Counts{3, 3, 3}));
  run.layout.stage_layers = {5, 4, 0};
  EXPECT_EQ(counts_of(split_layers(run, 3)), (Counts{5, 4, 0}));
}

// As for stages of one speed, by brute force; and with equal speeds the same cut.
TEST(Stages, TheSlowestTakesAsLittleTimeAsInAnyCut) {
  for (uint64_t seed = 1; seed <= 60; seed++) {
    const ModelSpec m = random_model(seed);
    for (int stages = 1; stages <= std::min<int64_t>(m.layers, 4); stages++) {
      EXPECT_EQ(split_by_speed(m, 64, std::vector<double>(size_t(stages), 2)),
                counts_of(split_layers(m, 64, stages)));
      std::vector<double> speeds;
      for (int s = 0; s < stages; s++)
        speeds.push_back(1 + double(below(rng_key(seed, uint64_t(s), "speeds"), 0, 4)));
      const auto slowest = [&](const Counts& c) {
        double most = 0;
        int64_t first = 0;
        for (size_t s = 0; s < c.size(); first += c[s++])
          most = std::max(most, cost_of(m, 64, first, first + c[s]) / speeds[s]);
        return most;
      };
      std::vector<Counts> cuts;
      Counts sofar;
      all_cuts(m.layers, stages, sofar, cuts);
      double least = INFINITY;
      for (const Counts& c : cuts) least = std::min(least, slowest(c));
      EXPECT_NEAR(slowest(split_by_speed(m, 64, speeds)), least, 1e-9 * least) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace trireme
