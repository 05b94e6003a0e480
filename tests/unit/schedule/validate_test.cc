#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "complaint.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

TEST(Validate, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"0F0 0B0 0F1", "schedule: rank 0: 0B1 (or 0I1 and 0W1) is missing"},
      {"0F0 0B0 0B1", "schedule: rank 0: 0F1 is missing"},
      {"0F0 0I0", "schedule: rank 0: 0W0 is missing"},
      {"0F0 0W0", "schedule: rank 0: 0I0 is missing"},
      {"0F0 0B0 0W0", "schedule: rank 0: 0W0 is done by 0B0 already"},
      {"0F0 0F0 0B0", "schedule: rank 0: 0F0 is there twice, at steps 0 and 1"},
      {"0F0 0B0\n2F0 2B0", "schedule: no rank has stage 1 of 3"},
      {"0F0 0B0 1F0\n1B0", "schedule: stage 1 is on rank 0 and on rank 1"},
      {"0B0 0F0", "schedule: rank 0: 0B0 comes before 0F0, which it needs"},
      {"0F0 0W0 0I0", "schedule: rank 0: 0W0 comes before 0I0, which it needs"},
      {"0F0 0B0 0R0", "schedule: rank 0: 0B0 comes before 0R0, which it needs"},
      {"1F0 0F0 1B0 0B0", "schedule: rank 0: 1F0 comes before 0F0, which it needs"},
      {"0F0 1F0 0B0 1B0", "schedule: rank 0: 0B0 comes before 1B0, which it needs"},
      // Each rank waits for the other: rank 0 wants gradients of microbatch 1, whose forward it sends
      // afterwards.
      {"0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1",
       "schedule: deadlock: rank 0 at 0B0 waits for 1B0, rank 1 at 1F1 waits for 0F1"},
      {"0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1B0", "schedule: rank 0: 0RecvB0 has no 1SendB0 at its far end"},
      {"0F0 0SendF0 0B0\n1RecvF0 1F0 1B0", "schedule: rank 0: 0B0 needs 0RecvB0, which is missing"},
      {"0F0 0SendF0 0B0", "schedule: rank 0: 0SendF0 has no other rank at its far end"},
      {"0SendF0 0F0 0RecvB0 0B0\n1RecvF0 1F0 1B0 1SendB0",
       "schedule: rank 0: 0SendF0 comes before 0F0, which it needs"},
      {"0F0 0RecvB0 0SendF0 0B0\n1RecvF0 1F0 1B0 1SendB0",
       "schedule: deadlock: rank 0 at 0RecvB0 waits for 1SendB0, rank 1 at 1RecvF0 waits for 0SendF0"},
      // What rank 0 sends first, rank 1 takes for the other microbatch.
      {"0F0 0F1 0SendF1 0SendF0 0RecvB0 0B0 0RecvB1 0B1\n1RecvF0 1F0 1B0 1SendB0 1RecvF1 1F1 1B1 1SendB1",
       "schedule: rank 1 receives 1RecvF0 from rank 0 as number 0 of its activations, which sends 0SendF1 "
       "then: "
       "both sides must have one order"},
      {"0F0 0SendF0 0F1 0SendF1 0RecvB1 0RecvB0 0B0 0B1\n1RecvF0 1F0 1RecvF1 1F1 1B0 1SendB0 1B1 1SendB1",
       "schedule: rank 0 receives 0RecvB1 from rank 1 as number 0 of its gradients, which sends 1SendB0 "
       "then: "
       "both sides must have one order"},
      {"0F0 0B0 0Step", "schedule: rank 0: 0ReduceGrad is missing before its Step"},
      {"0F0 0ReduceGrad 0B0 0Step", "schedule: rank 0: 0ReduceGrad is missing before its Step"},
      {"0F0 0B0 0ReduceGrad 0Step 0Step", "schedule: rank 0: 0Step comes after its Step"},
      {"0F0 0B0 0ReduceGrad 0Step\n1F0 1B0", "schedule: rank 1 has no Step, unlike rank 0"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(test::headline(text), want) << text;
}

TEST(Validate, GoodSchedules) {
  EXPECT_EQ(test::complaint("0F0 0I0 0W0"), "no error");
  EXPECT_EQ(test::complaint("0F0 0R0 0B0 0ReduceGrad 0Step"), "no error");
  EXPECT_EQ(test::complaint("0Unshard 0F0 0Reshard 0Unshard 0B0 0ReduceGrad 0Reshard 0Step"), "no error");
  EXPECT_EQ(test::complaint("0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1B0 1SendB0"), "no error");
  // A V: stages 0 and 3 on rank 0, 1 and 2 on rank 1; no transfer between neighbours of one rank.
  EXPECT_EQ(test::complaint("0F0 0SendF0 3RecvF0 3F0 3B0 3SendB0 0RecvB0 0B0\n"
                            "1RecvF0 1F0 2F0 2SendF0 2RecvB0 2B0 1B0 1SendB0"),
            "no error");
}

