// Timelines worked out by hand, in whole units of time.
#include "sim/replay.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tapes.h"

namespace trireme {
namespace {

using test::Rank;
using test::replay_of;

const TapeGroup kPair{"dp", {0, 1}};

// Buckets leave behind their backward; each hides under the next one.
//   compute  B 0-10      B 10-20     B 20-30       wait
//   dp             10-16       20-26       30-36
TEST(Replay, BucketsHideUnderTheBackwardThatFollows) {
  Rank r(0, {kPair});
  for (int i = 0; i < 3; i++) r.op(10).call(1, 6);
  r.wait(1).op(4, "step");
  const Replay all = replay_of(r);
  const RankReplay& out = all.ranks[0];
  EXPECT_EQ(out.pieces[1].begin, 10);
  EXPECT_EQ(out.pieces[3].begin, 20);
  EXPECT_EQ(out.pieces[5].end, 36);
  EXPECT_EQ(out.exposed, 6);
  EXPECT_EQ(out.late, 0);
  EXPECT_EQ(out.busy, 34);
  EXPECT_EQ(out.comm, 18);
  EXPECT_EQ(all.makespan, 40);
}

// A slow wire queues up: 10-25, 25-40, 40-55 under a backward of 30.
TEST(Replay, ASlowWireQueuesUp) {
  Rank r(0, {kPair});
  for (int i = 0; i < 3; i++) r.op(10).call(1, 15);
  r.wait(1);
  const Replay all = replay_of(r);
  EXPECT_EQ(all.ranks[0].exposed, 25);
  EXPECT_EQ(all.makespan, 55);
}

// Gathers one ahead. compute: wait for g0 (0-7), F0 7-17 while g1 7-14, F1 17-19 while g2 17-24 (it is issued
// when F0 is done), wait 5, F2 24-34.
TEST(Replay, GathersAheadHideUnderTheLayerBeforeThem) {
  Rank r(0, {kPair});
  r.call(1, 7, "g0").call(1, 7, "g1").wait_until(1, 1).op(10, "F0").call(1, 7, "g2").wait_until(1, 2);
  r.op(2, "F1").wait_until(1, 3).op(10, "F2");
  const Replay all = replay_of(r);
  const auto& t = all.ranks[0].pieces;
  EXPECT_EQ(t[1].begin, 7);
  EXPECT_EQ(t[3].begin, 7);
  EXPECT_EQ(t[4].begin, 17);
  EXPECT_EQ(t[6].begin, 17);
  EXPECT_EQ(t[8].begin, 24);
  EXPECT_EQ(all.makespan, 34);
  const std::vector<Exposure> where = exposures(r.view(), all.ranks[0]);
  ASSERT_EQ(where.size(), 2u);
  EXPECT_EQ(r.tape.pieces[where[0].held_by].name, "g0");
  EXPECT_EQ(where[0].time, 7);
  EXPECT_EQ(r.tape.pieces[where[1].held_by].name, "g2");
  EXPECT_EQ(where[1].time, 5);
  EXPECT_EQ(all.ranks[0].exposed, 12);
}

// Rank 1 comes 9 later: rank 0's wait of 12 is 9 for the peer and 3 for the wire.
TEST(Replay, ACallBeginsWhenItsLastRankHasCome) {
  Rank a(0, {kPair}), b(1, {kPair});
  a.op(5).call(1, 3).wait(1).op(1);
  b.op(14).call(1, 3).wait(1).op(1);
  const Replay all = replay_of(a, b);
  EXPECT_EQ(all.ranks[0].pieces[1].begin, 5);
  EXPECT_EQ(all.ranks[0].pieces[1].met, 14);
  EXPECT_EQ(all.ranks[0].exposed, 12);
  EXPECT_EQ(all.ranks[0].late, 9);
  EXPECT_EQ(all.ranks[1].exposed, 3);
  EXPECT_EQ(all.ranks[1].late, 0);
  EXPECT_EQ(all.makespan, 18);
}

// An agreement on the rank's own thread is all exposed, and what a thread does between pieces is busy.
TEST(Replay, CallsOnComputeAndWorkBetweenPieces) {
  Rank a(0, {kPair}), b(1, {kPair});
  a.op(5).call(0, 2).op(1);
  b.op(3).call(0, 2).op(1);
  a.prices[1].before = 4;
  const Replay all = replay_of(a, b);
  EXPECT_EQ(all.ranks[0].pieces[1].begin, 9);
  EXPECT_EQ(all.ranks[0].busy, 10);
  EXPECT_EQ(all.ranks[0].exposed, 2);
  EXPECT_EQ(all.ranks[1].exposed, 8);
  EXPECT_EQ(all.ranks[1].late, 6);
  EXPECT_EQ(all.makespan, 12);
}

// Three ranks in a row hand a microbatch on; a send does not hold up its sender.
TEST(Replay, MessagesAreThereWhenTheirSendEnds) {
  Rank a(0), b(1), c(2);
  a.op(4).send(2, 1, 0, 3).op(4).send(2, 1, 1, 3);
  b.recv(0, 0).op(5).send(2, 2, 0, 3).recv(0, 1).op(5).send(2, 2, 1, 3);
  c.recv(1, 0).op(1).recv(1, 1).op(1);
  const Replay all = replay_of(a, b, c);
  EXPECT_EQ(all.ranks[0].pieces[2].begin, 4);
  EXPECT_EQ(all.ranks[1].pieces[1].begin, 7);
  EXPECT_EQ(all.ranks[1].pieces[4].begin, 12);
  EXPECT_EQ(all.ranks[2].pieces[1].begin, 15);
  EXPECT_EQ(all.ranks[2].pieces[3].begin, 20);
  EXPECT_EQ(all.makespan, 21);
  EXPECT_EQ(all.ranks[2].exposed, 15 + 4);
  EXPECT_EQ(all.ranks[2].late, 12 + 1);  // the messages left at 12 and 17
}

// A stream that waits for another one: the all_reduce across groups stands behind the scatter inside.
TEST(Replay, AStreamWaitsForAnother) {
  Rank r(0, {kPair});
  r.call(1, 10).wait(1, 2).call(2, 5).op(3).wait(2);
  const Replay all = replay_of(r);
  EXPECT_EQ(all.ranks[0].pieces[2].begin, 10);
  EXPECT_EQ(all.ranks[0].exposed, 12);
  EXPECT_EQ(all.makespan, 15);
}

TEST(Replay, TapesThatDoNotFitAreRefused) {
  Rank a(0, {kPair}), b(1, {kPair});
  a.call(1, 3, "all_reduce").wait(1);
  b.call(1, 3, "all_gather").wait(1);
  try {
    replay_of(a, b);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "replay: rank 0 calls all_reduce of 0 bytes as call 0 of its group, rank 1 all_gather of 0 bytes");
  }
  Rank c(0), d(1);
  c.recv(1, 0).send(2, 1, 0, 1);
  d.recv(0, 0).send(2, 0, 0, 1);
  try {
    replay_of(c, d);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "replay: the step stands still: rank 0 at piece 0 (recv), rank 1 at piece 0 (recv) wait for "
                 "what never comes");
  }
}

TEST(Replay, SpansOfALaneAreInOrderAndSayWhatWasWaitedFor) {
  Rank r(3, {{"dp", {3, 5}}});
  r.op(10, "matmul").call(1, 6).op(2, "add").wait(1).op(1, "adamw");
  const std::vector<RankTape> ranks = {r.view()};
  const std::vector<Span> spans = spans_of(ranks, replay(ranks), 7);
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0].name, "matmul");
  EXPECT_EQ(spans[2].kind, SpanKind::wait);
  EXPECT_EQ(spans[2].name, "all_reduce");
  EXPECT_EQ(spans[2].begin_ns, 12);
  EXPECT_EQ(spans[2].end_ns, 16);
  EXPECT_EQ(spans[4].lane, "dp");
  EXPECT_EQ(spans[4].group, "dp");
  for (const Span& s : spans) {
    EXPECT_EQ(s.rank, 3);
    EXPECT_EQ(s.step, 7);
  }
}

}  // namespace
}  // namespace trireme
