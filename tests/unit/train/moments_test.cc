// Moments in bf16 (precision.moments): in a run's checkpoints and memory, and on any layout.
#include <gtest/gtest.h>

#include "ranks_run.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

RunSpec small_run(const fs::path& folder, const char* name, const RanksLayout& layout = {},
                  const char* moments = "bf16") {
  RunSpec r = ranks_run(folder, layout, 6);
  r.train.dir = (folder / name).string();
  r.precision.moments = moments;
  return r;
}

// The rounding is a function of (seed, step, name, element): no layout changes a bit, and a resume on another
// one neither.
TEST(Bf16Moments, AreTheSameOnEveryLayout) {
  TempFolder tmp;
  train_here(small_run(tmp.path(), "one"));
  const Outcome want = numbers_of(tmp / "one");
  const Checkpoint c = *find_newest(checkpoint_root(tmp / "one")).newest;
  EXPECT_EQ(c.find("blocks.0.attn.q.weight/exp_avg")->dtype, DType::bf16);
  EXPECT_EQ(c.find("blocks.0.attn.q.weight/exp_avg_sq")->dtype, DType::bf16);
  EXPECT_EQ(c.find("blocks.0.attn.q.weight/master")->dtype, DType::f32);
  for (const RanksLayout& layout : {RanksLayout{.dp = 3, .zero = 1}, {.dp = 3, .zero = 3}}) {
    const std::string name = fmt::format("zero{}", layout.zero);
    train_here(small_run(tmp.path(), name.c_str(), layout));
    EXPECT_TRUE(numbers_of(tmp / name).tensors == want.tensors) << name;
  }
  fs::remove_all(checkpoint_root(tmp / "zero1") / "step-00000006");
  train_here(small_run(tmp.path(), "zero1"));  // from step 3, on one rank
  EXPECT_TRUE(numbers_of(tmp / "zero1").tensors == want.tensors);
  train_here(small_run(tmp.path(), "wide", {}, "f32"));
  EXPECT_FALSE(numbers_of(tmp / "wide").tensors == want.tensors);
}

TEST(Bf16Moments, TakeFourBytesLessInPlanAndRun) {
  TempFolder tmp;
  RunSpec wide = small_run(tmp.path(), "wide", {.dp = 3, .zero = 1}, "f32");
  RunSpec small = small_run(tmp.path(), "small", {.dp = 3, .zero = 1});
  auto booked = [](RunSpec& r) {
    r = resolve(r, {.native_bf16 = false});
    return book_training(r, schedule_of(r), 1);
  };
  const Booking a = booked(wide), b = booked(small);
  const size_t o = size_t(Bucket::optimizer);
  EXPECT_EQ(a.peak[o], 2 * b.peak[o]);  // compute in f32: no master copies, 8 bytes become 4
  std::optional<BucketBytes> ran;
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) { ran = m.peak; };
  train_here(small, hooks);
  ASSERT_TRUE(ran);
  EXPECT_EQ((*ran)[o], b.peak[o]);
}

}  // namespace
}  // namespace trireme::test