TEST(Validate, GridMarksThePlace) {
  EXPECT_EQ(test::complaint("0F0 0F1 0B0 0B1\n1F0 1B1 1F1 1B0"),
            "schedule: rank 1: 1B1 comes before 1F1, which it needs\n"
            "  step  rank 0   rank 1\n"
            "     0  0F0      1F0\n"
            "     1  0F1     [1B1]  <-- here\n"
            "     2  0B0      1F1\n"
            "     3  0B1      1B0");
}

// Of every kind of fault: what is missing, at the end of its rank; what is there twice, both; messages in
// another order, both; who waits for whom, all.
TEST(Validate, GridMarksThePlaceOfEveryKind) {
  EXPECT_EQ(test::complaint("0F0 0B0\n1F0 1I0"),
            "schedule: rank 1: 1W0 is missing\n"
            "  step  rank 0   rank 1\n"
            "     0  0F0      1F0\n"
            "     1  0B0     [1I0]  <-- here");
  EXPECT_EQ(test::complaint("0F0 0B0 0F0\n1F0 1B0"),
            "schedule: rank 0: 0F0 is there twice, at steps 0 and 2\n"
            "  step  rank 0   rank 1\n"
            "     0 [0F0]     1F0\n"
            "     1  0B0      1B0\n"
            "     2 [0F0]  <-- here");
  EXPECT_EQ(test::complaint("0F0 0F1 0SendF1 0SendF0 0RecvB0 0B0 0RecvB1 0B1\n"
                            "1RecvF0 1F0 1B0 1SendB0 1RecvF1 1F1 1B1 1SendB1"),
            "schedule: rank 1 receives 1RecvF0 from rank 0 as number 0 of its activations, which sends "
            "0SendF1 then: both sides must have one order\n"
            "  step  rank 0    rank 1\n"
            "     0  0F0      [1RecvF0]  <-- here\n"
            "     1  0F1       1F0\n"
            "     2 [0SendF1]  1B0\n"
            "     3  0SendF0   1SendB0\n"
            "     4  0RecvB0   1RecvF1\n"
            "     5  0B0       1F1\n"
            "     6  0RecvB1   1B1\n"
            "     7  0B1       1SendB1");
  EXPECT_EQ(test::complaint("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"),
            "schedule: deadlock: rank 0 at 0B0 waits for 1B0, rank 1 at 1F1 waits for 0F1\n"
            "  step  rank 0   rank 1\n"
            "     0  0F0      1F0\n"
            "     1 [0B0]    [1F1]  <-- here\n"
            "     2  0F1      1B0\n"
            "     3  0B1      1B1");
  EXPECT_EQ(test::complaint("0F0 0B0\n2F0 2B0"),
            "schedule: no rank has stage 1 of 3\n"
            "  step  rank 0   rank 1\n"
            "     0  0F0     [2F0]  <-- here\n"
            "     1  0B0      2B0");
  EXPECT_EQ(test::complaint("0F0 0R0 0B0 0ReduceGrad 0ReduceGrad 0Step"),
            "schedule: rank 0: 0ReduceGrad is there twice, at steps 3 and 4, without a weight gradient in "
            "between\n"
            "  step  rank 0\n"
            "     0  0F0\n"
            "     1  0R0\n"
            "     2  0B0\n"
            "     3 [0ReduceGrad]\n"
            "     4 [0ReduceGrad]  <-- here\n"
            "     5  0Step");
}

TEST(Validate, GridOfABigScheduleShowsWhatIsAround) {
  Schedule s = one_f_one_b(30, 100);
  std::swap(s.ranks[15][80], s.ranks[15][81]);  // two neighbours of the steady state
  s.ranks[15][90].mb = 0;
  const std::string message = test::complaint(s);
  EXPECT_NE(message.find("rank 15"), std::string::npos);
  EXPECT_NE(message.find(" <-- here"), std::string::npos);
  EXPECT_EQ(message.find("rank 2 "), std::string::npos);
  EXPECT_LT(std::count(message.begin(), message.end(), '\n'), 30);
}

