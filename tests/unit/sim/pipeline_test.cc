// Pipelines in virtual time: the bubbles of the papers, exactly.
#include "sim/pipeline.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

struct Ran {
  PipelineTapes tapes;
  Replay replay;
  Bubble bubble;
};
Ran run(const Schedule& s, const StageTimes& t) {
  Ran r{tapes_of(s, {&t, 1}), {}, {}};
  const auto ranks = r.tapes.ranks();
  r.replay = replay(ranks);
  r.bubble = bubble(ranks, r.replay);
  return r;
}

// Huang et al. 2019, Narayanan et al. 2021: of p stages and m microbatches of equal time a rank idles for p -
// 1 of them.
TEST(Pipeline, GPipeAndOneFOneBIdleForPMinusOneMicrobatches) {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {1, 2, 5, 8, 16, 24})
      for (const StageTimes& t : {StageTimes{}, StageTimes{.forward = 2, .input = 5, .weight = 3}})
        for (const Schedule& s : {gpipe(p, m), one_f_one_b(p, m)}) {
          const int64_t whole = t.forward + t.input + t.weight;
          const Ran r = run(s, t);
          EXPECT_EQ(r.replay.makespan, (m + p - 1) * whole) << p << " " << m;
          for (const RankReplay& rank : r.replay.ranks) EXPECT_EQ(rank.busy, m * whole);
          EXPECT_DOUBLE_EQ(r.bubble.of_makespan, double(p - 1) / double(m + p - 1));
          EXPECT_DOUBLE_EQ(r.bubble.own, double(p - 1) / double(m + p - 1));
        }
}

// Two stages, two microbatches, messages of 3: by hand.
TEST(Pipeline, MessagesTakeTime) {
  const StageTimes t{.forward = 2, .input = 3, .weight = 1, .send = 3};
  const Ran r = run(one_f_one_b(2, 2), t);
  // rank 1: F0 5-7, B0 7-11, F1 11-13, B1 13-17; its gradients are there at 14 and 20.
  EXPECT_EQ(r.replay.ranks[1].end, 20);
  // rank 0: F0 0-2, F1 2-4, B0 14-18, B1 20-24.
  EXPECT_EQ(r.replay.makespan, 24);
  EXPECT_EQ(r.replay.ranks[0].exposed, 12);
  EXPECT_EQ(r.replay.ranks[0].late, 7);  // the gradients leave at 11 and 17; it waits from 4 and from 18
}

// Unequal stages: the slowest one is the beat.
TEST(Pipeline, TheSlowestStageIsTheBeat) {
  const std::vector<StageTimes> times = {{.forward = 1, .input = 1, .weight = 1},
                                         {.forward = 4, .input = 4, .weight = 4},
                                         {.forward = 2, .input = 2, .weight = 2}};
  const int m = 7;
  const PipelineTapes tapes = tapes_of(gpipe(3, m), times);
  const Replay all = replay(tapes.ranks());
  // Forwards leave stage 1 every 4 from 1 on, the last at 1 + 4m, and the last stage's is 2 later; backwards
  // come to stage 1 from 4 later on, leave it every 8, and the last one takes stage 0's 2.
  EXPECT_EQ(all.makespan, 1 + 4 * m + 2 + 4 + 8 * m + 2);
}

TEST(Pipeline, TransfersOfTheScheduleAreTakenAsTheyStand) {
  const Schedule s = parse_schedule("0F0 0SendF0 0RecvB0 0B0 0Step\n1RecvF0 1F0 1I0 1SendB0 1W0 1Step\n");
  const Ran r = run(s, {.forward = 2, .input = 3, .weight = 4, .step = 1, .send = 5});
  // rank 1: F 7-9, I 9-12, W 12-16, Step 17; its message is there at 17. rank 0: B 17-24, Step 25.
  EXPECT_EQ(r.replay.makespan, 25);
  EXPECT_EQ(r.replay.ranks[1].end, 17);
}

TEST(Pipeline, WrongTimesAreRefused) {
  const std::vector<StageTimes> two(2);
  EXPECT_THROW(tapes_of(gpipe(3, 2), two), Error);
}

TEST(Pipeline, ManyStagesAndMicrobatches) {
  const Ran r = run(one_f_one_b(64, 512), {.forward = 1, .input = 1, .weight = 1});
  EXPECT_EQ(r.replay.makespan, (512 + 63) * 3);
}

}  // namespace
}  // namespace trireme
