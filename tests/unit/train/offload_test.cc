// Optimizer state in a file: checkpoints are the same to the bit, and a run goes on from one to the other.
#include <gtest/gtest.h>

#include "base/error.h"
#include "far_device.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

RunSpec spec_of_offload(const fs::path& folder, const char* compute, int64_t dp, int64_t zero, bool away) {
  RunSpec r = tiny_run(folder, 8);
  r.precision.compute = compute, r.train.check_every = 3;
  r.layout.dp = dp, r.layout.zero = zero;
  r.batch.micro = 2, r.batch.global = 2 * dp;
  if (away) r.layout.offload = "state", r.layout.offload_mb = 0.05;
  return r;
}

TEST(StateInAFile, LeavesTheSameRun) {
  for (const auto& [compute, dp, zero, async] :
       {std::tuple("bf16", 1, 0, false), {"f32", 1, 0, true}, {"bf16", 2, 3, true}, {"f32", 3, 1, false}}) {
    SCOPED_TRACE(fmt::format("{} dp {} zero {} async {}", compute, dp, zero, async));
    TempFolder in_memory, in_file, in_turns;
    train_here(spec_of_offload(in_memory.path(), compute, dp, zero, false));
    const Outcome want = outcome_of(in_memory / "run");
    RunSpec away = spec_of_offload(in_file.path(), compute, dp, zero, true);
    away.train.async_save = async;
    train_here(away);
    const Outcome got = outcome_of(in_file / "run");
    EXPECT_EQ(got.step, 8);
    EXPECT_TRUE(got.tensors == want.tensors);
    EXPECT_FALSE(got.tensors.empty());
    // Left after steps 2 and 5, and gone on in the other way each time.
    bool file = true;
    for (int64_t stop : {2, 5, 8}) {
      TrainHooks hooks;
      hooks.step = [&](const StepMetrics& m) {
        if (m.step == stop && stop < 8) request_interrupt();
      };
      train_here(spec_of_offload(in_turns.path(), compute, dp, zero, file), hooks);
      clear_interrupt();
      file = !file;
    }
    EXPECT_TRUE(outcome_of(in_turns / "run").tensors == want.tensors);
  }
}

// Whole runs on devices whose memory the processor does not reach: trained, evaluated, compared, saved beside
// training or not, interrupted and gone on with, with state in the host's memory, in a file, and not away, by
// turns. Checkpoints are those of a CPU to the bit.
TEST(StateInTheHostsMemory, LeavesTheSameRun) {
  for (const auto& [compute, dp, zero, async] :
       {std::tuple("bf16", 1, 0, false), {"f32", 2, 1, true}, {"bf16", 2, 3, false}, {"f16", 3, 2, true}}) {
    SCOPED_TRACE(fmt::format("{} dp {} zero {} async {}", compute, dp, zero, async));
    TempFolder near, far;
    train_here(spec_of_offload(near.path(), compute, dp, zero, false));
    const Outcome want = outcome_of(near / "run");
    int turn = 0;
    for (int64_t stop : {2, 5, 8}) {
      RunSpec run = spec_of_offload(far.path(), compute, dp, zero, turn < 2);
      if (turn == 0) run.layout.offload_to = "host";
      run.train.async_save = async;
      TrainOptions options;
      options.device = [] { return make_far_device({.threads = 1}); };
      TrainHooks hooks;
      hooks.step = [&](const StepMetrics& m) {
        if (m.step == stop && stop < 8) request_interrupt();
      };
      train_here(run, hooks, options);
      clear_interrupt();
      turn++;
    }
    const Outcome got = outcome_of(far / "run");
    EXPECT_EQ(got.step, 8);
    EXPECT_FALSE(got.tensors.empty());
    EXPECT_TRUE(got.tensors == want.tensors);
  }
}

}  // namespace
}  // namespace trireme::test
