#include "optim/spikes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

SpikeDetector detector(int64_t limit = 3) {
  return SpikeDetector({.active = true, .z = 6, .window = 8, .limit = limit});
}
void feed(SpikeDetector& d, int steps) {
  for (int i = 0; i < steps; i++) d.updated(3 + 0.01 * (i % 4), 1 + 0.1 * (i % 3));
}

TEST(SpikeDetector, WithoutAPolicySkipsNothing) {
  SpikeDetector d;
  for (int i = 0; i < 20; i++) d.updated(1, 1);
  EXPECT_FALSE(d.judge(100, 100).skip);
  EXPECT_FALSE(d.judge(std::nan(""), 1).skip);
  EXPECT_FALSE(d.judge(std::nan(""), 1).finite);
  EXPECT_EQ(d.state(), SpikeState());
}

// By hand: losses 3, 3.01, 3.02, 3.03 twice; median 3.02, deviations 0.02, 0.01, 0, 0.01, ...: MAD 0.01. The
// least deviation, 0.5 % of the median, is larger.
TEST(SpikeDetector, ScoresAreRobust) {
  SpikeDetector d = detector();
  feed(d, 3);
  EXPECT_FALSE(d.judge(100, 100).skip) << "before half a window no value is an outlier";
  feed(d, 8);
  const SpikeVerdict v = d.judge(3.2, 1);
  EXPECT_NEAR(v.loss_median, 3.02, 1e-12);
  EXPECT_NEAR(v.loss_z, 0.18 / (0.005 * 3.02), 1e-9);
  EXPECT_TRUE(v.skip);
  EXPECT_FALSE(d.judge(3.1, 1).skip);
  EXPECT_FALSE(d.judge(0.1, 0.01).skip) << "only values above the median are outliers";
  EXPECT_TRUE(d.judge(3, 10).skip);
  // One outlier in the window hides no other.
  d.updated(50, 50);
  EXPECT_TRUE(d.judge(3.4, 1).skip);
}

TEST(SpikeDetector, AFewInARowAreSkippedThenAccepted) {
  SpikeDetector d = detector(3);
  feed(d, 8);
  for (int i = 0; i < 3; i++) {
    EXPECT_TRUE(d.judge(9, 1).skip) << i;
    d.skipped();
  }
  EXPECT_FALSE(d.judge(9, 1).skip);
  EXPECT_FALSE(d.judge(INFINITY, 1).skip);
  EXPECT_FALSE(d.judge(INFINITY, 1).finite);
  d.updated(9, 1);
  EXPECT_EQ(d.state().losses, (std::vector<double>{9})) << "the window starts afresh";
  EXPECT_EQ(d.state().in_a_row, 0);
  EXPECT_EQ(d.state().skipped, 3);
  EXPECT_TRUE(d.judge(1, NAN).skip) << "without a window what is not finite is still skipped";
}

TEST(SpikeDetector, RestoresAWindowOfAnotherLength) {
  SpikeDetector d = detector();
  SpikeState s;
  for (int i = 0; i < 20; i++) s.losses.push_back(i), s.norms.push_back(i);
  s.skipped = 5;
  EXPECT_TRUE(d.plausible(s));
  d.restore(s);
  EXPECT_EQ(d.state().losses.size(), 8u);
  EXPECT_EQ(d.state().losses.back(), 19);
  EXPECT_EQ(d.state().skipped, 5);
  s.norms.pop_back();
  EXPECT_FALSE(d.plausible(s));
  s.norms.push_back(NAN);
  EXPECT_FALSE(d.plausible(s));
}

}  // namespace
}  // namespace trireme
