// Dropout through the whole model: one mask for every split into microbatches, schedule and resume; the
// gradient is the slope of the loss under that mask; meta books what a run books; off, it costs nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "tiny.h"

namespace trireme {
namespace {

using test::Rig;

RunSpec dropped_run(const char* arch, const char* compute, int64_t micro, int64_t global = 8) {
  RunSpec run = test::tiny_run(arch, compute, 1);
  run.batch.micro = micro, run.batch.global = global;
  run.model.embd_pdrop = 0.1, run.model.attn_pdrop = 0.3, run.model.resid_pdrop = 0.2;
  run.optimizer.clip_norm = 0;
  return run;
}

// The same sequences whatever the microbatch: sequence s of the global batch is a function of s.
void by_sequence(const RunSpec& run, int64_t step, int64_t mb, const HostBatch& b) {
  size_t seq = size_t(run.data.seq_len);
  for (size_t i = 0; i < b.tokens.size(); i++) {
    uint64_t at = uint64_t(mb * run.batch.micro) * seq + i;
    auto token = [&](uint64_t j) {
      return int32_t(below(rng_key(6, uint64_t(step), "tokens"), j, uint64_t(run.model.vocab)));
    };
    b.tokens[i] = token(at), b.targets[i] = token(at + 1), b.positions[i] = int32_t(i % seq);
  }
}
StepResult step_of(Rig& rig, int64_t step) {
  auto fill = [&](int64_t s, int64_t mb, const HostBatch& b) { by_sequence(rig.run, s, mb, b); };
  return rig.runner->step(rig.schedule.ranks[0], step, rig.run.tokens_per_step(), fill);
}
std::vector<double> gradients(const Rig& rig) {
  std::vector<float> g(size_t(rig.runner->params().numel));
  rig.device->download(g.data(), rig.runner->flat().grads);
  return {g.begin(), g.end()};
}

// Where each launch of dropout wrote zeros, by layer, in order.
class ZeroFinder : public OpObserver {
 public:
  void after(std::string_view op, const Cost&, const Outputs& out) override {
    if (op != "dropout") return;
    const Tensor& y = out.t[0];
    std::string s;
    for (int64_t i = 0; i < y.numel(); i++) s += y.as<float>()[i] == 0 ? '0' : '1';
    launches.push_back(s);
  }
  std::vector<std::string> launches;
};

// Embedding's masks of a step: the first launch of each microbatch's forward pass, in order of sequences.
std::string embedding_mask(RunSpec run, int64_t step) {
  run.model.resid_pdrop = run.model.attn_pdrop = 0;
  Rig rig(run, "gpipe");
  ZeroFinder finder;
  rig.device->kernels().observe(&finder);
  step_of(rig, step);
  rig.device->kernels().observe(nullptr);
  std::string all;
  size_t microbatches = size_t(run.microbatches());
  EXPECT_EQ(finder.launches.size(), 2 * microbatches);
  for (size_t m = 0; m < microbatches; m++) all += finder.launches[m];
  return all;
}

TEST(Dropout, OneMaskForEverySplitIntoMicrobatches) {
  std::string whole = embedding_mask(dropped_run("gpt2", "f32", 8), 1);
  auto dropped = std::count(whole.begin(), whole.end(), '0');
  EXPECT_NEAR(double(dropped) / double(whole.size()), 0.1, 0.02);
  for (int64_t micro : {1, 2, 4})
    EXPECT_EQ(embedding_mask(dropped_run("gpt2", "f32", micro), 1), whole) << micro;
  EXPECT_NE(embedding_mask(dropped_run("gpt2", "f32", 8), 2), whole);
  RunSpec other = dropped_run("gpt2", "f32", 8);
  other.train.seed++;
  EXPECT_NE(embedding_mask(other, 1), whole);
}

TEST(Dropout, LossAndGradientsDoNotDependOnTheSplit) {
  for (const char* arch : {"gpt2", "llama", "qwen3"}) {
    Rig whole(dropped_run(arch, "f32", 8));
    double loss = step_of(whole, 3).loss;
    std::vector<double> want = gradients(whole);
    double norm = 0;
    for (double g : want) norm += g * g;
    RunSpec without = dropped_run(arch, "f32", 8);
    without.model.embd_pdrop = without.model.attn_pdrop = without.model.resid_pdrop = 0;
    Rig undropped(without);
    EXPECT_GT(std::abs(step_of(undropped, 3).loss / loss - 1), 1e-4) << "dropout does nothing";
    for (int64_t micro : {1, 4}) {
      Rig split(dropped_run(arch, "f32", micro));
      EXPECT_NEAR(step_of(split, 3).loss / loss, 1, 1e-6) << arch << " " << micro;
      std::vector<double> got = gradients(split);
      double apart = 0;
      for (size_t i = 0; i < got.size(); i++) apart += (got[i] - want[i]) * (got[i] - want[i]);
      EXPECT_LT(std::sqrt(apart / norm), 2e-6) << arch << " " << micro;
    }
  }
}

// The loss of step 1, whose mask is fixed, along the gradient.
TEST(Dropout, GradientIsTheSlopeOfTheLoss) {
  for (const char* arch : {"gpt2", "llama", "qwen2", "qwen3"}) {
    RunSpec run = dropped_run(arch, "f32", 2, 4);
    Rig rig(run);
    std::vector<float> w0 = rig.all("");
    step_of(rig, 1);
    std::vector<double> g = gradients(rig);
    double norm = 0;
    for (double x : g) norm += x * x;
    norm = std::sqrt(norm);
    Rig at(run);
    auto loss_at = [&](double h) {
      std::vector<float> w = w0;
      for (size_t i = 0; i < w.size(); i++) w[i] = float(w0[i] + h * g[i] / norm);
      for (const Param& p : at.runner->params().params)
        at.runner->memory().write_param(p, "", std::span(w).subspan(size_t(p.offset), size_t(p.numel())));
      return step_of(at, 1).loss;
    };
    double h = 5e-3;
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h) / norm, 1, 3e-3) << arch;
  }
}

