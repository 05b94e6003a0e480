// Adapters against PEFT and PyTorch in f64 (tools/make_lora_golden.py): the adapter that PEFT saved, read
// into a runner on the base of tests/golden/llama2.
#include <gtest/gtest.h>

#include "checkpoint/hf.h"
#include "checkpoint/peft.h"
#include "golden_case.h"
#include "runtime/booking.h"
#include "source_dir.h"
#include "spec/run_schedule.h"

namespace trireme::golden {
namespace {

// f32 against f64.
constexpr double kAdaptedLogit = 5e-5, kAdaptedUpdate = 5e-4;
constexpr int64_t kAdaptedSteps = 5;

fs::path lora_folder() {
  return test::source_dir() / "tests/golden/lora";
}

class LoraGolden : public testing::Test {
 protected:
  LoraGolden() : peft_(lora_folder(), base_.model()), file_(lora_folder() / "golden.safetensors") {
    run_ = run_of(base_, "f32", "f32", 2);
    run_.lora = {.rank = peft_.config().rank,
                 .alpha = peft_.config().alpha,
                 .targets = Texts::of({"*", "!*.attn.k", "!*.mlp.up"}),
                 .adapter = ""};
    schedule_ = schedule_of(run_);
    device_ = golden_device(run_);
    runner_ = std::make_unique<StageRunner>(run_, RunMode::train, *device_,
                                            book_training(run_, schedule_, 1).arena_bytes);
    runner_->init_weights();
    HfFolder weights(base_.folder(), base_.model());
    for (const Param& p : runner_->params().params) {
      std::vector<float> host(size_t(p.numel()));
      const Tensor dst(host.data(), p.decl.global, DType::f32);
      if (factor(p))
        peft_.read(matrix(p), p.decl.name.back(), p.box, {0, p.numel()}, dst);
      else
        weights.read(p.decl.name, dst);
      runner_->memory().write_param(p, "", host);
    }
    runner_->weights_from_master();
  }

  static bool factor(const Param& p) { return p.decl.adapter_scale != 0; }
  static std::string matrix(const Param& p) { return p.decl.name.substr(0, p.decl.name.size() - 7); }
  // What the golden calls a factor.
  std::string name_of(const Param& p) const {
    for (const PeftPlace& place : peft_places(base_.model()))
      if (place.ours == matrix(p))
        return "base_model.model." + place.theirs + (p.decl.name.back() == 'a' ? ".lora_A" : ".lora_B") +
               ".weight";
    return "";
  }
  StepResult step(int64_t number, int64_t batch) {
    return runner_->step(schedule_.ranks[0], number, base_.target_tokens(batch),
                         base_.fill(batch, run_.batch.micro));
  }
  Values read(const Param& p) const {
    std::vector<float> host(size_t(p.numel()));
    runner_->memory().read_param(p, "", host);
    return Values(host.begin(), host.end());
  }

  GoldenCase base_{"llama2"};
  PeftFolder peft_;
  SafetensorsFile file_;
  RunSpec run_;
  Schedule schedule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<StageRunner> runner_;
};

TEST_F(LoraGolden, LogitsLossAndEveryGradient) {
  const StepResult r = step(1, 0);
  EXPECT_LE(std::abs(r.loss / base_.values(file_, "loss")[0] - 1), kLoss);
  int factors = 0;
  for (const Param& p : runner_->params().params) {
    EXPECT_EQ(bool(p.grad), factor(p)) << p.decl.name;
    if (!factor(p)) continue;
    const Values want = base_.values(file_, "grad." + name_of(p));
    EXPECT_LE(distance(values_of(*device_, p.grad), want), kGradient * norm(want)) << p.decl.name;
    factors++;
  }
  EXPECT_EQ(factors, 2 * 5 * base_.model().layers);
}

TEST_F(LoraGolden, Logits) {
  const Values want = base_.values(file_, "logits"), ids = base_.values("input_ids");
  std::vector<float> got;
  for (int64_t s = 0; s < base_.sequences(); s++) {
    std::vector<int32_t> tokens(ids.begin() + s * base_.seq(), ids.begin() + (s + 1) * base_.seq());
    runner_->evaluator().logits(tokens, got);
    const size_t first = size_t(s) * got.size();
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++)
      worst = std::max(worst, std::abs(double(got[i]) - want[first + i]));
    EXPECT_LE(worst, kAdaptedLogit);
  }
}

// Clipped, with decay; the base stays as it was, to the bit.
TEST_F(LoraGolden, FiveStepsOfAdamW) {
  std::map<std::string, Values> begin;
  for (const Param& p : runner_->params().params) begin[p.decl.name] = read(p);
  const Values losses = base_.values(file_, "steps.loss");
  for (int64_t s = 1; s <= kAdaptedSteps; s++)
    EXPECT_LE(std::abs(step(s, s).loss / losses[size_t(s - 1)] - 1), kLoss) << "step " << s;
  for (const Param& p : runner_->params().params) {
    if (!factor(p)) {
      EXPECT_EQ(read(p), begin.at(p.decl.name)) << p.decl.name;
      continue;
    }
    const Values want = base_.values(file_, "final." + name_of(p));
    EXPECT_LE(distance(read(p), want), kAdaptedUpdate * distance(begin.at(p.decl.name), want)) << p.decl.name;
  }
}

}  // namespace
}  // namespace trireme::golden
