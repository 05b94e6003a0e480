// Who is dead, late or merely waiting: in virtual time, so nothing here sleeps.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "comm/watch/judge.h"

namespace trireme {
namespace {

// Ranks as the judge sees them, and a clock that ticks once a second.
struct World {
  explicit World(int n, const WatchLimits& limits = {}) : judge(n, limits), beats(size_t(n)) {
    for (int r = 0; r < n; r++) beats[size_t(r)].rank = r, beats[size_t(r)].action.set("F");
  }
  WatchedGroup& group(int rank, size_t slot, uint64_t key, std::string_view name, int size) {
    WatchedGroup& g = beats[size_t(rank)].groups[slot];
    g.key = key, g.size = size;
    g.name.set(name);
    g.open = g.last = Collective::all_reduce;
    return g;
  }
  // All ranks in one group, slot 0.
  void one_group() {
    for (int r = 0; r < int(beats.size()); r++) group(r, 0, 7, "dp", int(beats.size()));
  }
  WatchedGroup& at(int rank, size_t slot = 0) { return beats[size_t(rank)].groups[slot]; }
  // So many seconds go by; ranks in `silent` do not beat. What was said, with the time.
  // `waiting`: these report that they wait.
  std::vector<Verdict> seconds(double n, std::vector<int> silent = {}, std::vector<int> waiting = {}) {
    std::vector<Verdict> all;
    for (double end = now + n; now < end; now += 1) {
      for (int r : waiting) beats[size_t(r)].waits += 10;
      for (Beat& b : beats)
        if (std::find(silent.begin(), silent.end(), b.rank) == silent.end()) b.number++;
      for (Verdict& v : judge.look(beats, now)) said_at.push_back(now), all.push_back(std::move(v));
    }
    return all;
  }
  Judge judge;
  std::vector<Beat> beats;
  double now = 1000;
  std::vector<double> said_at;
};

TEST(Judge, SaysNothingWhereNobodyWaits) {
  World w(3);
  w.one_group();
  for (int r = 0; r < 3; r++) w.at(r).issued = w.at(r).done = 5;
  EXPECT_TRUE(w.seconds(7200).empty()) << "all in one long save, evaluation or step";
}

TEST(Judge, SaysNothingOfCollectivesThatGoOn) {
  World w(3);
  w.one_group();
  for (int i = 0; i < 2000; i++) {  // rank 2 is behind by one or two, always
    for (int r = 0; r < 3; r++) w.at(r).done = i, w.at(r).issued = r == 2 ? i : i + 1 + r;
    EXPECT_TRUE(w.seconds(1).empty()) << i;
  }
}

// After a failure everybody has ten seconds to leave; who has not is named, wherever he is, and once.
TEST(Judge, NamesWhoDoesNotLeaveAfterAFailure) {
  World w(4);
  w.one_group();
  for (int r = 0; r < 4; r++) w.beats[size_t(r)].step = 3;
  w.beats[1].failed = w.beats[1].left = true;
  w.beats[0].failed = true;
  EXPECT_TRUE(w.seconds(4, {1}).empty());
  w.beats[0].left = true;
  w.beats[2].action.set("B"), w.beats[2].layer.set("blocks.1");
  const std::vector<Verdict> v = w.seconds(60, {0, 1});
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(w.said_at[0], 1010);
  EXPECT_EQ(v[0].fate, Fate::stays);
  EXPECT_TRUE(ends_run(v[0].fate));
  EXPECT_EQ(v[0].rank, 2);
  EXPECT_EQ(v[0].text,
            "a rank failed 10.0 s ago, and some have not left: rank 2, in B, layer blocks.1, of step 3; rank "
            "3, in F of step 3; the run ends without them");

  World gone(3);
  gone.beats[1].failed = true;
  EXPECT_TRUE(gone.seconds(9).empty());
  for (Beat& b : gone.beats) b.left = true;
  EXPECT_TRUE(gone.seconds(60, {0, 1, 2}).empty()) << "all have left";
}

TEST(Judge, NamesTheDeadWithinTenSeconds) {
  World w(4);
  w.one_group();
  for (int r = 0; r < 4; r++) w.at(r).issued = 9, w.at(r).done = r == 2 ? 8 : 9;
  Beat& b = w.beats[2];
  b.step = 87, b.microbatch = 3;
  b.action.set("B"), b.layer.set("blocks.4");
  EXPECT_TRUE(w.seconds(100).empty());
  const double last_beat = w.now - 1;
  EXPECT_TRUE(w.seconds(4, {2}).empty()) << "a late beat or two are no death";
  std::vector<Verdict> v = w.seconds(30, {2});
  ASSERT_EQ(v.size(), 1u) << "once";
  EXPECT_EQ(v[0].fate, Fate::dead);
  EXPECT_EQ(v[0].rank, 2);
  EXPECT_LE(w.said_at[0] - last_beat, 10);
  EXPECT_EQ(v[0].text,
            "rank 2 is dead or frozen: no sign of life for 6.00 s; it was in B of microbatch 3, layer "
            "blocks.4, of step 87, its last collective all_reduce 8 of group dp; the run ends; the same "
            "command goes on from the newest checkpoint");
}

TEST(Judge, ABeatThatCameLateIsABeat) {
  World w(2);
  w.one_group();
  for (int i = 0; i < 50; i++) {
    EXPECT_TRUE(w.seconds(4, {1}).empty());
    EXPECT_TRUE(w.seconds(1).empty());
  }
}

TEST(Judge, WhoNeverBeatIsDead) {
  World w(3);
  EXPECT_TRUE(w.seconds(4, {0}).empty());
  std::vector<Verdict> v = w.seconds(5, {0});
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].rank, 0);
  EXPECT_NE(v[0].text.find("before the first step, its last collective none"), std::string::npos)
      << v[0].text;
}

