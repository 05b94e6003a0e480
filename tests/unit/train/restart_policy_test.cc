// When a failed run is launched again: in virtual time.
#include "train/restart_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

constexpr RunFailure kLauncher{.by_itself = false, .code = 1};
constexpr RunFailure kOwn{.by_itself = true, .code = 1};

TEST(RestartPolicy, PausesGrowUntilACheckpointIsNewer) {
  RestartPolicy p({.per_hour = 100, .first_pause_s = 0.5, .most_pause_s = 6});
  std::vector<double> pauses;
  for (int i = 0; i < 6; i++) pauses.push_back(p.failed(kLauncher, {.saved = 20, .step = 25}, i).pause_s);
  EXPECT_EQ(pauses, (std::vector<double>{0.5, 1, 2, 4, 6, 6}));
  EXPECT_EQ(p.failed(kLauncher, {.saved = 20, .step = 29}, 10).pause_s, 6) << "a step is no checkpoint";
  EXPECT_EQ(p.failed(kLauncher, {.saved = 30, .step = 30}, 11).pause_s, 0.5);
  EXPECT_EQ(p.failed(kLauncher, {.saved = 30, .step = 30}, 12).pause_s, 1);
  RestartPolicy less({.per_hour = 100, .first_pause_s = 3, .most_pause_s = 2});
  EXPECT_EQ(less.failed(kLauncher, {}, 0).pause_s, 2) << "the longest pause is the longest";
  RestartPolicy none({.per_hour = 100, .first_pause_s = 0, .most_pause_s = 2});
  for (int i = 0; i < 5; i++) EXPECT_EQ(none.failed(kLauncher, {}, i).pause_s, 0);
}

// A failure of the environment never ends a run, but the budget does. The budget covers one hour.
TEST(RestartPolicy, TheBudgetIsOfAnHour) {
  RestartPolicy p({.per_hour = 3});
  for (int i = 0; i < 3; i++) EXPECT_EQ(p.failed(kLauncher, {}, i).within_hour, i + 1);
  const RestartDecision spent = p.failed(kLauncher, {}, 3599.9);
  EXPECT_FALSE(spent.again);
  EXPECT_EQ(spent.why_not, "that was relaunch 3 of 3 within an hour");
  EXPECT_TRUE(p.failed(kLauncher, {}, 3600).again) << "the first one is an hour ago";
  EXPECT_FALSE(p.failed(kLauncher, {}, 3600.5).again);
  for (int i = 0; i < 1000; i++) EXPECT_TRUE(p.failed(kLauncher, {}, 1e4 + 1300.0 * i).again) << i;
  RestartPolicy none({.per_hour = 0});
  EXPECT_FALSE(none.failed(kLauncher, {}, 0).again);
}

TEST(RestartPolicy, ARunThatFailsByItselfHasThreeTries) {
  RestartPolicy p({.per_hour = 100});
  const RunProgress at{.saved = 25, .step = 27};
  EXPECT_TRUE(p.failed(kOwn, at, 0).again);
  EXPECT_TRUE(p.failed(kLauncher, at, 1).again) << "other failures between do not count, nor do they excuse";
  EXPECT_TRUE(p.failed({.by_itself = false, .code = -9}, {.saved = 25, .step = 25}, 2).again);
  EXPECT_TRUE(p.failed(kOwn, at, 3).again);
  const RestartDecision d = p.failed(kOwn, at, 4);
  EXPECT_FALSE(d.again);
  EXPECT_EQ(d.why_not, "it failed 3 times in this way after step 27, with no checkpoint newer than step 25");
}

TEST(RestartPolicy, OtherStepsCodesAndCheckpointsAreOtherFailures) {
  RestartPolicy p({.per_hour = 1000});
  for (int i = 0; i < 50; i++) EXPECT_TRUE(p.failed(kOwn, {.saved = 0, .step = i}, i).again) << "other steps";
  RestartPolicy q({.per_hour = 1000});
  for (int code : {1, 5, -11, -6, 1, 5, -11, -6})
    EXPECT_TRUE(q.failed({true, code}, {0, 3}, 0).again) << code;
  EXPECT_FALSE(q.failed({true, -11}, {0, 3}, 0).again);
  RestartPolicy s({.per_hour = 1000});
  for (int i = 1; i < 50; i++)
    EXPECT_TRUE(s.failed(kOwn, {.saved = i, .step = 99}, i).again) << "a new checkpoint";
}

}  // namespace
}  // namespace trireme
