// Muon in whole runs: what it takes is what was booked, every ZeRO stage trains the same, and it learns.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "optim/matrix_owners.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny.h"

namespace trireme {
namespace {

using test::Rig;
using test::tiny_run;

RunSpec muon_run(const char* arch, const char* compute, int64_t microbatches, const char* grads = "f32") {
  RunSpec r = tiny_run(arch, compute, microbatches, grads);
  r.optimizer.name = "muon", r.optimizer.lr = 1e-2, r.optimizer.adamw_lr = 3e-3;
  r.precision.reduce = compute == std::string("bf16") ? "bf16" : "f32";
  return r;
}

TEST(MuonRun, HiddenMatricesAreThoseOfBlocks) {
  Rig rig(muon_run("qwen3", "f32", 1));
  int hidden = 0;
  for (const Param& p : rig.runner->params().params) {
    const std::string& n = p.decl.name;
    const bool want =
        n.starts_with("blocks.") && n.ends_with(".weight") && n.find("norm") == std::string::npos;
    EXPECT_EQ(p.decl.hidden_matrix, want) << n;
    hidden += p.decl.hidden_matrix;
  }
  EXPECT_EQ(hidden, 2 * 7);
}

class MuonModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(All, MuonModels,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "qwen3"),
                                            ::testing::Values("f32", "bf16", "f16")));

TEST_P(MuonModels, MetaEqualsTheRunAndTheLossFalls) {
  auto [arch, compute] = GetParam();
  Rig rig(muon_run(arch, compute, 2));
  rig.device->kernels().restart_counts();
  rig.runner->arena().ledger().restart_peaks();
  const double first = rig.step(1).loss;
  const Ledger& real = rig.runner->arena().ledger();
  EXPECT_EQ(rig.booking.peak, real.peaks());
  EXPECT_EQ(rig.booking.at_peak, real.at_peak());
  EXPECT_EQ(rig.booking.total, rig.device->kernels().total());
  EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
  double last = 0;
  for (int64_t s = 2; s <= 20; s++) last = rig.step(s).loss;
  EXPECT_LT(last, first - 0.25);
  // A hidden matrix has one moment, all else two.
  int64_t hidden = 0;
  for (const Param& p : rig.runner->params().params) hidden += p.decl.hidden_matrix ? p.numel() : 0;
  const int64_t all = rig.runner->params().numel, master = compute == std::string("f32") ? 0 : 4;
  EXPECT_GT(hidden, all / 2);
  EXPECT_EQ(real.now(Bucket::optimizer), (master + 8) * all - 4 * hidden);
}

// What a rank holds after some steps, by parameter; the ranks' parts put together.
struct Trained {
  std::map<std::string, std::vector<float>> tensors;
  std::vector<double> losses;
  BucketBytes peak{};
  int64_t all_to_all = 0;
};

Trained train(RunSpec run, int dp, int zero, int64_t steps) {
  run.layout.dp = dp, run.layout.zero = zero;
  run.batch.global = dp * run.batch.micro;
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, 1);
  Trained out;
  std::mutex mutex;
  run_rank_threads(dp, "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
    CommSet comms(ranks, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, booking.arena_bytes, &comms);
    r.init_weights();
    r.arena().ledger().restart_peaks();
    const int64_t dp_rank = ranks.rank();
    auto fill = [&](int64_t step, int64_t mb, const HostBatch& b) {
      test::random_batch(run, step, mb * dp + dp_rank, b);
    };
    StepResult last;
    std::vector<double> losses;
    for (int64_t s = 1; s <= steps; s++) {
      last = r.step(schedule.ranks[0], s, run.tokens_per_step(), fill);
      losses.push_back(last.loss);
    }
    std::lock_guard lock(mutex);
    EXPECT_EQ(r.arena().ledger().peak(Bucket::comm), booking.peak[size_t(Bucket::comm)]);
    EXPECT_EQ(r.arena().ledger().peak(Bucket::optimizer), booking.peak[size_t(Bucket::optimizer)]);
    if (dp_rank == 0) {
      EXPECT_EQ(r.arena().ledger().peaks(), booking.peak);
      EXPECT_EQ(last.comm, booking.comm);
      out.losses = losses;
    }
    out.all_to_all += last.comm[size_t(Collective::all_to_all)].wire;
    for (const Param& p : r.params().params)
      for (std::string what : {"", "exp_avg", "exp_avg_sq"}) {
        if (p.decl.hidden_matrix && what == "exp_avg_sq") continue;
        const Range own = r.memory().owned(p);
        std::vector<float> part(size_t(own.size()));
        r.memory().read_param(p, what, part);
        std::vector<float>& whole = out.tensors[p.decl.name + "/" + what];
        whole.resize(size_t(p.numel()));
        std::copy(part.begin(), part.end(), whole.begin() + own.begin);
      }
  });
  return out;
}

