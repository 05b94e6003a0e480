#include "cost/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/flops.h"
#include "cost/step_memory.h"

namespace trireme {
namespace {

DeviceFigures device() {
  return {.bf16 = 300e12,
          .fp8 = 600e12,
          .memory = 80e9,
          .bandwidth = 2e12,
          .bus = 200e9,
          .nic = 25e9,
          .attention = 190e12};
}

FitValues values() {
  FitValues v{};
  v.fill(1);
  v[size_t(Fit::host)] = v[size_t(Fit::host_moe)] = 1e-9;
  v[size_t(Fit::jitter)] = v[size_t(Fit::step)] = v[size_t(Fit::ring)] = 1e-12;
  return v;
}

StepCase one() {
  StepCase c;
  c.model = ModelSpec::of("llama");
  c.model.layers = 24, c.model.hidden = 3072, c.model.heads = 24, c.model.vocab = 51200;
  c.seq = 2048;
  c.model.finish(c.seq);
  return c;
}

TEST(StepTime, PartsAddUp) {
  for (uint64_t i = 0; i < 200; ++i) {
    StepCase c = one();
    const auto draw = [i](uint64_t what, int n) { return int64_t(uniform(5, i * 16 + what) * n); };
    c.tp = int64_t{1} << draw(0, 4), c.pp = 1 + draw(1, 6), c.dp = 1 + draw(2, 5), c.cp = 1 + draw(3, 3);
    c.micro = 1 + draw(4, 4), c.microbatches = 1 + draw(5, 30), c.zero = int(draw(6, 4));
    c.recompute = double(draw(7, 2));
    FitValues v = values();
    for (size_t f = 0; f < kFits; ++f) v[f] *= 0.5 + uniform(6, i * 32 + f);
    const StepSeconds t = step_time(c, device(), v);
    const double parts = t.products + t.attention + t.elementwise + t.host + t.tp + t.cp + t.ep + t.head +
                         t.bubble + t.messages + t.gradients + t.optimizer + t.offload + t.jitter;
    EXPECT_NEAR(parts / t.total, 1, 1e-9);
    EXPECT_GT(t.total, 0);
    // No faster than the arithmetic allows.
    EXPECT_GE(t.total, step_flops(c, false) * 0.4 / (device().bf16 * double(c.gpus())));
  }
}

// A batch of more sequences than 64 bits count, as options allow.
TEST(StepTime, FlopsOfAnEndlessBatchAreAProportion) {
  StepCase c = one();
  const double flops = step_flops(c, false);
  c.dp = 1'000'000'007, c.micro = 999'999'937, c.microbatches = 1'000'000'000;
  const double sequences = double(c.dp) * double(c.micro) * double(c.microbatches);
  EXPECT_NEAR(step_flops(c, false) / flops / sequences, 1, 1e-12);
}

TEST(StepTime, ProductsReachThePeakWhereSidesAreLong) {
  StepCase c = one();
  c.model.hidden = 1 << 20, c.model.head_dim = 0, c.model.heads = 1 << 13, c.model.kv_heads = 0,
  c.model.ffn = 1 << 22;
  c.micro = 512, c.model.layers = 1, c.model.vocab = 1;
  c.model.finish(c.seq);
  const StepSeconds t = step_time(c, device(), values());
  const double products = 3 * 2 * double(block_parameters(c.model)) * double(c.micro * c.seq);
  EXPECT_NEAR(t.products * device().bf16 / products, 1, 0.01);
}

TEST(StepTime, BubbleOf1F1B) {
  StepCase c = one();
  c.model.vocab = 1;  // no head to speak of: equal stages
  c.pp = 4, c.microbatches = 12;
  FitValues v = values();
  v[size_t(Fit::pp)] = 1e-12;
  const StepSeconds t = step_time(c, device(), v);
  const double work = t.total - t.bubble - t.optimizer;
  EXPECT_NEAR(t.bubble / work, 3.0 / 12, 0.01);
  c.chunks = 3;
  EXPECT_NEAR(step_time(c, device(), v).bubble / t.bubble, 1.0 / 3, 1e-6);
}

TEST(StepTime, Directions) {
  const StepCase c = one();
  const double base = step_time(c, device(), values()).total;
  StepCase again = c;
  again.recompute = 1;
  EXPECT_GT(step_time(again, device(), values()).total, 1.2 * base);
  EXPECT_LT(step_time(again, device(), values()).total, 1.34 * base);
  StepCase eight = c;
  eight.numbers = NumberType::fp8;
  EXPECT_LT(step_time(eight, device(), values()).total, 0.75 * base);
  StepCase window = c;
  window.window = 128, window.window_share = 0.5;
  EXPECT_LT(step_time(window, device(), values()).attention,
            0.6 * step_time(c, device(), values()).attention);
  DeviceFigures slow = device();
  slow.nic /= 4;
  StepCase wide = c;
  wide.dp = 64;
  EXPECT_GT(step_time(wide, slow, values()).gradients, 3.9 * step_time(wide, device(), values()).gradients);
}

// Shard groups that stay in a node gather over its links; what their replicas sum once a step comes on top.
TEST(StepTime, HybridShardingGathersNearAndSumsFar) {
  StepCase c = one();
  c.dp = 64, c.microbatches = 8, c.zero = 3;
  FitValues v = values();
  const double all = step_time(c, device(), v).gradients;
  c.shards = 8;
  const double hybrid = step_time(c, device(), v).gradients;
  EXPECT_LT(hybrid, all);
  DeviceFigures slow = device();
  slow.nic /= 100;  // what is left among groups still goes over it
  EXPECT_GT(step_time(c, slow, v).gradients, 2 * hybrid);
  c.shards = 64;
  EXPECT_DOUBLE_EQ(step_time(c, device(), v).gradients, all);
}

TEST(StepTime, WhoIsNearPaysLess) {
  StepCase c = one();
  c.tp = 4, c.pp = 2, c.dp = 4, c.microbatches = 4;
  const auto of = [&](Nearest n) {
    c.nearest = n;
    return step_time(c, device(), values());
  };
  const StepSeconds tensor = of(Nearest::tensor), stages = of(Nearest::stages),
                    replicas = of(Nearest::replicas);
  EXPECT_LT(stages.messages, tensor.messages);
  EXPECT_GT(replicas.tp, 2 * tensor.tp);
  EXPECT_LT(replicas.gradients, tensor.gradients);
  EXPECT_EQ(stages.tp, tensor.tp);
  // In one node nobody is far.
  c.pp = 1, c.dp = 2;
  EXPECT_EQ(of(Nearest::replicas).gradients, of(Nearest::tensor).gradients);
}

TEST(StepTime, SelectiveAndOffloadTradeTimeForMemory) {
  StepCase c = one();
  c.micro = 4, c.dp = 2, c.zero = 1;
  FitValues v = values();
  v[size_t(Fit::kept)] = 1;
  const StepSeconds plain = step_time(c, device(), v);
  const StepMemory whole = step_memory(c, v);
  c.renorm = true;
  const StepMemory renormed = step_memory(c, v);
  // By hand: a layer keeps 4 bytes a hidden unit and 2 a feed-forward unit less.
  const double rows = 4.0 * 2048, less = 24 * rows * (4.0 * 3072 + 2.0 * double(c.model.ffn));
  EXPECT_NEAR(whole.activations - renormed.activations, less, 1e-6 * less);
  EXPECT_GT(step_time(c, device(), v).total, plain.total);
  EXPECT_EQ(step_time(c, device(), v).products, plain.products);
  c.renorm = false, c.offload = 5e9;
  const double parameters = step_memory(StepCase(c), v).states / 6;  // 2 of weights, 4 of gradients
  EXPECT_NEAR(whole.states - step_memory(c, v).states, 12 * parameters / 2, 1e-6 * whole.states);
  EXPECT_NEAR(step_time(c, device(), v).offload, 24 * parameters / 2 / 5e9, 1e-6);
}

// What waits elsewhere, 12 bytes of memory less a parameter, is read and written: experts' by their own
// replicas.
TEST(StepTime, OffloadedExpertsAreDividedByTheirOwnReplicas) {
  StepCase c = one();
  c.model = ModelSpec::of("mixtral");
  c.model.layers = 6, c.model.hidden = 1024, c.model.heads = 16, c.model.experts = 8, c.model.vocab = 5000;
  c.model.finish(c.seq);
  c.dp = 16, c.ep = 8, c.zero = 1;
  const FitValues v = values();
  for (int zero : {1, 3}) {
    c.zero = zero, c.offload = 0;
    const double whole = step_memory(c, v).states;
    c.offload = 5e9;
    EXPECT_NEAR(step_time(c, device(), v).offload * 5e9 / (2 * (whole - step_memory(c, v).states)), 1, 1e-9);
  }
}

// Zero 2 keeps no whole gradients, so every microbatch's are reduced: (m + 1) halves of what zero 0 says.
TEST(StepTime, Zero2ReducesEachMicrobatch) {
  StepCase c = one();
  c.dp = 8, c.microbatches = 5, c.grad_bytes = 2, c.zero = 1;
  const double once = step_time(c, device(), values()).gradients;
  c.zero = 2;
  EXPECT_NEAR(step_time(c, device(), values()).gradients / once, 3, 1e-6);
}

}  // namespace
}  // namespace trireme
