// Intervals over seeds, and which samples are left out.
#include "tune/distill_report.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::test {
namespace {

SweepPoint point(double t, uint64_t seed, bool after, double pass) {
  return {.temperature = t, .seed = seed, .after = after, .pass = {{1, pass}}};
}

// Reference: mean 2, standard deviation 1, three values: 2 -+ 4.303 / sqrt(3).
TEST(DistillReport, IntervalsAreThoseOfStudentsT) {
  const SeedMean m = mean_over_seeds({1, 2, 3});
  EXPECT_DOUBLE_EQ(m.mean, 2);
  EXPECT_NEAR(m.high - m.mean, 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(m.mean - m.low, 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_TRUE(std::isnan(mean_over_seeds({5}).low));
}

TEST(DistillReport, EachSideHasItsOwnBestTemperature) {
  std::vector<SweepPoint> all;
  for (uint64_t seed : {1, 2, 3}) {
    const double noise = 0.001 * double(seed);
    all.push_back(point(0.5, seed, false, 0.30 + noise));
    all.push_back(point(1.0, seed, false, 0.20 + noise));
    all.push_back(point(0.5, seed, true, 0.25 + noise));
    all.push_back(point(1.0, seed, true, 0.40 + noise));
  }
  const std::vector<SweepGain> gains = gains_of(all);
  ASSERT_EQ(gains.size(), 1u);
  EXPECT_EQ(gains[0].best_before_t, 0.5);
  EXPECT_EQ(gains[0].best_after_t, 1.0);
  EXPECT_NEAR(gains[0].gain.mean, 0.10, 1e-12);
  EXPECT_TRUE(gains[0].shown());
  EXPECT_NE(gains_text(gains).find("a gain"), std::string::npos);
}

// A null result is reported as one.
TEST(DistillReport, NoiseIsNoGain) {
  std::vector<SweepPoint> all;
  for (uint64_t seed : {1, 2, 3}) {
    all.push_back(point(0.5, seed, false, 0.30));
    all.push_back(point(0.5, seed, true, seed == 1 ? 0.25 : 0.34));
  }
  const std::vector<SweepGain> gains = gains_of(all);
  EXPECT_FALSE(gains[0].shown());
  EXPECT_NE(gains_text(gains).find("no difference is shown"), std::string::npos) << gains_text(gains);
}

TEST(DistillReport, EmptySamplesAndStubsAreLeftOut) {
  for (const char* text : {"", " \n\t\r\n", "```python\n```"})
    EXPECT_EQ(kind_of_sample(text), SampleKind::empty) << text;
  for (const char* text :
       {"    pass\n\n", "...", "return", "    return None\n", "# to do", "def f(x): pass",
        "def f(x: int) -> int:\n", "raise NotImplementedError()", "```python\npass\n```\n"})
    EXPECT_EQ(kind_of_sample(text), SampleKind::stub) << text;
  // One line may be a whole answer.
  for (const char* text : {"    return n + 2\n", "```python\nreturn 1\n```\n", "def f(x): return x",
                           "x = 1\nreturn x", "pass\npass"})
    EXPECT_EQ(kind_of_sample(text), SampleKind::kept) << text;
}

}  // namespace
}  // namespace trireme::test