// One microbatch a step: what is shared changes no bit; ten steps, odd sizes.
TEST(MuonRun, EveryZeroStageTrainsTheSame) {
  for (auto [compute, grads, dp] : {std::tuple("f32", "f32", 2), {"bf16", "bf16", 3}, {"f32", "f32", 4}}) {
    const RunSpec run = muon_run("llama", compute, 1, grads);
    const Trained whole = train(run, dp, 0, 10);
    EXPECT_EQ(whole.all_to_all, 0);
    for (int zero : {1, 2, 3}) {
      const Trained shared = train(run, dp, zero, 10);
      EXPECT_EQ(shared.losses, whole.losses) << compute << " dp " << dp << " zero " << zero;
      EXPECT_TRUE(shared.tensors == whole.tensors) << compute << " dp " << dp << " zero " << zero;
      EXPECT_GT(shared.all_to_all, 0);
    }
  }
}

// Steps until the mean loss of five steps is below a mark.
int64_t steps_to(const char* optimizer, double lr, int64_t seed, double mark) {
  RunSpec run = muon_run("llama", "f32", 2);
  run.optimizer.name = optimizer, run.optimizer.lr = lr, run.optimizer.adamw_lr = 0;
  run.optimizer.schedule = "constant", run.train.seed = seed;
  Rig rig(run);
  std::vector<double> losses;
  for (int64_t s = 1; s <= 150; s++) {
    losses.push_back(rig.step(s).loss);
    if (s < 5) continue;
    double mean = 0;
    for (size_t i = losses.size() - 5; i < losses.size(); i++) mean += losses[i] / 5;
    if (mean < mark) return s;
  }
  return 1000;
}

// Each at the best of three learning rates, three seeds: Muon needs no more steps than AdamW.
TEST(MuonRun, LearnsInNoMoreStepsThanAdamW) {
  for (int64_t seed : {1, 2, 3}) {
    auto best = [&](const char* name) {
      int64_t least = 1000;
      for (double lr : {3e-3, 1e-2, 3e-2}) least = std::min(least, steps_to(name, lr, seed, 0.8));
      return least;
    };
    const int64_t adamw = best("adamw"), muon = best("muon");
    fmt::print("seed {}: loss 0.8 after {} steps of AdamW, {} of Muon\n", seed, adamw, muon);
    EXPECT_LE(muon, adamw);
    EXPECT_LT(muon, 1000);
  }
}

// The names that optimizer.name may have.
struct OptimizerNames {
  std::span<const std::string_view> names;
  void operator()(std::string_view key, auto&, std::string_view, std::string_view, const Rule& rule = {}) {
    if (key == "name") names = rule.choices;
  }
};

// A name that the list alone knows is an error, not another optimizer.
TEST(MakeOptimizer, KnowsTheNamesOfTheList) {
  RunSpec run = tiny_run("llama", "f32", 1);
  OptimizerNames list;
  run.optimizer.visit(list);
  ASSERT_GE(list.names.size(), 2u);
  for (std::string_view name : list.names) {
    run.optimizer.name = name;
    Rig rig(run);
    EXPECT_TRUE(std::isfinite(rig.step(1).loss)) << name;
  }
  run.optimizer.name = "lion";
  try {
    Rig rig(run);
    FAIL() << "an optimizer was made";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "optimizer.name = \"lion\": no optimizer; use \"adamw\" or \"muon\"");
  }
}

}  // namespace
}  // namespace trireme
