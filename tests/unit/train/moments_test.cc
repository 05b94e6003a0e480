// Runs with bf16 moments (precision.moments): checkpoints, memory, layouts, resumes and branches.
#include <gtest/gtest.h>

#include "ranks_run.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

RunSpec moments_run(const fs::path& folder, const char* name, const RanksLayout& layout, int64_t steps = 4) {
  RunSpec r = ranks_run(folder, layout, steps);
  r.train.dir = (folder / name).string();
  r.precision.moments = "bf16";
  return r;
}

// One microbatch per step, so that all stages of ZeRO have the same sums.
constexpr RanksLayout kOneMicrobatch = {.dp = 3, .zero = 0, .micro = 2};

DType type_of(const fs::path& run, const char* tensor) {
  const Checkpoint c = *find_newest(checkpoint_root(run)).newest;
  return c.find(tensor)->dtype;
}

// Runs and resumes on any stage of ZeRO are the run without them, bit for bit. Checkpoints hold bf16.
TEST(Bf16Moments, RunsAndResumesAreBitIdentical) {
  TempFolder tmp;
  train_here(moments_run(tmp.path(), "zero0", kOneMicrobatch));
  const Outcome want = numbers_of(tmp / "zero0");
  EXPECT_EQ(type_of(tmp / "zero0", "blocks.0.attn.q.weight/exp_avg"), DType::bf16);
  EXPECT_EQ(type_of(tmp / "zero0", "blocks.0.attn.q.weight/exp_avg_sq"), DType::bf16);
  EXPECT_EQ(type_of(tmp / "zero0", "blocks.0.attn.q.weight/master"), DType::f32);
  for (const int64_t zero : {1, 3}) {
    const std::string name = fmt::format("zero{}", zero);
    RanksLayout layout = kOneMicrobatch;
    layout.zero = zero;
    train_here(moments_run(tmp.path(), name.c_str(), layout));
    EXPECT_TRUE(numbers_of(tmp / name).tensors == want.tensors) << name;
    // Again from step 3, written by the other stage.
    fs::remove_all(checkpoint_root(tmp / name) / "step-00000004");
    layout.zero = 4 - zero;
    train_here(moments_run(tmp.path(), name.c_str(), layout));
    EXPECT_TRUE(numbers_of(tmp / name).tensors == want.tensors) << name << ", resumed";
  }
}

TEST(Bf16Moments, ArePartOfARunsIdentityAndABranchMayChangeThem) {
  TempFolder tmp;
  RunSpec run = moments_run(tmp.path(), "wide", {}, 3);
  run.precision.moments = "f32";
  train_here(run);
  run.precision.moments = "bf16";
  try {
    train_here(run);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("precision.moments: \"f32\" -> \"bf16\""), std::string::npos)
        << e.what();
  }
  run.train.branch = run.train.dir;
  run.train.dir = (tmp / "branch").string();
  run.train.steps = 5;
  train_here(run);
  EXPECT_EQ(type_of(tmp / "branch", "norm.weight/exp_avg"), DType::bf16);
}

TEST(Bf16Moments, TakeFourBytesLessInPlanAndRun) {
  TempFolder tmp;
  RunSpec small = resolve(moments_run(tmp.path(), "small", {.dp = 3, .zero = 1}, 2), {.native_bf16 = false});
  RunSpec wide = small;
  wide.precision.moments = "f32";
  const auto peak = [](const RunSpec& r) {
    return book_training(r, schedule_of(r), 1).peak[size_t(Bucket::optimizer)];
  };
  EXPECT_EQ(peak(wide), 2 * peak(small));  // compute in f32: no master copies, 8 bytes become 4
  std::optional<BucketBytes> ran;
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) { ran = m.peak; };
  train_here(small, hooks);
  ASSERT_TRUE(ran);
  EXPECT_EQ((*ran)[size_t(Bucket::optimizer)], peak(small));
}

}  // namespace
}  // namespace trireme::test
