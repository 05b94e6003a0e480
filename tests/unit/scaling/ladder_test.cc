#include "scaling/ladder.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "planted.h"

namespace trireme::test {
namespace {

LadderRequest request(double budget) {
  ModelSpec base;
  base.vocab = 512;
  base.finish(128);
  return {.sizes = ladder_family(base, 128, 10), .budget = budget, .seq = 128};
}

const LadderDesign& design() {
  static const LadderDesign d = design_ladder(request(1e16));
  return d;
}

TEST(Ladder, SpendsTheBudgetOnBudgetsOfEqualFlops) {
  for (const double budget : {1e16, 1e17}) {
    const LadderDesign& d = budget == 1e16 ? design() : design_ladder(request(budget));
    EXPECT_LE(d.cost, budget);
    EXPECT_GT(d.cost, 0.5 * budget);
    EXPECT_GE(d.runs.size(), 9u);
    std::map<double, std::set<double>> of_level;
    for (const LadderRun& r : d.runs) {
      const double n = d.sizes[r.size].parameters;
      EXPECT_NEAR(6 * n * r.tokens / r.flops, 1, 0.02);
      EXPECT_GE(r.steps, 60);
      EXPECT_EQ(r.steps - r.branches, r.steps / 10);
      of_level[r.flops].insert(n);
    }
    for (const auto& [flops, sizes] : of_level) {
      EXPECT_GE(sizes.size(), 3u);
      const double best = chinchilla_optimum({}, flops).parameters;
      EXPECT_LT(*sizes.begin(), best);
      EXPECT_GT(*sizes.rbegin(), best);
    }
  }
  EXPECT_THROW(design_ladder(request(1e8)), Error);
}

// Sizes lie around the best ones of the law that is assumed, however many tokens per parameter those have.
TEST(Ladder, FollowsTheAssumedLaw) {
  LadderRequest q = request(1e16);
  q.prior = {.E = 0.5, .A = 30, .B = 50, .alpha = 0.35, .beta = 0.35};  // 4.3 tokens per parameter
  q.least_runs = 12;
  const LadderDesign d = design_ladder(q);
  EXPECT_GE(d.runs.size(), 12u);
  int below = 0;
  for (const LadderRun& r : d.runs) {
    const Allocation best = chinchilla_optimum(q.prior, r.flops);
    const double own = r.tokens / d.sizes[r.size].parameters, ratio = own / (best.tokens / best.parameters);
    EXPECT_GT(ratio, 0.09);
    EXPECT_LT(ratio, 10.5);
    below += own < 2;
  }
  EXPECT_GT(below, 0);
  q.least_runs = 1000;
  EXPECT_THROW(design_ladder(q), Error);
}

// The ladder that is chosen forecasts better than one of sizes trained on 20 tokens per parameter.
TEST(Ladder, IdentifiesBetterThanOneRatio) {
  const LadderDesign& d = design();
  std::vector<Allocation> ladder;
  std::vector<Allocation> line;
  for (const LadderRun& r : d.runs) {
    ladder.push_back({d.sizes[r.size].parameters, r.tokens});
    line.push_back({d.sizes[r.size].parameters, 20 * d.sizes[r.size].parameters});
  }
  EXPECT_GT(log_determinant({}, ladder), log_determinant({}, line) + 2);
}

TEST(Ladder, ItemsBranchFromStableRuns) {
  const LadderDesign& d = design();
  RunSpec base;
  base.data.seq_len = 128;
  const std::vector<LadderItem> items = ladder_items(d, base, "L");
  EXPECT_EQ(items.size(), 2 * d.runs.size());
  std::map<std::string, const LadderItem*> known;
  double flops = 0;
  for (const LadderItem& i : items) {
    int64_t begin = 0;
    if (!i.after.empty()) {
      ASSERT_TRUE(known.count(i.after)) << i.name;  // it comes before
      const LadderItem& parent = *known[i.after];
      EXPECT_FALSE(parent.point);
      EXPECT_EQ(i.run.train.branch, fmt::format("L/runs/{}@{}", parent.name, parent.run.train.steps));
      EXPECT_EQ(i.run.batch.global, parent.run.batch.global);
      EXPECT_EQ(i.run.optimizer.warmup, parent.run.optimizer.warmup);
      begin = parent.run.train.steps;
    }
    EXPECT_GT(i.run.train.steps, begin);
    EXPECT_LT(i.run.optimizer.warmup, i.run.train.steps);
    EXPECT_EQ(i.run.optimizer.schedule, i.point ? "wsd" : "constant");
    flops += 6 * i.parameters * double((i.run.train.steps - begin) * i.run.batch.global * 128);
    known[i.name] = &i;
  }
  EXPECT_NEAR(flops / d.flops, 1, 1e-9);
}

TEST(Ladder, VariantsArePaidFromTheBudget) {
  LadderRequest q = request(1e16);
  q.rates = {0.5, 2};
  q.batches = {2};
  const LadderDesign d = design_ladder(q);
  EXPECT_LE(d.cost, 1e16);
  EXPECT_LT(d.levels.back(), design().levels.back());
  RunSpec base;
  base.data.seq_len = 128;
  base.optimizer.lr = 1e-3;
  const std::vector<LadderItem> items = ladder_items(d, base, "L");
  std::map<std::string, const LadderItem*> known;
  for (const LadderItem& i : items) EXPECT_TRUE(known.emplace(i.name, &i).second) << i.name;
  double flops = 0;
  int rates = 0, batches = 0;
  for (const LadderItem& i : items) {
    int64_t begin = 0;
    if (!i.after.empty()) begin = known.at(i.after)->run.train.steps;
    flops += 6 * i.parameters * double((i.run.train.steps - begin) * i.run.batch.global * 128);
    const size_t end = i.name.find_last_of('-');
    const auto own = known.find(i.name.substr(0, end));
    if (own == known.end()) continue;
    EXPECT_TRUE(i.point && i.after.empty() && i.run.train.branch.empty()) << i.name;
    const RunSpec& like = own->second->run;
    const bool rate = i.name.find("-lr") != std::string::npos;
    (rate ? rates : batches)++;
    EXPECT_EQ(i.run.batch.global, rate ? like.batch.global : 2 * like.batch.global);
    EXPECT_EQ(i.tokens, own->second->tokens);  // the fits compare such runs
    if (rate) EXPECT_EQ(i.run.optimizer.lr, 1e-3 * (i.name.ends_with("-lr2") ? 2 : 0.5));
  }
  EXPECT_NEAR(flops / d.flops, 1, 1e-9);
  EXPECT_GE(rates, int(2 * d.sizes.size()));
  EXPECT_GE(batches, int(d.sizes.size()) - 1);
}

}  // namespace
}  // namespace trireme::test
