// Routers while they train: losses beside the cross-entropy and their gradients, capacity, counters, and
// choices that are recorded and replayed.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tiny.h"

namespace trireme::test {
namespace {

RunSpec balanced_run(const MoeSpec& moe, int64_t microbatches = 2) {
  RunSpec r = tiny_run("llama", "f32", microbatches);
  r.model.arch = "mixtral", r.model.experts = 5, r.model.experts_per_token = 2, r.model.moe_ffn = 20;
  r.model.init_std = 0.2;  // routers that choose, not toss
  r.moe = moe;
  r.model.finish(r.data.seq_len);
  return r;
}

std::vector<float> gradients(const Rig& rig) {
  std::vector<float> out;
  for (const Param& p : rig.runner->params().params)
    out.insert(out.end(), p.grad.as<float>(), p.grad.as<float>() + p.numel());
  return out;
}

void move(Rig& rig, const std::vector<float>& from, const std::vector<double>& by, double step) {
  size_t at = 0;
  for (const Param& p : rig.runner->params().params) {
    std::vector<float> host;
    for (int64_t i = 0; i < p.numel(); i++, at++) host.push_back(float(double(from[at]) + step * by[at]));
    rig.runner->memory().write_param(p, "", host);
  }
  rig.runner->weights_from_master();
}

class BalanceUnits : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, BalanceUnits, ::testing::Values("sequence", "microbatch", "global"));

// The slope of loss + balancing losses along the gradient, at choices that stay as they are: the shares of
// choices are no function of the weights then, as the derivation has it.
TEST_P(BalanceUnits, SlopeIsThatOfFiniteDifferences) {
  RunSpec run = balanced_run({.aux_loss = 2, .z_loss = 0.3, .unit = GetParam()});
  run.optimizer.lr = run.optimizer.min_lr = 0;
  Rig rig(run);
  RecordedRouting choices;
  rig.runner->passes().routing().use(Routing::Choices::recorded, &choices);
  rig.step(1);
  rig.runner->passes().routing().use(Routing::Choices::replayed, &choices);
  const std::vector<float> g = gradients(rig), w = rig.all("");
  double norm = 0;
  for (float x : g) norm += double(x) * x;
  norm = std::sqrt(norm);
  std::vector<double> along(g.size());
  for (size_t i = 0; i < g.size(); i++) along[i] = g[i] / norm;
  auto loss_at = [&](double step) {
    move(rig, w, along, step);
    const StepResult r = rig.step(1);
    return r.loss + r.aux_loss + r.z_loss;
  };
  const double h = 2e-3;
  EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h), norm, 2e-3 * norm);
}

// By hand: 1, 2, 3 and 6 choices of four experts.
TEST(Balance, LoadsOfExpertsAndOfRanks) {
  LayerRouting r;
  r.load = {1, 2, 3, 6};
  EXPECT_EQ(r.max_load(), 2);
  EXPECT_EQ(r.max_load(4), 2);
  EXPECT_EQ(r.max_load(2), 1.5);
  EXPECT_EQ(r.max_load(1), 1);
  r.load = {0, 0};
  EXPECT_EQ(r.max_load(2), 0) << "a dense block";
}

// By default what a sequence says does not depend on how sequences are gathered in microbatches.
TEST(Balance, SequencesAreTheSameUnitsInEveryMicrobatch) {
  RunSpec two = balanced_run({.aux_loss = 2, .z_loss = 0.3}), one = two;
  one.batch.micro = 4;
  Rig a(two), b(one);
  const StepResult ra = a.step(1);
  // The same tokens: microbatches of a are halves of b's.
  const StepResult rb = b.runner->step(
      b.schedule.ranks[0], 1, b.run.tokens_per_step(), [&](int64_t step, int64_t, const HostBatch& whole) {
        const size_t half = whole.tokens.size() / 2;
        for (size_t m : {0, 1})
          random_batch(two, step, int64_t(m),
                       {whole.tokens.subspan(m * half, half), whole.targets.subspan(m * half, half),
                        whole.positions.subspan(m * half, half)});
      });
  EXPECT_NEAR(ra.aux_loss, rb.aux_loss, 1e-6 * ra.aux_loss);
  EXPECT_NEAR(ra.z_loss, rb.z_loss, 1e-6 * ra.z_loss);
  EXPECT_NEAR(ra.grad_norm, rb.grad_norm, 1e-4 * ra.grad_norm);
  EXPECT_GT(ra.aux_loss, 2 * 2 * 2 * 0.99);  // 2 layers, factor 2, k = 2: balanced is the least
}

TEST(Balance, LossIsTheCrossEntropyAlone) {
  Rig plain(balanced_run({})), balanced(balanced_run({.aux_loss = 2, .z_loss = 0.3}));
  const StepResult a = plain.step(1), b = balanced.step(1);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.aux_loss, 0);
  EXPECT_NE(a.grad_norm, b.grad_norm);
}

TEST(Balance, EvensOutTheLoad) {
  RunSpec with = balanced_run({.aux_loss = 1}), without = balanced_run({});
  with.train.steps = without.train.steps = 60;
  Rig a(with), b(without);
  double even = 0, uneven = 0;
  for (int64_t s = 1; s <= 60; s++) a.step(s), b.step(s);
  for (const LayerRouting& l : a.runner->step_end().routing()) even = std::max(even, l.max_load());
  for (const LayerRouting& l : b.runner->step_end().routing()) uneven = std::max(uneven, l.max_load());
  EXPECT_LT(even, 1.3);
  EXPECT_LT(even, uneven);
}