// Any one action of a good schedule taken away, doubled, or moved before what it needs is found.
TEST(Validate, FindsEveryPlantedFault) {
  const uint64_t key = rng_key(5, 0, "faults");
  uint64_t draw = 0;
  const auto pick = [&](size_t n) { return size_t(below(key, draw++, n)); };
  for (int trial = 0; trial < 300; trial++) {
    const int p = 2 + int(pick(3)), m = 1 + int(pick(6));
    const Schedule good = add_step(trial % 2 ? gpipe(p, m) : one_f_one_b(p, m));
    Schedule s = good;
    auto& actions = s.ranks[pick(s.ranks.size())];
    const size_t at = pick(actions.size());
    switch (trial % 3) {
      case 0:
        actions.erase(actions.begin() + int(at));
        break;
      case 1:
        actions.insert(actions.begin() + int(pick(actions.size() + 1)), actions[at]);
        break;
      case 2:
        std::swap(actions[0], actions[actions.size() - 1]);  // Step first
        break;
    }
    ASSERT_NE(test::complaint(s), "no error") << to_text(s);
    ASSERT_EQ(test::complaint(good), "no error");
  }
}

// One message of good schedules moved in front of, or behind, its neighbour on the same way, on one side:
// never against what actions need, so only the order of messages is wrong.
TEST(Validate, FindsMessagesInDifferentOrderOnBothSides) {
  const uint64_t key = rng_key(6, 0, "messages");
  uint64_t draw = 0;
  const auto pick = [&](size_t n) { return size_t(below(key, draw++, n)); };
  int found = 0;
  for (int trial = 0; trial < 400; trial++) {
    const auto name = schedule_names()[pick(schedule_names().size())];
    const int chunks = default_chunks(name), p = 2 + int(pick(3)), m = 2 + int(pick(6));
    if (name == "dualpipe" && p % 2) continue;
    Schedule s = add_transfers(make_schedule(name, p, chunks, m));
    ASSERT_EQ(test::complaint(s), "no error") << name << p << m;
    const std::vector<int> rank_of = name == "dualpipe" ? std::vector<int>() : rank_of_stages(s);
    if (rank_of.empty()) continue;
    auto& actions = s.ranks[pick(size_t(p))];
    const Act kind = Act(size_t(Act::SendF) + pick(4));
    const bool sends = kind == Act::SendF || kind == Act::SendB;
    const auto peer = [&](const Action& a) {
      return rank_of[size_t(a.stage + (kind == Act::SendF || kind == Act::RecvB ? 1 : -1))];
    };
    std::vector<size_t> places;  // of the messages of one way
    int with = -1;
    for (size_t i = 0; i < actions.size(); i++)
      if (actions[i].kind == kind && (with < 0 || peer(actions[i]) == with))
        places.push_back(i), with = peer(actions[i]);
    if (places.size() < 2) continue;
    const size_t k = pick(places.size() - 1);
    const auto at = actions.begin();
    if (sends)  // the earlier one later
      std::rotate(at + int(places[k]), at + int(places[k]) + 1, at + int(places[k + 1]) + 1);
    else
      std::rotate(at + int(places[k]), at + int(places[k + 1]), at + int(places[k + 1]) + 1);
    ASSERT_NE(test::complaint(s).find("both sides must have one order"), std::string::npos) << to_text(s);
    found++;
  }
  EXPECT_GT(found, 200);
}

TEST(Validate, WarnsOnceAStageWhenWeightGradientsDescend) {
  EXPECT_EQ(
      validate(parse_schedule("0F0 0F1 0F2 0I0 0I1 0I2 0W2 0W1 0W0")),
      std::vector<std::string>{"schedule: stage 0 adds the weight gradient of microbatch 1 after that of 2: "
                               "results are not bit-identical to those of schedules in ascending order"});
  EXPECT_TRUE(validate(parse_schedule("0F0 0F1 0I1 0I0 0W0 0W1")).empty());
}

TEST(Validate, ALyingTextCostsNoMemory) {
  EXPECT_EQ(test::headline("32767F32767"), "schedule: no rank has stage 0 of 32768");
}

TEST(Validate, NothingAtAll) {
  EXPECT_EQ(test::complaint(Schedule{}),
            "schedule: 0 stages and 0 microbatches; right is at least one of each");
  EXPECT_EQ(test::headline(Schedule{.stages = 1, .microbatches = 1, .ranks = {{{Act::F, 0, 1}}}}),
            "schedule: rank 0: 0F1 names microbatch 1 of 1 (from 0)");
  EXPECT_EQ(test::headline(Schedule{.stages = 1, .microbatches = 1, .ranks = {{{Act::F, 1, 0}}}}),
            "schedule: rank 0: 1F0 names stage 1 of 1 (from 0)");
}

}  // namespace
}  // namespace trireme
