#include "cost/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/flops.h"

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
                         t.bubble + t.messages + t.gradients + t.optimizer + t.jitter;
    EXPECT_NEAR(parts / t.total, 1, 1e-9);
    EXPECT_GT(t.total, 0);
    // No faster than the arithmetic allows.
    EXPECT_GE(t.total, step_flops(c, false) * 0.4 / (device().bf16 * double(c.gpus())));
  }
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

}  // namespace
}  // namespace trireme
