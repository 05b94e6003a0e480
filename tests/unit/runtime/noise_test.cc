// The noise scale as the runner measures it, and that measuring changes no bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "runtime/rank_threads.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "tiny.h"

namespace trireme {
namespace {

using test::Rig;
using test::tiny_run;

TEST(NoiseScaleOfARun, SmallIsTheFirstMicrobatchAlone) {
  for (const char* compute : {"f32", "bf16", "f16"}) {
    RunSpec run = tiny_run("llama", compute, 4), alone = tiny_run("llama", compute, 1);
    run.train.noise_scale = 2, run.precision.initial_scale = alone.precision.initial_scale = 1024;
    run.optimizer.lr = alone.optimizer.lr = 0;
    Rig whole(run), first(alone);
    EXPECT_FALSE(whole.step(1).noise);
    first.step(1);
    StepResult r = whole.step(2), one = first.step(2);
    ASSERT_TRUE(r.noise);
    EXPECT_EQ(r.noise->small_sequences, 2);
    EXPECT_EQ(r.noise->big_sequences, 8);
    EXPECT_NEAR(r.noise->small, one.grad_norm * one.grad_norm, 1e-2 * r.noise->small);
    EXPECT_DOUBLE_EQ(r.noise->big, r.grad_norm * r.grad_norm);
  }
}

TEST(NoiseScaleOfARun, MeasuringChangesNothing) {
  RunSpec run = tiny_run("gpt2", "bf16", 3);
  Rig plain(run);
  run.train.noise_scale = 1;
  Rig measured(run);
  for (int64_t s = 1; s <= 4; s++) EXPECT_EQ(plain.step(s).loss, measured.step(s).loss);
  for (const char* what : {"", "exp_avg", "exp_avg_sq"}) EXPECT_EQ(plain.all(what), measured.all(what));
}

// Two replicas: under every ZeRO stage the small batches are theirs, or their microbatches.
TEST(NoiseScaleOfARun, OfReplicas) {
  for (int64_t microbatches : {1, 2})
    for (int zero : {0, 1, 2, 3}) {
      RunSpec run = tiny_run("llama", "f32", 2 * microbatches);
      run.layout.dp = 2, run.layout.zero = zero, run.train.noise_scale = 1, run.optimizer.lr = 0;
      run.precision.reduce = "f32";
      const Schedule schedule = schedule_of(run);
      const int64_t bytes = book_training(run, schedule, 1).arena_bytes;
      // Each microbatch alone: its squared norm.
      std::vector<double> norms;
      RunSpec alone = tiny_run("llama", "f32", 1);
      alone.optimizer.lr = 0;
      for (int64_t mb = 0; mb < 2 * microbatches; mb++) {
        Rig rig(alone);
        auto fill = [&](int64_t step, int64_t, const HostBatch& b) { test::random_batch(run, step, mb, b); };
        const double n = rig.runner->step(rig.schedule.ranks[0], 1, alone.tokens_per_step(), fill).grad_norm;
        norms.push_back(n * n);
      }
      double mean = 0;
      for (double n : norms) mean += n / double(norms.size());
      run_rank_threads(2, "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
        CommSet comms(ranks, mesh_of(run.layout));
        StageRunner r(run, RunMode::train, device, bytes, &comms);
        r.init_weights();
        const int64_t dp_rank = ranks.rank();
        auto fill = [&](int64_t step, int64_t mb, const HostBatch& b) {
          test::random_batch(run, step, mb * 2 + dp_rank, b);
        };
        StepResult s = r.step(schedule.ranks[0], 1, run.tokens_per_step(), fill);
        ASSERT_TRUE(s.noise);
        EXPECT_DOUBLE_EQ(s.noise->big, s.grad_norm * s.grad_norm);
        if (zero >= 2 || microbatches == 1) {
          EXPECT_EQ(s.noise->small_sequences, 2);
          EXPECT_NEAR(s.noise->small, mean, 1e-5 * mean) << zero;
        } else {
          EXPECT_EQ(s.noise->small_sequences, 4);
          EXPECT_LT(s.noise->small, mean);
        }
      });
    }
}

// Sequences drawn from a pool of three: the mean gradient and the trace of the covariance are known, from
// each one's gradient alone, and so is the noise scale.
constexpr int64_t kPool = 3;

RunSpec planted_run(const LayoutSpec& layout, const std::string& arch, int64_t microbatches) {
  RunSpec r = tiny_run(arch, "f32", 1);
  r.model.heads = r.model.kv_heads = 4, r.model.hidden = 32, r.model.init_std = 0.1f;
  if (r.model.moe()) r.model.experts = 4, r.model.experts_per_token = 2, r.model.moe_ffn = 20;
  r.model.tied = false;
  r.layout = layout;
  r.data.seq_len = 16;
  r.model.finish(r.data.seq_len);
  r.batch = {.global = layout.dp * microbatches, .micro = 1};
  r.precision.reduce = "f32";
  r.optimizer.lr = 0, r.train.noise_scale = 1;
  return r;
}

void fill_from_pool(const RunSpec& run, int64_t number, const HostBatch& b) {
  test::random_batch(run, 1, number, b);
}

NoiseEstimate truth_of(RunSpec run) {
  run.layout = {}, run.batch = {.global = 1, .micro = 1}, run.train.noise_scale = 0;
  std::vector<std::vector<float>> each;
  for (int64_t s = 0; s < kPool; s++) {
    Rig rig(run);
    rig.runner->step(rig.schedule.ranks[0], 1, run.tokens_per_step(),
                     [&](int64_t, int64_t, const HostBatch& b) { fill_from_pool(run, s, b); });
    std::vector<float>& g = each.emplace_back();
    for (const Param& p : rig.runner->params().params)
      g.insert(g.end(), p.grad.as<float>(), p.grad.as<float>() + p.numel());
  }
  NoiseEstimate t;
  for (size_t i = 0; i < each[0].size(); i++) {
    double mean = 0;
    for (const auto& g : each) mean += double(g[i]) / kPool;
    t.squared += mean * mean;
    for (const auto& g : each) t.trace += (double(g[i]) - mean) * (double(g[i]) - mean) / kPool;
  }
  return t;
}

// Every batch that can be drawn, once: the mean of the estimates is what they expect, with no error of
// sampling.
NoiseEstimate measured(const RunSpec& run) {
  const Schedule schedule = schedule_of(run);
  int64_t batches = 1;
  for (int64_t i = 0; i < run.batch.global; i++) batches *= kPool;
  NoiseEstimate out;
  std::mutex mutex;
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
    const Mesh mesh = mesh_of(run.layout);
    const int stage = mesh.coord(ranks.rank(), Axis::pp);
    const Booking booking = book_stage(run, schedule, 1, {}, stage);
    CommSet comms(ranks, mesh);
    StageRunner r(run, RunMode::train, device, booking.arena_bytes, &comms);
    r.init_weights();
    r.arena().ledger().restart_peaks();
    NoiseEstimate mean;
    for (int64_t step = 1; step <= batches; step++) {
      auto fill = [&](int64_t s, int64_t mb, const HostBatch& b) {
        int64_t digits = s - 1;
        for (int64_t i = 0; i < mb * run.layout.dp + mesh.coord(ranks.rank(), Axis::dp); i++) digits /= kPool;
        fill_from_pool(run, digits % kPool, b);
      };
      const StepResult s = r.step(schedule.ranks[size_t(stage)], step, run.tokens_per_step(), fill);
      ASSERT_TRUE(s.noise);
      for (const auto& sample : {s.noise, s.noise_experts})
        if (sample) {
          const NoiseEstimate e = estimate_of(*sample);
          mean.squared += e.squared / double(batches), mean.trace += e.trace / double(batches);
        }
    }
    std::lock_guard lock(mutex);
    if (ranks.rank() == 0) out = mean;
    EXPECT_EQ(r.arena().ledger().peaks(), booking.peak);
  });
  return out;
}

