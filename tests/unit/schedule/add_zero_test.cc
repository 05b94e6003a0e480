#include <gtest/gtest.h>

#include "base/error.h"
#include "complaint.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

std::string text_of(int zero, bool reshard, const Schedule& s) {
  return to_text(add_zero(s, zero, reshard));
}

// Written by hand from DESIGN section 4: what each stage of ZeRO needs, and when.
TEST(AddZero, SaysWhenReplicasTalk) {
  const Schedule s = add_step(one_f_one_b(1, 2));
  EXPECT_EQ(text_of(0, true, s), "0F0 0B0 0F1 0B1@1 0ReduceGrad@1 0Step\n");
  EXPECT_EQ(text_of(1, true, s), text_of(0, true, s));
  EXPECT_EQ(text_of(2, true, s), "0F0 0B0@1 0ReduceGrad@1 0F1 0B1@2 0ReduceGrad@2 0Step\n");
  EXPECT_EQ(text_of(3, true, s),
            "0Unshard@1 0F0@1 0Reshard@1 0Unshard@2 0B0@2 0ReduceGrad@2 0Reshard@2 "
            "0Unshard@3 0F1@3 0Reshard@3 0Unshard@4 0B1@4 0ReduceGrad@4 0Reshard@4 0Step\n");
  EXPECT_EQ(text_of(3, false, s),
            "0Unshard@1 0F0@1 0Unshard@2 0B0@2 0ReduceGrad@2 0Reshard@2 "
            "0Unshard@3 0F1@3 0Unshard@4 0B1@4 0ReduceGrad@4 0Reshard@4 0Step\n");
}

// Split backwards: the gradient of the input uses weights, that of the weights is reduced.
TEST(AddZero, SplitBackwards) {
  const Schedule s = add_step(parse_schedule("0F0 0I0 0F1 0I1 0W0 0W1\n"));
  EXPECT_EQ(text_of(1, true, s), "0F0 0I0 0F1 0I1 0W0 0W1@1 0ReduceGrad@1 0Step\n");
  EXPECT_EQ(text_of(3, true, s),
            "0Unshard@1 0F0@1 0Reshard@1 0Unshard@2 0I0@2 0Reshard@2 0Unshard@3 0F1@3 0Reshard@3 "
            "0Unshard@4 0I1@4 0Reshard@4 0W0@5 0ReduceGrad@5 0W1@6 0ReduceGrad@6 0Step\n");
}

// Where W computes rows again it uses weights: one more gather each, whether F keeps its own or not.
TEST(AddZero, SplitBackwardsThatUseWeightsTwice) {
  const Schedule s = add_step(parse_schedule("0F0 0I0 0W0\n"));
  EXPECT_EQ(
      to_text(add_zero(s, 3, true, true)),
      "0Unshard@1 0F0@1 0Reshard@1 0Unshard@2 0I0@2 0Reshard@2 0Unshard@3 0W0@3 0ReduceGrad@3 0Reshard@3 "
      "0Step\n");
  EXPECT_EQ(to_text(add_zero(s, 3, false, true)),
            "0Unshard@1 0F0@1 0Unshard@2 0I0@2 0Reshard@2 0Unshard@3 0W0@3 0ReduceGrad@3 0Reshard@3 0Step\n");
  EXPECT_EQ(to_text(add_zero(s, 2, true, true)), to_text(add_zero(s, 2, true)));
}

TEST(AddZero, IsValidAndReadsBackForEveryShape) {
  for (int zero = 0; zero <= 3; zero++)
    for (bool reshard : {true, false})
      for (int p : {1, 2, 3})
        for (int m : {1, 2, 5})
          for (auto make : {gpipe, one_f_one_b}) {
            const Schedule s = add_zero(add_step(make(p, m)), zero, reshard);
            EXPECT_TRUE(validate(s).empty());
            EXPECT_EQ(parse_schedule(to_text(s)), s);
          }
}

TEST(AddZero, MoreMicrobatchesThanOverlapIdsAreRefused) {
  Schedule split{.stages = 1, .microbatches = 32767, .ranks = {{}}};
  for (int16_t mb = 0; mb < 32767; mb++)
    for (Act kind : {Act::F, Act::I, Act::W}) split.ranks[0].push_back({kind, 0, mb});
  EXPECT_THROW(add_zero(add_step(split), 3, true), Error);
  EXPECT_NO_THROW(add_zero(add_step(split), 1, true));
}

TEST(ValidateWeights, AreThereWhereTheyAreUsedAndGoInTheEnd) {
  EXPECT_NE(
      test::complaint("0Unshard 0F0 0Reshard 0B0 0ReduceGrad 0Step").find("0Unshard is missing before it"),
      std::string::npos);
  EXPECT_NE(test::complaint("0Unshard 0F0 0B0 0ReduceGrad 0Step").find("0Reshard is missing"),
            std::string::npos);
  EXPECT_NE(test::complaint("0Reshard 0Unshard 0F0 0B0 0Reshard 0ReduceGrad 0Step").find("not gathered"),
            std::string::npos);
  EXPECT_EQ(test::complaint("0Unshard 0F0 0B0 0Reshard 0ReduceGrad 0Step"), "no error");
}

}  // namespace
}  // namespace trireme
