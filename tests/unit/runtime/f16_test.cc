// Training in f16: loss scaling on a run that overflows, and what it must not hide.
#include <gtest/gtest.h>

#include <cmath>

#include "tiny.h"

namespace trireme {
namespace {

using test::Rig;
using test::tiny_run;

constexpr double kHuge = 0x1p40;  // beyond what any gradient of the tiny models stands

// A rate that does not depend on the step, so that runs may be compared at a distance of some steps.
RunSpec f16_run(const char* arch, double initial_scale, int64_t growth_interval = 2000) {
  RunSpec r = tiny_run(arch, "f16", 2);
  r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
  r.precision.initial_scale = initial_scale, r.precision.growth_interval = growth_interval;
  return r;
}
// Step s on the batch of step s + later.
StepResult step_on_later(Rig& rig, int64_t s, int64_t later) {
  FillBatch fill = test::random_batches(rig.run);
  return rig.runner->step(rig.schedule.ranks[0], s, rig.run.tokens_per_step(),
                          [&](int64_t step, int64_t mb, const HostBatch& b) { fill(step + later, mb, b); });
}
// Steps until one is good; returns how many were skipped. Nothing may move meanwhile.
int64_t skip_down(Rig& rig) {
  std::vector<float> before[] = {rig.all(""), rig.all("exp_avg"), rig.all("exp_avg_sq")};
  double scale = kHuge;
  for (int64_t s = 1; s < 60; s++) {
    EXPECT_EQ(rig.runner->step_end().loss_scale().scale(), scale);
    StepResult r = rig.step(s);
    EXPECT_EQ(r.loss_scale, scale);
    EXPECT_TRUE(std::isfinite(r.loss));
    if (!r.skipped) return s - 1;
    EXPECT_FALSE(std::isfinite(r.grad_norm));
    EXPECT_EQ(r.lr, rig.run.optimizer.lr);
    EXPECT_EQ(rig.all(""), before[0]);
    EXPECT_EQ(rig.all("exp_avg"), before[1]);
    EXPECT_EQ(rig.all("exp_avg_sq"), before[2]);
    EXPECT_EQ(rig.runner->arena().ledger().now(Bucket::activations), 0);
    scale /= 2;
  }
  ADD_FAILURE() << "no step of 60 was good";
  return 60;
}

// It skips, backs off, trains, grows, overflows again and goes on. An f32 run that takes the batches of its
// good steps takes the same way.
TEST(F16, ARunThatOverflowsTrainsLikeF32Afterwards) {
  for (const char* arch : {"gpt2", "llama"}) {
    Rig half(f16_run(arch, kHuge, 4));
    int64_t skipped = skip_down(half), good = 1, later = 0, grown = 0;
    EXPECT_GT(skipped, 10);
    EXPECT_LT(skipped, 40);
    RunSpec exact = half.run;
    exact.precision.compute = "f32";
    Rig full(exact);
    double first = step_on_later(full, 1, skipped).loss, last = 0, worst = 0;
    for (int64_t s = skipped + 2; s <= skipped + 40; s++) {
      double scale = half.runner->step_end().loss_scale().scale();
      StepResult a = half.step(s);
      EXPECT_TRUE(std::isfinite(a.loss));
      grown += half.runner->step_end().loss_scale().scale() > scale;
      later += a.skipped;
      if (a.skipped) continue;
      good++;
      StepResult b = step_on_later(full, good, s - good);
      worst = std::max(worst, std::abs(a.loss / b.loss - 1));
      EXPECT_NEAR(a.grad_norm / b.grad_norm, 1, 0.02) << arch << " step " << s;
      last = a.loss;
    }
    fmt::print(
        "{}: {} steps skipped from scale 2^40 on, {} later; grown {} times; {} good steps within {:.1e} of "
        "f32's\n",
        arch, skipped, later, grown, good, worst);
    EXPECT_LT(worst, 1e-3) << arch;
    EXPECT_GT(later, 0);
    EXPECT_GT(grown, later / 2);
    EXPECT_LT(last, first - 0.2);
    EXPECT_EQ(half.runner->step_end().loss_scale().state().skipped, skipped + later);
  }
}

// Skipped steps leave no trace but their batches: the run is, to the bit, the one that began at the scale
// that held. (Were AdamW's bias correction to count them, the first updates would be another size.)
TEST(F16, SkippedStepsLeaveNoTrace) {
  Rig a(f16_run("llama", kHuge));
  int64_t skipped = skip_down(a);
  Rig b(f16_run("llama", a.runner->step_end().loss_scale().scale()));
  EXPECT_FALSE(step_on_later(b, 1, skipped).skipped);
  for (int64_t s = 2; s <= 6; s++) {
    StepResult ra = a.step(skipped + s), rb = step_on_later(b, s, skipped);
    EXPECT_EQ(ra.loss, rb.loss);
    EXPECT_EQ(ra.skipped, rb.skipped);
    if (!ra.skipped) {
      EXPECT_EQ(ra.grad_norm, rb.grad_norm);
    }
  }
  for (const char* what : {"", "exp_avg", "exp_avg_sq"}) EXPECT_EQ(a.all(what), b.all(what)) << what;
}

// The scale enters the gradients and leaves them again: norm and update do not know it.
TEST(F16, TheScaleDoesNotShowInNormAndUpdate) {
  Rig a(f16_run("gpt2", 0x1p12)), b(f16_run("gpt2", 0x1p15));
  for (int64_t s = 1; s <= 3; s++) {
    StepResult ra = a.step(s), rb = b.step(s);
    EXPECT_NEAR(ra.grad_norm / rb.grad_norm, 1, 1e-3);
    EXPECT_NEAR(ra.loss / rb.loss, 1, 1e-4);
  }
}

std::string failure_of(Rig& rig, int64_t step) {
  std::vector<float> before = rig.all("");
  try {
    rig.step(step);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    EXPECT_EQ(rig.all(""), before);
    return e.what();
  }
  ADD_FAILURE() << "nothing failed";
  return "";
}
void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* p : parts) EXPECT_NE(text.find(p), std::string::npos) << p << " not in: " << text;
}