struct Planted {
  const char* arch;
  LayoutSpec layout;
  int64_t microbatches = 1;
};

// Right to 5 % is asked; without an error of sampling what is left is rounding.
TEST(NoiseScaleOfARun, FindsWhatWasPlanted) {
  std::map<std::string, NoiseEstimate> truth;
  for (const Planted& p :
       {Planted{"llama", {.dp = 2}},
        {"llama", {.dp = 2, .tp = 2}},
        {"llama", {.dp = 2, .tp = 2, .sequence = true, .zero = 3}, 2},
        {"llama", {.tp = 4, .sequence = true}, 3},  // the first microbatch, summands not added
        {"llama", {.dp = 2, .cp = 2}},
        {"gpt2", {.cp = 4, .zero = 2}, 2},
        {"llama", {.dp = 2, .pp = 2, .zero = 1}, 2},
        {"gpt2", {.tp = 2, .pp = 2, .schedule = "zb-h1"}, 3},
        {"mixtral", {.dp = 2, .ep = 2}, 2},  // experts: the first microbatch of both replicas
        {"mixtral", {.dp = 4, .ep = 2}},
        {"mixtral", {.dp = 4, .ep = 2, .zero = 2}},
        {"mixtral", {.dp = 2, .tp = 2}},  // experts on four ranks, two a replica
        {"mixtral", {.dp = 2, .tp = 2, .ep = 2, .zero = 3}, 2},
        {"mixtral", {.dp = 2, .pp = 2, .cp = 2, .ep = 2}}}) {
    if (test::kSanitized && p.layout.dp * p.microbatches > 3) continue;  // 81 batches each
    const RunSpec run = planted_run(p.layout, p.arch, p.microbatches);
    refuse_unsupported(run);
    if (!truth.contains(p.arch)) truth[p.arch] = truth_of(run);
    const NoiseEstimate want = truth[p.arch], got = measured(run);
    const double ratio = got.trace / got.squared / (want.trace / want.squared);
    fmt::print("{} dp {} tp {} cp {} pp {} ep {} zero {}: noise scale {:.4f} of {:.4f} planted\n", p.arch,
               p.layout.dp, p.layout.tp, p.layout.cp, p.layout.pp, p.layout.ep, p.layout.zero,
               got.trace / got.squared, want.trace / want.squared);
    EXPECT_NEAR(ratio, 1, 1e-3);
    EXPECT_NEAR(got.squared / want.squared, 1, 1e-3);
  }
}