// Schedules draw at different times, a resumed run in another process: the numbers are those of the step.
TEST(Dropout, SchedulesAndResumesAreBitIdentical) {
  for (const char* compute : {"f32", "bf16"}) {
    RunSpec run = dropped_run("gpt2", compute, 2);
    Rig a(run), b(run, "gpipe"), resumed(run);
    for (int64_t s = 1; s <= 2; s++) EXPECT_EQ(step_of(a, s).loss, step_of(b, s).loss);
    std::vector<float> part;
    for (const char* what : {"", "exp_avg", "exp_avg_sq"})
      for (const Param& p : a.runner->params().params) {
        part.resize(size_t(p.numel()));
        a.runner->memory().read_param(p, what, part);
        resumed.runner->memory().write_param(p, what, part);
      }
    resumed.runner->weights_from_master();
    for (int64_t s = 3; s <= 4; s++) {
      StepResult r = step_of(a, s);
      EXPECT_EQ(r.loss, step_of(b, s).loss);
      EXPECT_EQ(r.loss, step_of(resumed, s).loss);
    }
    EXPECT_EQ(a.all(""), b.all(""));
    EXPECT_EQ(a.all(""), resumed.all(""));
  }
}

TEST(Dropout, EvaluationAndLogitsDropNothing) {
  RunSpec run = dropped_run("llama", "f32", 2), without = run;
  without.model.embd_pdrop = without.model.attn_pdrop = without.model.resid_pdrop = 0;
  Rig a(run), b(without);
  auto fill = [&](int64_t, int64_t, const HostBatch& h) { by_sequence(run, 1, 0, h); };
  EXPECT_EQ(a.runner->evaluator().evaluate(2, run.data.seq_len, fill).sum,
            b.runner->evaluator().evaluate(2, run.data.seq_len, fill).sum);
  std::vector<float> la, lb;
  std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  a.runner->evaluator().logits(tokens, la), b.runner->evaluator().logits(tokens, lb);
  EXPECT_EQ(la, lb);
}

TEST(Dropout, MetaEqualsTheRun) {
  for (const char* arch : {"gpt2", "llama", "qwen3"})
    for (const char* compute : {"f32", "bf16"}) {
      Rig rig(dropped_run(arch, compute, 2));
      rig.device->kernels().restart_counts();
      rig.runner->arena().ledger().restart_peaks();
      step_of(rig, 1);
      const Ledger& real = rig.runner->arena().ledger();
      EXPECT_EQ(rig.booking.peak, real.peaks());
      EXPECT_EQ(rig.booking.at_peak, real.at_peak());
      EXPECT_EQ(rig.booking.total, rig.device->kernels().total());
      EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
      EXPECT_EQ(real.now(Bucket::activations), 0);
    }
}

// Off, nothing is launched or booked; on, one launch forward and one backward at each place.
TEST(Dropout, AtRateZeroNothingIsLaunched) {
  for (const char* compute : {"f32", "bf16"}) {
    auto booked = [&](double embd, double attn, double resid) {
      RunSpec run = dropped_run("gpt2", compute, 2);
      run.model.embd_pdrop = embd, run.model.attn_pdrop = attn, run.model.resid_pdrop = resid;
      return book_training(run, add_step(make_schedule("1f1b", 1, 1, 4)), 1);
    };
    auto launched = [](const Booking& b) {
      for (const OpTotal& t : b.ops)
        if (t.op == "dropout") return t.launches;
      return int64_t(0);
    };
    Booking off = booked(0, 0, 0), attn = booked(0, 0.1, 0);
    EXPECT_EQ(launched(off), 0);
    EXPECT_EQ(launched(booked(0.1, 0, 0)), 2 * 4);
    EXPECT_EQ(launched(booked(0, 0, 0.1)), 2 * 4 * 2 * 2);  // 4 microbatches, 2 blocks of 2 places
    EXPECT_EQ(launched(attn), 0);                           // inside attention, nothing stored between passes
    EXPECT_EQ(attn.launches, off.launches);
    EXPECT_EQ(attn.peak[size_t(Bucket::activations)], off.peak[size_t(Bucket::activations)]);
    EXPECT_GT(booked(0, 0, 0.1).peak[size_t(Bucket::activations)], off.peak[size_t(Bucket::activations)]);
  }
}

}  // namespace
}  // namespace trireme
