#include "base/learning_curve.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(LearningCurve, DrawsMeansBetweenTheMarks) {
  LearningCurve c(8, 2, 6, {{"bigram", 3}, {"unigram", 5}}, 4, 41);
  EXPECT_EQ(c.header(),
            "  done    loss  2         3         4         5         6\n"
            "                       bigram              unigram       ");
  EXPECT_EQ(c.add(1, 6.5), "");
  EXPECT_EQ(c.add(2, 5.5), "  25 %    6.00  :         |         :         |         *");
  EXPECT_EQ(c.add(3, 5), "");
  EXPECT_EQ(c.add(4, 4), "  50 %    4.50  :         |         :    *    |         :");
  EXPECT_EQ(c.add(5, 1), "");
  EXPECT_EQ(c.add(6, 1),
            "  75 %    1.00  *         |         :         |         :");  // outside: at the edge
  EXPECT_EQ(c.add(7, 3), "");
  EXPECT_EQ(c.add(8, 3), " 100 %    3.00  :         *         :         |         :");
}

// A run of fewer steps than rows prints one row per step; a resumed run starts anywhere.
TEST(LearningCurve, FewStepsAndResumedRuns) {
  LearningCurve few(3, 0, 1, {}, 20, 11);
  for (int64_t step : {1, 2, 3}) EXPECT_NE(few.add(step, 0.5), "");
  LearningCurve resumed(100, 0, 1, {}, 20, 11);
  EXPECT_EQ(resumed.add(42, 0.5), "");
  EXPECT_EQ(resumed.add(43, 0.5), "");
  EXPECT_EQ(resumed.add(44, 0.5), "");
  EXPECT_EQ(resumed.add(45, 0.5), "  45 %    0.50  :    *    :");
}

TEST(LearningCurve, NamesWithoutRoomFollowTheLine) {
  LearningCurve c(10, 2, 6, {{"bigram", 3}, {"unigram", 3.1}}, 4, 41);
  EXPECT_NE(c.header().find("(unigram 3.10)"), std::string::npos);
}

}  // namespace
}  // namespace trireme