// Measuring moves no bit beside any axis.
TEST(NoiseScaleOfARun, MeasuringChangesNothingBesideOtherAxes) {
  for (const Planted& p : {Planted{"llama", {.dp = 2, .cp = 2, .zero = 2}, 2},
                           {"llama", {.tp = 4, .sequence = true}, 3},
                           {"mixtral", {.dp = 2, .tp = 2, .ep = 2}, 2}}) {
    std::vector<std::vector<double>> losses;
    for (int64_t every : {0, 1}) {
      RunSpec run = planted_run(p.layout, p.arch, p.microbatches);
      run.optimizer.lr = 1e-2, run.train.noise_scale = every;
      const Schedule schedule = schedule_of(run);
      const int64_t bytes = book_training(run, schedule, 1).arena_bytes;
      std::vector<double>& mine = losses.emplace_back();
      run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
        CommSet comms(ranks, mesh_of(run.layout));
        StageRunner r(run, RunMode::train, device, bytes, &comms);
        r.init_weights();
        const int replica = comms.mesh().coord(ranks.rank(), Axis::dp);
        auto fill = [&](int64_t step, int64_t mb, const HostBatch& b) {
          test::random_batch(run, step, mb * run.layout.dp + replica, b);
        };
        for (int64_t s = 1; s <= 4; s++) {
          const double loss = r.step(schedule.ranks[0], s, run.tokens_per_step(), fill).loss;
          if (ranks.rank() == 0) mine.push_back(loss);
        }
      });
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

}  // namespace
}  // namespace trireme