TEST(F16, AnOverflowAtTheLeastScaleEndsTheRunByName) {
  RunSpec run = f16_run("llama", kHuge);
  run.precision.min_scale = kHuge / 2;
  Rig rig(run);
  EXPECT_TRUE(rig.step(1).skipped);
  expect_has(failure_of(rig, 2),
             {"step 2: ", "not finite, first in the output of cross_entropy in layer head",
              "the loss scale is 549755813888, its least (precision.min_scale)"});
}

TEST(F16, AnOverflowAtAFixedScaleEndsTheRunByName) {
  RunSpec run = f16_run("llama", 1);
  run.precision.loss_scale = {.number = kHuge, .dynamic = false};
  Rig rig(run);
  expect_has(failure_of(rig, 1), {"step 1: ", "cross_entropy in layer head",
                                  "precision.loss_scale is fixed at", "give \"dynamic\", or a smaller one"});
  run.precision.loss_scale.number = 4096;
  Rig good(run);
  EXPECT_FALSE(good.step(1).skipped);
  EXPECT_EQ(good.runner->step_end().loss_scale().scale(), 4096);
}

// Activations beyond 65504: no scale mends that, and no step is skipped for it.
TEST(F16, AForwardPassThatOverflowsIsNotTheScalesDoing) {
  Rig rig(f16_run("llama", 65536));
  rig.step(1);
  const Param* p = rig.runner->params().find("blocks.1.mlp.down.weight");
  ASSERT_NE(p, nullptr);
  std::vector<float> w(size_t(p->numel()), 60000.0f);
  for (size_t i = 0; i < w.size(); i += 2) w[i] = -60000.0f;
  rig.runner->memory().write_param(*p, "", w);
  const Param* up = rig.runner->params().find("blocks.1.mlp.up.weight");
  std::vector<float> u(size_t(up->numel()));
  rig.runner->memory().read_param(*up, "", u);
  for (float& x : u) x *= 1000;
  rig.runner->memory().write_param(*up, "", u);
  rig.runner->weights_from_master();
  expect_has(failure_of(rig, 2), {"step 2: ", "matmul in layer blocks.1.mlp", "the forward pass", "65504"});
  EXPECT_EQ(rig.runner->step_end().loss_scale().scale(), 65536);
  EXPECT_EQ(rig.runner->step_end().loss_scale().state().skipped, 0);
}

// Inference rounds weights straight into f16: one that does not fit is named, not made infinite.
TEST(F16, AWeightBeyondF16IsNamedWhereItIsLoaded) {
  RunSpec run = f16_run("llama", 65536);
  auto device = make_device("cpu", {.threads = 1});
  StageRunner infer(run, RunMode::infer, *device, book_inference(run, 1));
  const Param& p = infer.params().params[0];
  std::vector<float> w(size_t(p.numel()), 1.0f);
  infer.memory().write_param(p, "", w);
  w[3] = 65520;
  try {
    infer.memory().write_param(p, "", w);
    FAIL() << "65520 fits into nothing of f16";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    expect_has(e.what(), {"embed.tokens.weight holds 65520", "at most 65504"});
  }
}

}  // namespace
}  // namespace trireme
