// Optimizer state in a file: checkpoints are the same to the bit, and a run goes on from one to the other.
#include <gtest/gtest.h>

#include "base/error.h"
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

}  // namespace
}  // namespace trireme::test