TEST(Judge, WhoHasLeftIsNotDead) {
  World w(3);
  w.one_group();
  w.seconds(3);
  w.beats[1].left = true;
  EXPECT_TRUE(w.seconds(100, {1}).empty());
}

TEST(Judge, NamesTheSlowOnceAndTheLateAfterTheTimeout) {
  World w(4, {.slow_s = 10, .again_s = 60, .timeout_s = 100});
  w.one_group();
  for (int r = 0; r < 4; r++) w.at(r).issued = 13, w.at(r).done = 12;
  w.at(1).issued = w.at(1).done = 12;
  Beat& b = w.beats[1];
  b.step = 5, b.microbatch = 0;
  b.action.set("B"), b.layer.set("blocks.1");
  const double begin = w.now;
  std::vector<Verdict> v = w.seconds(200);
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0].fate, Fate::slow);
  EXPECT_EQ(v[0].text,
            "rank 1 is slow: ranks 0, 2, 3 have waited 10.0 s in all_reduce 12 of group dp for it, and it is "
            "in B of microbatch 0, layer blocks.1, of step 5; the run goes on, for 1 min 40 s "
            "(train.timeout) at most");
  EXPECT_EQ(v[1].fate, Fate::slow);
  EXPECT_EQ(v[2].fate, Fate::late);
  EXPECT_EQ(v[2].rank, 1);
  EXPECT_NE(v[2].text.find("rank 1 is late: ranks 0, 2, 3 have waited 1 min 40 s in all_reduce 12"),
            std::string::npos)
      << v[2].text;
  EXPECT_EQ(w.said_at, (std::vector<double>{begin + 10, begin + 70, begin + 100}));
}

// Each wait is measured from its own beginning: many short ones are no long one.
TEST(Judge, WaitsDoNotAddUp) {
  World w(2, {.slow_s = 10, .timeout_s = 20});
  w.one_group();
  for (int i = 0; i < 50; i++) {
    w.at(0).issued = i + 1, w.at(0).done = i, w.at(1).issued = w.at(1).done = i;
    EXPECT_TRUE(w.seconds(9).empty()) << i;
  }
}

// 0 waits for 1 along dp, 1 waits for 2 along tp, and 2 alone holds up both.
TEST(Judge, TheVictimOfAnotherIsNotNamed) {
  World w(3, {.timeout_s = 50});
  w.group(0, 0, 1, "dp", 2), w.group(1, 0, 1, "dp", 2);
  w.group(1, 1, 2, "tp", 2), w.group(2, 0, 2, "tp", 2);
  w.at(0).issued = 4, w.at(0).done = 3, w.at(1).issued = w.at(1).done = 3;
  w.seconds(30);  // 1 is named, for 2 has come everywhere
  ASSERT_EQ(w.said_at.size(), 1u);
  World x(3, {.timeout_s = 50});
  x.beats = w.beats;
  x.at(1, 1).issued = 8, x.at(1, 1).done = 7, x.at(2).issued = x.at(2).done = 7;
  std::vector<Verdict> v = x.seconds(100);
  ASSERT_EQ(v.size(), 2u);
  for (const Verdict& one : v) EXPECT_EQ(one.rank, 2) << one.text;
  EXPECT_EQ(v[1].fate, Fate::late);
  EXPECT_NE(v[1].text.find("rank 1 has waited 50.0 s in all_reduce 7 of group tp for it"), std::string::npos)
      << v[1].text;
}

// Two ranks that each wait for the other where the other is not: nobody is late.
TEST(Judge, WaitingForEachOtherEndsAtTheTimeout) {
  World w(2, {.timeout_s = 50});
  for (int r = 0; r < 2; r++) w.group(r, 0, 1, "dp", 2), w.group(r, 1, 2, "tp", 2);
  w.at(0, 0).issued = 1, w.at(1, 1).issued = 1;
  std::vector<Verdict> v = w.seconds(200);
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].fate, Fate::stuck);
  EXPECT_EQ(w.said_at[0], 1050);
  EXPECT_NE(v[0].text.find("has waited 50.0 s in all_reduce 0 of group dp, and no rank is late for it"),
            std::string::npos)
      << v[0].text;
}

