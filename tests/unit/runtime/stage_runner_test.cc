#include "runtime/stage_runner.h"
#include "sanitized.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tiny.h"

namespace trireme {
namespace {

using test::Rig;
using test::tiny_run;

// Splits every B of a schedule into I and W, with W as late as memory allows: at the end of the step.
Schedule split_late(Schedule s) {
  std::vector<Action> out, w;
  for (Action a : s.ranks[0]) {
    if (a.kind == Act::ReduceGrad) {
      out.insert(out.end(), w.begin(), w.end());
      w.clear();
    }
    if (a.kind != Act::B) {
      out.push_back(a);
      continue;
    }
    Action i = a, late = a;
    i.kind = Act::I, late.kind = Act::W;
    out.push_back(i), w.push_back(late);
  }
  s.ranks[0] = out;
  return s;
}

class EveryModel : public ::testing::TestWithParam<std::tuple<const char*, const char*, bool>> {
 protected:
  RunSpec run(int64_t microbatches) const {
    auto [arch, compute, tied] = GetParam();
    RunSpec r = tiny_run(arch, compute, microbatches);
    r.model.tied = tied;
    return r;
  }
};

TEST_P(EveryModel, LossFalls) {
  Rig rig(run(2));
  double first = rig.step(1).loss, last = 0;
  EXPECT_NEAR(first, std::log(61.0), 0.3);
  for (int64_t s = 2; s <= 20; s++) last = rig.step(s).loss;
  EXPECT_LT(last, first - 0.25);
}

const int64_t kSteps = test::kSanitized ? 2 : 4;  // ten times slower there, and looked at for other things

// 1F1B, GPipe and split backward passes with late W add weight gradients in the same order: same bits.
TEST_P(EveryModel, SchedulesAreBitIdentical) {
  Rig a(run(4)), b(run(4), "gpipe"), c(run(4));
  c.schedule = split_late(c.schedule);
  c.booking = book_training(c.run, c.schedule, 1);
  c.runner = std::make_unique<StageRunner>(c.run, RunMode::train, *c.device, c.booking.arena_bytes);
  c.runner->init_weights();
  for (int64_t s = 1; s <= kSteps; s++) {
    StepResult ra = a.step(s), rb = b.step(s), rc = c.step(s);
    EXPECT_EQ(ra.loss, rb.loss);
    EXPECT_EQ(ra.loss, rc.loss);
    EXPECT_EQ(ra.grad_norm, rb.grad_norm);
    EXPECT_EQ(ra.grad_norm, rc.grad_norm);
  }
  for (const char* what : {"", "exp_avg", "exp_avg_sq"}) {
    EXPECT_EQ(a.all(what), b.all(what)) << what;
    EXPECT_EQ(a.all(what), c.all(what)) << what;
  }
}

// What meta books is what the run's ledger, arena and counters say, to the byte and the FLOP.
TEST_P(EveryModel, MetaEqualsTheRun) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    Rig rig(run(3), schedule);
    rig.device->kernels().restart_counts();
    rig.runner->arena().ledger().restart_peaks();
    rig.step(1);
    const Ledger& real = rig.runner->arena().ledger();
    EXPECT_EQ(rig.booking.peak, real.peaks());
    EXPECT_EQ(rig.booking.at_peak, real.at_peak());
    EXPECT_EQ(rig.booking.peak_total, real.peak_total());
    EXPECT_EQ(rig.booking.total, rig.device->kernels().total());
    EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
    EXPECT_LE(rig.runner->arena().high_water(), rig.booking.arena_bytes);
    EXPECT_EQ(real.now(Bucket::activations), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryModel,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "qwen2", "qwen3"),
                                            ::testing::Values("f32", "bf16", "f16"), ::testing::Bool()));

// 16 bytes per parameter in f32, and in bf16 with bf16 gradients; 18 in bf16 and f16 with f32 gradients.
TEST(StageRunner, BytesPerParameter) {
  struct Case {
    const char *compute, *grads;
    int64_t bytes;
  };
  for (Case c :
       {Case{"f32", "f32", 16}, Case{"bf16", "bf16", 16}, Case{"bf16", "f32", 18}, Case{"f16", "f32", 18}}) {
    Rig rig(tiny_run("llama", c.compute, 1, c.grads));
    const Ledger& l = rig.runner->arena().ledger();
    int64_t state = l.now(Bucket::weights) + l.now(Bucket::grads) + l.now(Bucket::optimizer);
    EXPECT_EQ(state, c.bytes * rig.runner->params().numel) << c.compute << " " << c.grads;
  }
}

// Initial weights are functions of (seed, name, global element index), whatever draws them.
TEST(StageRunner, WeightsAreThoseOfTheirElements) {
  for (int threads : {1, 3}) {
    RunSpec run = tiny_run("gpt2", "f32", 1);
    run.model.vocab = 501;
    Rig rig(run, "1f1b", threads);
    for (const Param& p : rig.runner->params().params) {
      if (p.decl.init.kind != Init::Kind::normal) continue;
      std::vector<float> got(size_t(p.numel()));
      rig.runner->memory().read_param(p, "", got);
      uint64_t key = rng_key(uint64_t(run.train.seed), 0, p.decl.name);
      for (size_t i = 0; i < got.size(); i++)
        ASSERT_EQ(got[i], float(normal(key, i) * p.decl.init.std)) << p.decl.name << " " << i;
    }
  }
}

