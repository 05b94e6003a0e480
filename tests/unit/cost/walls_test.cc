#include "cost/walls.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/step_memory.h"

namespace trireme {
namespace {

const BucketBytes kPer = state_bytes_per_parameter("bf16", "bf16");
constexpr double kEndless = std::numeric_limits<double>::infinity();

// Rajbhandari et al. 2020, figure 1 and table 1: GB of 7.5 B parameters on 64 devices, and of others.
TEST(Walls, ZeroOfItsPaper) {
  EXPECT_NEAR(zero_state_bytes(7.5e9, 0, 64, kPer) / 1e9, 120, 0.05);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 1, 64, kPer) / 1e9, 31.4, 0.05);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 2, 64, kPer) / 1e9, 16.6, 0.05);
  EXPECT_NEAR(zero_state_bytes(7.5e9, 3, 64, kPer) / 1e9, 1.88, 0.005);
  EXPECT_NEAR(zero_state_bytes(128e9, 1, 4, kPer) / 1e9, 896, 0.5);
  EXPECT_NEAR(zero_state_bytes(1e12, 3, 1024, kPer) / 1e9, 15.6, 0.05);
  EXPECT_DOUBLE_EQ(zero_saving(1, kEndless, kPer), 4);
  EXPECT_DOUBLE_EQ(zero_saving(2, kEndless, kPer), 8);
  for (double n : {1.0, 3.0, 64.0}) {
    EXPECT_DOUBLE_EQ(zero_saving(3, n, kPer), n);
    EXPECT_DOUBLE_EQ(zero_saving(0, n, kPer), 1);
  }
  EXPECT_EQ(zero_saving(3, kEndless, kPer), kEndless);
  const double traffic[] = {1, 1, 1, 1.5}, eighteen[] = {1, 1, 9.5, 27};
  for (int zero = 0; zero <= 3; ++zero) {
    EXPECT_EQ(zero_traffic(zero), traffic[zero]);
    EXPECT_EQ(zero_traffic(zero, 18), eighteen[zero]);
  }
  EXPECT_THROW(zero_state_bytes(1, 1, 0, kPer), Error);
}

TEST(Walls, NumbersOfTextbooks) {
  EXPECT_DOUBLE_EQ(zero_state_bytes(70e9, 0, 1, kPer), 1.12e12);
  EXPECT_EQ(devices_at_least(208e9, 80e9), 3);
  EXPECT_EQ(devices_at_least(160e9, 80e9), 2);
  EXPECT_EQ(devices_at_least(1, 80e9), 1);
  constexpr double kDay = 86400, kPeak = 989e12;
  EXPECT_NEAR(training_seconds(six_n_d(7e9, 2e12), 1, kPeak, 0.5) / kDay, 1966, 0.5);
  EXPECT_NEAR(training_seconds(six_n_d(175e9, 300e9), 1, kPeak, 1) / kDay / 365.25, 10.1, 0.05);
  EXPECT_NEAR(training_seconds(six_n_d(7e9, 2e12), 100, kPeak, 0.5) / kDay, 19.66, 0.005);
  EXPECT_NEAR(wasted_share(0.35, 0.5), 0.3, 1e-12);
  EXPECT_NEAR(more_training(0.35, 0.5), 0.4286, 5e-5);
  EXPECT_DOUBLE_EQ(recompute_factor(1), 4.0 / 3);
  EXPECT_DOUBLE_EQ(recompute_factor(0), 1);
  EXPECT_THROW(training_seconds(1, 0, kPeak, 1), Error);
}

TEST(Walls, BubblesAreFractions) {
  const Ratio small = bubble_share(4, 4), large = bubble_share(8, 32), interleaved = bubble_share(8, 8, 3);
  EXPECT_EQ(small.above * 1000 + small.below, 3007);
  EXPECT_EQ(large.above * 1000 + large.below, 7039);
  // (p - 1) / (v m) beside the ideal time.
  const double x = interleaved.value();
  EXPECT_NEAR(x / (1 - x), 7.0 / 24, 1e-12);
  EXPECT_EQ(bubble_share(1, 5).value(), 0);
  EXPECT_THROW(bubble_share(0, 1), Error);
}

// Against the other closed form, which divides all of a layer as sequence parallelism does.
TEST(Walls, KeptActivationsAgreeWithStepMemory) {
  ModelSpec gpt = ModelSpec::of("gpt2");
  gpt.layers = 7, gpt.hidden = 576, gpt.heads = 9;
  gpt.finish(333);
  StepCase step{.model = gpt, .seq = 333, .micro = 3};
  ActivationsCase k{.seq = 333, .micro = 3, .hidden = 576, .heads = 9, .sequence = true};
  for (int64_t t : {1, 3}) {
    step.tp = t, k.tp = double(t);
    step.attention = AttentionKind::unfused, k.kept = KeptActivations::all;
    EXPECT_NEAR(kept_activation_bytes(k) / layer_activations(step, false), 1, 1e-12);
    step.attention = AttentionKind::flash, k.kept = KeptActivations::selective;
    EXPECT_NEAR(kept_activation_bytes(k) / layer_activations(step, false), 1, 1e-12);
  }
  const double sbh = 333.0 * 3 * 576;
  EXPECT_DOUBLE_EQ(kept_activation_bytes(k), sbh * 34 / 3);
  k.sequence = false;  // what tensor parallelism alone does not divide: 10 s b h
  EXPECT_DOUBLE_EQ(kept_activation_bytes(k), sbh * (10 + 24.0 / 3));
  k.kept = KeptActivations::input;
  EXPECT_DOUBLE_EQ(kept_activation_bytes(k), 2 * sbh);
}

TEST(Walls, KeysAndValuesAndWhatATokenVisits) {
  ModelSpec m = ModelSpec::of("llama");
  m.layers = 80, m.hidden = 8192, m.heads = 64, m.kv_heads = 8, m.ffn = 28672, m.vocab = 32000;
  m.finish(4096);
  EXPECT_DOUBLE_EQ(kv_cache_bytes(m, 4096, 3), 2.0 * 2 * 80 * 8 * 128 * 4096 * 3);
  EXPECT_EQ(active_parameters(m), double(parameters(m)));
  ModelSpec moe = ModelSpec::of("mixtral");
  moe.layers = 5, moe.hidden = 96, moe.heads = 6, moe.experts = 7, moe.experts_per_token = 3,
  moe.moe_ffn = 40;
  moe.finish(64);
  ModelSpec visited = moe;  // the same with so few experts that a token visits all
  visited.experts = 3;
  const double routers = 5.0 * 4 * 96;
  EXPECT_DOUBLE_EQ(active_parameters(moe), double(parameters(visited)) + routers);
  ModelSpec latent = ModelSpec::of("deepseek_v3");
  latent.layers = 4;
  latent.kv_rank = 48, latent.rope_head_dim = 16;
  EXPECT_DOUBLE_EQ(kv_cache_bytes(latent, 100, 2), 2.0 * 4 * (48 + 16) * 100 * 2);
}

}  // namespace
}  // namespace trireme
