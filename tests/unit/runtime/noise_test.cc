// The noise scale as the runner measures it, and that measuring changes no bit.
#include <gtest/gtest.h>

#include "runtime/rank_threads.h"
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

}  // namespace
}  // namespace trireme
