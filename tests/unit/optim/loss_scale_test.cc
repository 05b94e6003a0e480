#include "optim/loss_scale.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(LossScale, FallsAtEachOverflowAndDoublesAfterGoodStepsInARow) {
  LossScale s({.initial = 1024, .growth_interval = 3});
  EXPECT_TRUE(s.overflow());
  EXPECT_TRUE(s.overflow());
  EXPECT_EQ(s.state(), (LossScaleState{.scale = 256, .good_steps = 0, .skipped = 2}));
  s.good_step(), s.good_step();
  EXPECT_TRUE(s.overflow());  // begins the count of good steps anew
  s.good_step(), s.good_step();
  EXPECT_EQ(s.state(), (LossScaleState{.scale = 128, .good_steps = 2, .skipped = 3}));
  s.good_step();
  EXPECT_EQ(s.state(), (LossScaleState{.scale = 256, .good_steps = 0, .skipped = 3}));
}

TEST(LossScale, EndsAtTheLeastAndTheMost) {
  LossScale s({.initial = 10, .backoff = 0.25, .growth_interval = 1, .least = 1.5});
  EXPECT_TRUE(s.overflow());
  EXPECT_EQ(s.scale(), 2.5);
  EXPECT_TRUE(s.overflow());
  EXPECT_EQ(s.scale(), 1.5);
  EXPECT_FALSE(s.overflow());
  EXPECT_EQ(s.state(), (LossScaleState{.scale = 1.5, .good_steps = 0, .skipped = 2}));
  for (int i = 0; i < 200; i++) s.good_step();
  EXPECT_EQ(s.scale(), LossScale::kMost);
}

TEST(LossScale, AFixedScaleAndNoneNeverMove) {
  for (LossScale s : {LossScale({.dynamic = false, .initial = 512, .growth_interval = 1}), LossScale()}) {
    LossScaleState before = s.state();
    s.good_step();
    EXPECT_FALSE(s.overflow());
    EXPECT_EQ(s.state(), before);
    EXPECT_EQ(s.scale(), s.active() ? 512 : 1);
    EXPECT_TRUE(s.plausible(before));
    EXPECT_FALSE(s.plausible({.scale = 256}));
  }
}

// What a checkpoint may claim.
TEST(LossScale, KnowsWhatCannotHaveBeen) {
  LossScale s({.initial = 1024, .growth_interval = 5, .least = 2});
  EXPECT_TRUE(s.plausible({.scale = 2, .good_steps = 4, .skipped = 7}));
  for (LossScaleState bad :
       {LossScaleState{.scale = 1}, LossScaleState{.scale = 1e30},
        LossScaleState{.scale = 4, .good_steps = 5}, LossScaleState{.scale = 4, .good_steps = -1},
        LossScaleState{.scale = 4, .skipped = -1}, LossScaleState{.scale = 0.0 / 0.0}})
    EXPECT_FALSE(s.plausible(bad)) << bad.scale << " " << bad.good_steps << " " << bad.skipped;
  s.restore({.scale = 2, .good_steps = 4, .skipped = 7});
  s.good_step();
  EXPECT_EQ(s.state(), (LossScaleState{.scale = 4, .good_steps = 0, .skipped = 7}));
}

}  // namespace
}  // namespace trireme