// Messages tell of no peer: who waits in them is never late himself, and the timeout holds for him too.
TEST(Judge, WaitingForMessagesIsNoLateness) {
  World w(3, {.timeout_s = 50});
  w.one_group();
  w.at(0).issued = 1;         // waits for 1 and 2
  w.at(1).messages_open = 1;  // 1 waits for a message of 2
  std::vector<Verdict> v = w.seconds(100);
  ASSERT_EQ(v.size(), 2u);
  for (const Verdict& one : v) EXPECT_EQ(one.rank, 2) << one.text;
  World all(2, {.timeout_s = 50});
  all.one_group();
  all.at(0).messages_open = all.at(1).messages_open = 1;
  v = all.seconds(100);
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].fate, Fate::stuck);
  EXPECT_NE(v[0].text.find("waited 50.0 s for messages"), std::string::npos) << v[0].text;
}

TEST(Judge, AQuietRankIsNotCalledSlow) {
  World w(2, {.timeout_s = 50});
  w.one_group();
  w.at(0).issued = 1;
  w.beats[1].action.set("save"), w.beats[1].quiet = true;
  std::vector<Verdict> v = w.seconds(100);
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].fate, Fate::late) << "though not for ever";
  EXPECT_EQ(w.said_at[0], 1050);
}

// All have joined the collective, and one has stalled: it does not report a wait, and the others do.
TEST(Judge, NamesWhoFrozeInsideACollective) {
  for (int frozen = 0; frozen < 4; frozen++) {
    World w(4, {.timeout_s = 50});
    w.one_group();
    std::vector<int> others;
    for (int r = 0; r < 4; r++) {
      w.at(r).issued = 8;
      w.at(r).done = 7;
      if (r != frozen) others.push_back(r);
    }
    w.beats[size_t(frozen)].step = 12;
    const std::vector<Verdict> v = w.seconds(100, {}, others);
    ASSERT_EQ(v.size(), 2u) << frozen;
    for (const Verdict& one : v) EXPECT_EQ(one.rank, frozen) << one.text;
    EXPECT_EQ(v[0].fate, Fate::slow);
    EXPECT_EQ(v[1].fate, Fate::late);
    EXPECT_EQ(w.said_at[1], 1050);
    EXPECT_NE(v[1].text.find("for it, and it is inside a collective, where it has stalled, in F of step 12"),
              std::string::npos)
        << v[1].text;
    EXPECT_EQ(v[1].text.find(fmt::format(" {},", frozen)), std::string::npos) << "not among those who wait";
  }
}

// It froze after the last rank had joined: the others have completed that collective and wait in the next
// one.
TEST(Judge, NamesWhoFrozeAtTheEndOfACollective) {
  World w(3, {.timeout_s = 50});
  w.one_group();
  for (int r : {0, 2}) w.at(r).issued = 9, w.at(r).done = 8;
  w.at(1).issued = 8;
  w.at(1).done = 7;
  const std::vector<Verdict> v = w.seconds(100, {}, {0, 2});
  ASSERT_EQ(v.size(), 2u);
  for (const Verdict& one : v) EXPECT_EQ(one.rank, 1) << one.text;
}

// Messages: a rank that does not report its wait is late at the timeout. There is no warning.
TEST(Judge, NamesWhoFrozeInsideMessages) {
  World w(3, {.timeout_s = 50});
  w.one_group();
  for (int r = 0; r < 3; r++) w.at(r).messages_open = 1;
  const std::vector<Verdict> v = w.seconds(100, {}, {0, 2});
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].fate, Fate::late);
  EXPECT_EQ(v[0].rank, 1);
  EXPECT_NE(v[0].text.find("has waited 50.0 s for messages"), std::string::npos) << v[0].text;
}

// Two that each wait for the other report it: in a deadlock no rank is late.
TEST(Judge, ADeadlockIsNobodysLateness) {
  World w(2, {.timeout_s = 50});
  for (int r = 0; r < 2; r++) w.group(r, 0, 1, "dp", 2), w.group(r, 1, 2, "tp", 2);
  w.at(0, 0).issued = 1, w.at(1, 1).issued = 1;
  const std::vector<Verdict> v = w.seconds(100, {}, {0, 1});
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].fate, Fate::stuck);
}

// Ctrl-Z, a suspended job: the judge has slept as all have, and holds it against nobody.
TEST(Judge, ItsOwnSleepIsNobodysLateness) {
  World w(2, {.timeout_s = 600});
  w.one_group();
  w.at(0).issued = 1;
  w.seconds(3);
  w.now += 100000;
  EXPECT_TRUE(w.seconds(3).empty());
}

}  // namespace
}  // namespace trireme
