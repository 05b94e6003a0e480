// Losses by hand: steps of 2 s, a save of 1 s behind every fifth.
#include "sim/failure.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr FailurePlan kByHand = {.step_s = 2, .every = 5, .save_s = 1, .notice_s = 10, .restart_s = 100};

TEST(Failure, InAStep) {
  // 22 s: two saves are done; into the third period by 3.5 s, in step 12.
  const FailureLoss l = loss_of(kByHand, 25.5);
  EXPECT_EQ(l.step, 12);
  EXPECT_DOUBLE_EQ(l.into_step_s, 1.5);
  EXPECT_FALSE(l.in_save);
  EXPECT_EQ(l.saved_step, 10);
  EXPECT_DOUBLE_EQ(l.again_s, 3.5);
  EXPECT_DOUBLE_EQ(l.lost_s(), 113.5);
}

TEST(Failure, WhileSavingTheSaveBeforeCounts) {
  const FailureLoss l = loss_of(kByHand, 21.25);
  EXPECT_TRUE(l.in_save);
  EXPECT_EQ(l.step, 10);
  EXPECT_EQ(l.saved_step, 5);
  EXPECT_DOUBLE_EQ(l.again_s, 10.25);
}

TEST(Failure, WithoutSavesAllIsLost) {
  const FailureLoss l = loss_of({.step_s = 2, .notice_s = 1, .restart_s = 5}, 33);
  EXPECT_EQ(l.step, 17);
  EXPECT_EQ(l.saved_step, 0);
  EXPECT_DOUBLE_EQ(l.lost_s(), 39);
}

}  // namespace
}  // namespace trireme