TEST(Balance, MetaBooksWhatLossesAndCapacityTake) {
  for (const char* unit : {"sequence", "microbatch"}) {
    Rig rig(balanced_run({.aux_loss = 0.1, .z_loss = 0.01, .capacity = 1.0, .unit = unit}));
    rig.device->kernels().restart_counts();
    rig.runner->arena().ledger().restart_peaks();
    rig.step(1);
    EXPECT_EQ(rig.booking.peak, rig.runner->arena().ledger().peaks());
    EXPECT_EQ(rig.booking.total, rig.device->kernels().total());
    EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
  }
}

// Drops counted by hand from the recorded choices: of each unit's tokens in order, an expert takes the first.
TEST(Capacity, DropsWhatComesLastInItsUnit) {
  for (const char* unit : {"sequence", "microbatch"}) {
    Rig rig(balanced_run({.capacity = 1.0, .unit = unit}, 1));
    RecordedRouting record;
    rig.runner->passes().routing().use(Routing::Choices::recorded, &record);
    rig.step(1);
    const int64_t seq = rig.run.data.seq_len, tokens = 2 * seq, k = 2, experts = 5;
    const int64_t per_unit = std::string(unit) == "sequence" ? seq : tokens;
    const int64_t capacity = (per_unit * k + experts - 1) / experts;
    for (int64_t block = 0; block < 2; block++) {
      std::vector<int32_t> ids(size_t(tokens * k));
      record.replay("blocks." + std::to_string(block) + ".moe", {1, 0, k}, ids);
      std::vector<int64_t> load(size_t(experts), 0), taken;
      int64_t dropped = 0;
      for (int64_t i = 0; i < tokens * k; i++) {
        if (i % (per_unit * k) == 0) taken.assign(size_t(experts), 0);
        const auto e = size_t(ids[size_t(i)]);
        load[e]++;
        dropped += ++taken[e] > capacity;
      }
      const LayerRouting& l = rig.runner->step_end().routing()[size_t(block)];
      EXPECT_EQ(l.load, load);
      EXPECT_EQ(l.dropped, dropped);
      EXPECT_GT(dropped, 0);
    }
  }
}

// By hand from the loads of each step; the balance of a model trained so, beside one that is not.
TEST(BalanceByBias, MovesAgainstTheLoad) {
  RunSpec run = balanced_run({.bias_rate = 0.01});
  run.model.router_bias = true;
  run.train.steps = 80;
  RunSpec still = run;
  still.moe.bias_rate = 0;
  Rig rig(run), other(still);
  std::vector<std::vector<float>> want(2, std::vector<float>(5, 0.0f));
  double even = 0, uneven = 0;
  for (int64_t s = 1; s <= 80; s++) {
    rig.step(s), other.step(s);
    for (size_t l = 0; l < 2; l++) {
      const LayerRouting& r = rig.runner->step_end().routing()[l];
      const Param* p = rig.runner->params().find("blocks." + std::to_string(l) + ".moe.router.bias");
      ASSERT_TRUE(p);
      for (size_t e = 0; e < 5; e++) {
        const double mean = double(r.choices()) / 5, load = double(r.load[e]);
        want[l][e] += 0.01f * float((load < mean) - (load > mean));
        EXPECT_EQ(p->weight.as<float>()[e], want[l][e]) << s;
      }
      if (s > 70) even += r.max_load() / 20, uneven += other.runner->step_end().routing()[l].max_load() / 20;
    }
  }
  EXPECT_LT(even, 1.4);
  EXPECT_LT(even, uneven);
}

// A capacity of all choices drops none, and is the dropless model; a small one is another.
TEST(Capacity, OfAllChoicesIsDropless) {
  Rig dropless(balanced_run({})), all(balanced_run({.capacity = 5})), few(balanced_run({.capacity = 0.5}));
  const StepResult a = dropless.step(1), b = all.step(1), c = few.step(1);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_NE(a.loss, c.loss);
  EXPECT_GT(few.runner->step_end().routing()[0].dropped, 0);
  EXPECT_EQ(all.runner->step_end().routing()[0].dropped, 0);
}

// Evaluation drops nothing.
TEST(Capacity, IsOfTrainingAlone) {
  Rig dropless(balanced_run({})), few(balanced_run({.capacity = 0.5}));
  const int64_t seq = dropless.run.data.seq_len;
  EXPECT_EQ(dropless.runner->evaluator().evaluate(2, seq, random_batches(dropless.run)).sum,
            few.runner->evaluator().evaluate(2, seq, random_batches(few.run)).sum);
}

TEST(RecordedChoices, ReplayToTheSameBits) {
  Rig rig(balanced_run({.aux_loss = 1}));
  RecordedRouting record, again;
  rig.runner->passes().routing().use(Routing::Choices::recorded, &record);
  const StepResult a = rig.step(1);
  Rig other(balanced_run({.aux_loss = 1}));
  other.runner->passes().routing().use(Routing::Choices::replayed, &record);
  const StepResult b = other.step(1);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_THROW(other.step(2), Error);  // of which there is no recording
}

TEST(RecordedChoices, CountFlips) {
  RecordedRouting a, b;
  a.record("blocks.0.moe", {1, 7, 2}, std::vector<int32_t>{0, 1, 2, 3, 4, 0});
  b.record("blocks.0.moe", {1, 7, 2}, std::vector<int32_t>{1, 0, 2, 4, 4, 0});
  EXPECT_EQ(a.flips(b).tokens, 3);
  EXPECT_EQ(a.flips(b).flipped, 1);
  RecordedRouting more;
  more.record("blocks.0.moe", {2, 7, 2}, std::vector<int32_t>{0, 1});
  a.merge(more);
  EXPECT_EQ(a.flips(more).tokens, 1);
}

}  // namespace
}  // namespace trireme::test
