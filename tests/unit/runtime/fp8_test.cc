// Training with linear layers in 8-bit floats: as bf16 learns, in the memory booked; delayed scales follow
// what was seen, and what they do not reach saturates.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tiny.h"

namespace trireme {
namespace {

RunSpec fp8_run(const char* arch, const char* recipe, const char* compute = "bf16") {
  RunSpec r = test::tiny_run(arch, compute, 2);
  r.precision.fp8 = recipe, r.precision.fp8_history = 4;
  return r;
}

// A quarter of the targets is anything: a loss that can be learned away says nothing by what is left of it.
FillBatch noisy_batches(const RunSpec& run) {
  return [run](int64_t step, int64_t mb, const HostBatch& b) {
    test::random_batch(run, step, mb, b);
    const uint64_t key = rng_key(7, uint64_t(step) << 32 | uint64_t(mb), "noise");
    for (size_t i = 0; i < b.targets.size(); i++)
      if (below(key, 2 * i, 4) == 0) b.targets[i] = int32_t(below(key, 2 * i + 1, uint64_t(run.model.vocab)));
  };
}

// The mean of the last losses of a run. FP8_STEPS: of a longer one (fp8_long).
double learned(const RunSpec& run, int64_t steps) {
  test::Rig rig(run);
  double sum = 0;
  for (int64_t s = 1; s <= steps; s++) {
    const StepResult r =
        rig.runner->step(rig.schedule.ranks[0], s, run.tokens_per_step(), noisy_batches(run));
    EXPECT_TRUE(std::isfinite(r.loss) && std::isfinite(r.grad_norm)) << s;
    if (s > steps - 5) sum += r.loss / 5;
  }
  return sum;
}

class Fp8Recipes : public testing::TestWithParam<const char*> {};

// The whole step on meta is the step: bytes by bucket, FLOPs and bytes of its ops.
TEST_P(Fp8Recipes, MetaIsTheRun) {
  for (const char* arch : {"gpt2", "llama"}) {
    test::Rig rig(fp8_run(arch, GetParam(), arch[0] == 'g' ? "f32" : "bf16"));
    rig.runner->arena().ledger().restart_peaks();
    rig.device->kernels().restart_counts();
    rig.step(1);
    EXPECT_EQ(rig.runner->arena().ledger().peaks(), rig.booking.peak) << arch;
    EXPECT_EQ(rig.device->kernels().total(), rig.booking.total) << arch;
    EXPECT_EQ(rig.runner->arena().ledger().now(Bucket::activations), 0);
  }
}

// Of a microbatch between its passes: codes of two norms' outputs and of an activation in place of these.
TEST_P(Fp8Recipes, InputsAreKeptInOneByte) {
  const bool block = GetParam() == std::string("block");
  const auto kept = [](const RunSpec& run) {
    test::Rig rig(run);
    int64_t bytes = 0;
    rig.runner->watch().control = {.phase =
                                       [&](std::string_view phase) {
                                         if (phase == "B" && bytes == 0)
                                           bytes = rig.runner->arena().ledger().now(Bucket::activations);
                                       },
                                   .stop = {}};
    rig.step(1);
    return bytes;
  };
  for (const char* compute : {"bf16", "f32"}) {
    RunSpec run = fp8_run("llama", GetParam(), compute);
    run.batch.micro = 8, run.batch.global = 16;  // 184 rows: blocks of 128, and of what is left
    const int64_t eight = kept(run), rows = run.batch.micro * run.data.seq_len;
    run.precision.fp8 = "none";
    const int64_t numbers = 2 * run.model.hidden + run.model.ffn, type = compute[0] == 'b' ? 2 : 4;
    const int64_t scales = block ? 2 * numbers : 3;
    EXPECT_EQ(kept(run) - eight, run.model.layers * (rows * numbers * (type - 1) - 4 * scales)) << compute;
  }
}

TEST_P(Fp8Recipes, LearnsAsBf16Does) {
  const char* asked = std::getenv("FP8_STEPS");
  const int64_t steps = asked ? std::atoll(asked) : 30;
  RunSpec plain = fp8_run("llama", "none");
  plain.train.steps = steps;
  RunSpec eight = plain;
  eight.precision.fp8 = GetParam();
  const double want = learned(plain, steps), got = learned(eight, steps);
  fmt::print("fp8 {}: loss {:.5f} after {} steps, bf16's {:.5f}: {:+.2f} %\n", GetParam(), got, steps, want,
             100 * (got / want - 1));
  EXPECT_NE(got, want);
  EXPECT_LT(std::abs(got / want - 1), 0.01);
  EXPECT_LT(got, std::log(61.0) - 0.1);
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Recipes, testing::Values("delayed", "current", "block"));

// Of chosen layers alone: the others compute to the bit as without.
TEST(Fp8, PatternsChooseLayers) {
  RunSpec run = fp8_run("llama", "current");
  const auto loss = [&](const Texts& layers) {
    run.precision.fp8_layers = layers;
    test::Rig rig(run);
    EXPECT_EQ(rig.runner->passes().fp8()->has("blocks.1.mlp.gate"), layers.size() != 2);
    return rig.step(1).loss;
  };
  const double all = loss("*"), mlp = loss("*.mlp.*"), first = loss(Texts::of({"blocks.*", "!blocks.1.*"}));
  EXPECT_NE(all, mlp);
  EXPECT_NE(all, first);
  run.precision.fp8 = "none";
  test::Rig none(run);
  EXPECT_NE(none.step(1).loss, mlp);
}

TEST(Fp8, PatternsThatChooseNothingOrHalfAProductAreRefused) {
  const auto error = [](const Texts& layers) -> std::string {
    RunSpec run = fp8_run("llama", "block");
    run.precision.fp8_layers = layers;
    try {
      test::Rig rig(run);
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
  };
  EXPECT_NE(error("*.mpl.*").find("\"*.mpl.*\" names no linear layer of the model; right are"),
            std::string::npos);
  EXPECT_NE(error("*.attn.q").find("blocks.0.attn.q is chosen and blocks.0.attn.k is not"),
            std::string::npos);
  EXPECT_NE(error(Texts::of({"*", "!*"})).find("chooses no layer"), std::string::npos);
  EXPECT_NE(error("embed.tokens").find("names no linear layer"), std::string::npos);
}

// A history is as long as asked for, of what was seen; the scale is of its largest.
TEST(Fp8, HistoriesRememberTheLargestOfEachStep) {
  test::Rig rig(fp8_run("llama", "delayed"));
  std::vector<float> seen;
  for (int64_t s = 1; s <= 6; s++) {
    rig.step(s);
    const Fp8History& h = rig.runner->passes().fp8()->histories().find("blocks.0.mlp.down")->second;
    for (const std::vector<float>& of : h) {
      EXPECT_EQ(of.size(), size_t(std::min<int64_t>(s, 4)));
      EXPECT_GT(of[0], 0);
    }
    if (!seen.empty()) {
      EXPECT_EQ(h[0][1], seen.back());
    }
    seen.push_back(h[0][0]);
    EXPECT_GT(h[0][0], h[2][0]);  // activations are larger than their gradients
  }
  EXPECT_NE(seen[0], seen[5]);
}

// Magnitudes far above those seen saturate: the step is finite, and the next scales fit again.
TEST(Fp8, WhatIsBeyondDelayedScalesSaturates) {
  test::Rig rig(fp8_run("llama", "delayed")), same(fp8_run("llama", "delayed"));
  rig.step(1), same.step(1);
  Fp8Histories small = rig.runner->passes().fp8()->histories();
  for (auto& [linear, history] : small)
    for (std::vector<float>& h : history)
      for (float& m : h) m /= 64;
  ASSERT_TRUE(rig.runner->passes().fp8()->restore(rig.runner->device(), small));
  const StepResult cut = rig.step(2), whole = same.step(2);
  EXPECT_TRUE(std::isfinite(cut.loss) && std::isfinite(cut.grad_norm));
  EXPECT_NE(cut.loss, whole.loss);
  const float now = rig.runner->passes().fp8()->histories().begin()->second[1][0];
  EXPECT_EQ(now,
            same.runner->passes().fp8()->histories().begin()->second[1][0]);  // of weights, before the update
  for (int64_t s = 3; s <= 6; s++) EXPECT_TRUE(std::isfinite(rig.step(s).loss));
}

// What a checkpoint may not say of them.
TEST(Fp8, HistoriesOfOthersAreRefused) {
  test::Rig rig(fp8_run("llama", "delayed"));
  rig.step(1);
  const Fp8Histories good = rig.runner->passes().fp8()->histories();
  const auto refused = [&](const std::function<void(Fp8Histories&)>& spoil) {
    Fp8Histories bad = good;
    spoil(bad);
    return !rig.runner->passes().fp8()->restore(rig.runner->device(), bad);
  };
  const std::string first = good.begin()->first;
  EXPECT_TRUE(rig.runner->passes().fp8()->restore(rig.runner->device(), good));
  EXPECT_TRUE(refused([&](Fp8Histories& h) { h.erase(first); }));
  EXPECT_TRUE(refused([&](Fp8Histories& h) { h[first][0][0] = -1; }));
  EXPECT_TRUE(refused([&](Fp8Histories& h) { h[first][2][0] = HUGE_VALF; }));
  EXPECT_TRUE(refused([&](Fp8Histories& h) { h[first][1].resize(9, 1.0f); }));
  EXPECT_TRUE(refused([&](Fp8Histories& h) { h["blocks.7.mlp.down"] = h[first], h.erase(first); }));
  EXPECT_EQ(rig.runner->passes().fp8()->histories(), good);
}

}  // namespace
}  // namespace trireme
