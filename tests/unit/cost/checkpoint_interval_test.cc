#include "cost/checkpoint_interval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace trireme {
namespace {

TEST(DalyInterval, KnownValues) {
  // Saves of 60 s, a failure every 3 hours: Young's 1138 s, Daly's 1099 s.
  EXPECT_NEAR(daly_interval(60, 3 * 3600), 1099, 0.5);
  EXPECT_NEAR(std::sqrt(2.0 * 60 * 3 * 3600), 1138, 0.5);
  EXPECT_EQ(daly_interval(0, 100), 0);
  EXPECT_EQ(daly_interval(300, 100), 100);  // a save takes longer than two failures are apart
  EXPECT_NEAR(daly_interval(200 - 1e-9, 100), 2 * 100 * (1 + 1.0 / 3 + 1.0 / 9) - 200, 1e-4);
}

// Seconds that a run of `work` seconds takes, failures drawn at random, the k-th after an exponential time.
double simulated(double interval, double cost, double mtbf, double restart, double work, uint64_t seed) {
  uint64_t failure = 0;
  auto next = [&] { return -mtbf * std::log(1 - uniform(seed, failure++)); };
  double now = 0, until = next(), done = 0;
  while (done < work) {
    const double segment = std::min(interval, work - done) + cost;
    if (now + segment <= until) {
      now += segment, done += segment - cost;
      continue;
    }
    now = until;
    // A restart can fail as well.
    for (until = now + next(); now + restart > until; until = now + next()) now = until;
    now += restart;
  }
  return now;
}

// The same failures whatever the interval: the waste at Daly's is within 1 % of that of the best of a grid.
TEST(DalyInterval, WastesAtMostOnePercentMoreThanTheBestOfAGrid) {
  struct Case {
    double cost, mtbf, restart;
  };
  for (const Case& c : {Case{60, 3 * 3600, 120}, Case{20, 3 * 3600, 30}, Case{30, 600, 10}, Case{5, 60, 0}}) {
    const double daly = daly_interval(c.cost, c.mtbf), work = 3000 * c.mtbf;
    auto waste = [&](double interval) {
      double sum = 0;
      for (uint64_t seed : {1, 2})
        sum += 1 - work / simulated(interval, c.cost, c.mtbf, c.restart, work, seed);
      return sum / 2;
    };
    double best = 1;
    for (double factor = 0.4; factor < 2.5; factor *= 1.15) best = std::min(best, waste(daly * factor));
    const double at_daly = waste(daly);
    EXPECT_LT(at_daly, 1.01 * best) << c.cost << " " << c.mtbf;
    EXPECT_NEAR(at_daly, checkpoint_waste(daly, c.cost, c.mtbf, c.restart), 0.02 * at_daly);
    // The test can fail: at a third and at three times the interval the waste is clearly more.
    EXPECT_GT(waste(daly / 3), 1.05 * best);
    EXPECT_GT(waste(daly * 3), 1.05 * best);
  }
}

TEST(CheckpointSteps, WholeStepsAndNoMoreThanOneSaveAtATime) {
  EXPECT_EQ(checkpoint_steps(100, 0, 3), 33);
  EXPECT_EQ(checkpoint_steps(1, 0, 3), 1);
  EXPECT_EQ(checkpoint_steps(10, 100, 2), 50);
  EXPECT_EQ(checkpoint_steps(10, 0, 0), 1);
  EXPECT_EQ(checkpoint_steps(std::numeric_limits<double>::infinity(), 0, 1e-6), 1000000000000);
}

}  // namespace
}  // namespace trireme