// Directional finite difference of the whole model's loss along its gradient.
TEST(StageRunner, GradientIsTheSlopeOfTheLoss) {
  for (auto [arch, vocab] : {std::pair("gpt2", 61),
                             {"llama", 61},
                             {"llama", 261},
                             {"qwen2", 61},
                             {"qwen3", 61}}) {  // 261: rows padded
    RunSpec run = tiny_run(arch, "f32", 2);
    run.model.vocab = vocab;
    run.optimizer.clip_norm = 0;
    Rig rig(run);
    rig.step(1);  // leaves the gradients of the weights before the update
    const FlatState& flat = rig.runner->flat();
    std::vector<float> g(static_cast<size_t>(rig.runner->params().numel));
    rig.device->download(g.data(), flat.grads);
    Rig at(run);
    std::vector<float> w0 = at.all("");
    double norm = 0;
    for (float x : g) norm += double(x) * x;
    norm = std::sqrt(norm);
    auto loss_at = [&](double h) {
      std::vector<float> w = w0;
      for (size_t i = 0; i < w.size(); i++) w[i] = float(w0[i] + h * g[i] / norm);
      for (const Param& p : at.runner->params().params)
        at.runner->memory().write_param(p, "", std::span(w).subspan(size_t(p.offset), size_t(p.numel())));
      double sum = 0;
      for (int64_t mb = 0; mb < 2; mb++)
        sum += at.runner->evaluator()
                   .evaluate(2, run.data.seq_len,
                             [&](int64_t, int64_t, const HostBatch& b) { test::random_batch(run, 1, mb, b); })
                   .sum;
      return sum / double(run.tokens_per_step());
    };
    double h = 5e-3;
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h) / norm, 1, 3e-3) << arch;
  }
}

TEST(StageRunner, NonFiniteIsNamedWithStepLayerAndOp) {
  Rig rig(tiny_run("llama", "bf16", 2));
  rig.step(1);
  std::vector<float> before = rig.all("");
  const Param* p = rig.runner->params().find("blocks.1.mlp.down.weight");
  ASSERT_NE(p, nullptr);
  std::vector<float> w(static_cast<size_t>(p->numel()));
  rig.runner->memory().read_param(*p, "", w);
  w[17] = std::numeric_limits<float>::infinity();
  rig.runner->memory().write_param(*p, "", w);
  rig.runner->weights_from_master();
  try {
    rig.step(2);
    FAIL() << "an infinite weight went unseen";
  } catch (const Error& e) {
    std::string msg = e.what();
    EXPECT_NE(msg.find("step 2"), std::string::npos) << msg;
    EXPECT_NE(msg.find("matmul in layer blocks.1.mlp"), std::string::npos) << msg;
  }
  // The weights did not move.
  std::vector<float> after = rig.all("");
  size_t differ = 0;
  for (size_t i = 0; i < before.size(); i++) differ += before[i] != after[i];
  EXPECT_EQ(differ, 1u);
}

TEST(StageRunner, StopsBetweenMicrobatchesAndKeepsTheWeights) {
  Rig rig(tiny_run("gpt2", "f32", 3));
  std::vector<float> before = rig.all("");
  rig.runner->watch().control = {.phase = {}, .stop = [] { return true; }};
  EXPECT_TRUE(rig.step(1).stopped);
  EXPECT_EQ(rig.all(""), before);
  EXPECT_EQ(rig.runner->arena().ledger().now(Bucket::activations), 0);
  rig.runner->watch().control = {};
  Rig other(tiny_run("gpt2", "f32", 3));
  EXPECT_EQ(rig.step(1).loss, other.step(1).loss);
  EXPECT_EQ(rig.all(""), other.all(""));
}

// Logits of the last row do not depend on what follows, and agree with the loss of training.
TEST(StageRunner, LogitsAgreeWithTheLoss) {
  for (const char* compute : {"f32", "bf16", "f16"}) {
    RunSpec run = tiny_run("llama", compute, 1);
    run.model.vocab = 261;  // the loss reads padded rows of logits, infer.logits rows as they are
    Rig rig(run);
    size_t rows = size_t(run.batch.micro * run.data.seq_len), seq = size_t(run.data.seq_len);
    std::vector<int32_t> tokens(rows), targets(rows), positions(rows);
    test::random_batch(run, 9, 0, {tokens, targets, positions});
    auto loss =
        rig.runner->evaluator().evaluate(1, run.data.seq_len, [&](int64_t, int64_t, const HostBatch& b) {
          for (size_t i = 0; i < seq; i++)
            b.tokens[i] = tokens[i], b.targets[i] = targets[i], b.positions[i] = int32_t(i);
        });
    Device& device = *rig.device;
    StageRunner infer(run, RunMode::infer, device, book_inference(run, 1));
    std::vector<float> part;
    for (const Param& p : rig.runner->params().params) {
      part.resize(size_t(p.numel()));
      rig.runner->memory().read_param(p, "", part);
      infer.memory().write_param(*infer.params().find(p.decl.name), "", part);
    }
    std::vector<float> logits;
    infer.evaluator().logits(std::span(tokens).first(seq), logits);
    double sum = 0;
    size_t v = size_t(run.model.vocab);
    for (size_t t = 0; t < seq; t++) {
      double z = 0;
      for (size_t j = 0; j < v; j++) z += std::exp(double(logits[t * v + j]));
      sum += std::log(z) - logits[t * v + size_t(targets[t])];
    }
    double tolerance = std::string(compute) == "f32" ? 1e-5 : 5e-3;
    EXPECT_NEAR(sum / loss.sum, 1, tolerance) << compute;
    // A shorter prompt gives the same row.
    std::vector<float> shorter;
    infer.evaluator().logits(std::span(tokens).first(7), shorter);
    for (size_t j = 0; j < v; j++)
      EXPECT_NEAR(shorter[6 * v + j], logits[6 * v + j], std::string(compute) == "f32" ? 1e-5 : 2e-2);
  }
}

}  // namespace
}  // namespace trireme
