// A world of ranks: one of each class has the timeline of every rank of it, to the nanosecond, disturbed or
// not; the papers' bubbles come out; slow ranks cost what they cost by hand.
#include "sim/world.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "sim/pipeline.h"
#include "sim/rank_program.h"
#include "sim/world_report.h"

namespace trireme {
namespace {

struct WorldShape {
  int pp = 1, dp = 1, cp = 1, tp = 1, ep = 1, chunks = 1, microbatches = 4, zero = 0;
  const char* schedule = "1f1b";
  bool again = false;
};

Schedule schedule_of_shape(const WorldShape& s) {
  Schedule actions = make_schedule(s.schedule, s.pp, s.chunks, s.microbatches);
  if (s.again) actions = add_recompute(std::move(actions), {}, true);
  actions = add_step(add_transfers(std::move(actions)));
  return s.dp * s.cp > 1 ? add_zero(std::move(actions), s.zero) : actions;
}

LayerWork random_layer(std::mt19937& random) {
  const auto time = [&](int64_t most) { return 1 + int64_t(random() % uint64_t(most)); };
  const auto pass = [&] { return PassTimes{time(900), time(90), time(70), time(50)}; };
  return {.forward = pass(),
          .input = pass(),
          .weight = {time(900), 0, 0, 0},
          .again = pass(),
          .reduce = time(1500),
          .gather = time(700),
          .reduce_experts = time(300),
          .gather_experts = time(200),
          .state = time(1000),
          .kept = time(100),
          .scratch = time(100)};
}

World random_world(const WorldShape& s, uint32_t seed) {
  std::mt19937 random(seed);
  World w{.mesh = Mesh({.pp = s.pp, .dp = s.dp, .cp = s.cp, .tp = s.tp, .ep = s.ep}),
          .schedule = schedule_of_shape(s),
          .work = {},
          .node = 4,
          .disturbed = {}};
  for (int k = 0; k < 3; k++) w.work.kinds.push_back(random_layer(random));
  for (int stage = 0, layer = 0; stage < w.schedule.stages; stage++) {
    StageWork& of = w.work.stages.emplace_back();
    for (int n = 1 + int(random() % 3); n > 0; n--)
      of.layers.push_back({"blocks." + std::to_string(layer++), int(random() % 3)});
  }
  for (int p = 0; p < s.pp; p++) w.work.update.push_back(1 + int64_t(random() % 500));
  w.work.message = 40, w.work.zero = s.dp * s.cp > 1 ? s.zero : 0;
  return w;
}

// By rank, its class's timeline in the reduced replay and its own in the full one.
void expect_equal(const World& w, size_t most_classes) {
  const WorldReplay few = replay_world(w), all = replay_world(w, true);
  EXPECT_LE(few.classes.size(), most_classes);
  EXPECT_EQ(few.classes.size(), all.classes.size());
  EXPECT_EQ(few.replay.makespan, all.replay.makespan);
  ASSERT_EQ(all.tapes.size(), size_t(w.mesh.world()));
  for (size_t r = 0; r < all.tapes.size(); r++) {
    const RankReplay &one = few.replay.ranks[size_t(few.class_of[r])], &own = all.replay.ranks[r];
    ASSERT_EQ(one.pieces.size(), own.pieces.size());
    for (size_t i = 0; i < own.pieces.size(); i++)
      ASSERT_TRUE(one.pieces[i].begin == own.pieces[i].begin && one.pieces[i].met == own.pieces[i].met &&
                  one.pieces[i].end == own.pieces[i].end)
          << "rank " << r << " piece " << i << " of " << w.mesh.world();
    EXPECT_EQ(one.exposed, own.exposed);
    EXPECT_EQ(one.late, own.late);
  }
}

const WorldShape kShapes[] = {
    {.pp = 3, .dp = 4, .tp = 2},
    {.pp = 2, .dp = 3, .cp = 2, .tp = 2, .zero = 1},
    {.pp = 4, .dp = 2, .tp = 3, .chunks = 2, .microbatches = 8, .zero = 2, .schedule = "interleaved"},
    {.pp = 2, .dp = 6, .tp = 2, .ep = 3, .zero = 1, .again = true},
    {.pp = 1, .dp = 5, .tp = 2, .zero = 3},
    {.pp = 2, .dp = 4, .tp = 1, .zero = 3, .schedule = "zb-h1", .again = true},
    {.pp = 4, .dp = 3, .chunks = 2, .microbatches = 9, .schedule = "zb-v"}};

TEST(World, OneOfEachClassStandsForAll) {
  uint32_t seed = 1;
  for (const WorldShape& s : kShapes) expect_equal(random_world(s, seed++), size_t(s.pp));
}

// Also where transfers share links, on nodes that groups straddle and on such that they do not.
TEST(World, SharedLinksAreThoseOfAllRanks) {
  uint32_t seed = 200;
  for (const WorldShape& s : kShapes)
    for (const int node : {1, 2, 5, 1000}) {
      World w = random_world(s, seed++);
      const int64_t alone = replay_world(w).replay.makespan;
      w.node = node, w.share_links = true;
      if (seed % 2 == 0) w.disturbed.slow_ranks[int(seed) % w.mesh.world()] = 1.3;
      expect_equal(w, size_t(w.mesh.world()));
      if (seed % 2 == 1) {
        EXPECT_GE(replay_world(w).replay.makespan, alone);
      }
    }
}

// What is disturbed divides classes as far as it reaches, and no farther.
TEST(World, DisturbedRanksHaveTheirOwnClasses) {
  std::mt19937 random(7);
  uint32_t seed = 20;
  for (const WorldShape& s : kShapes)
    for (int n = 0; n < 6; n++) {
      World w = random_world(s, seed++);
      const int world = w.mesh.world();
      for (int k = 0; k <= n % 2; k++)
        if (n != 5) w.disturbed.slow_ranks[int(random() % uint32_t(world))] = 1.1 + 0.3 * double(n);
      if (n % 3 == 2) w.disturbed.slow_links[int(random() % uint32_t((world + 3) / 4))] = 0.4;
      if (n == 4) w.disturbed.failing_rank = int(random() % uint32_t(world)), w.disturbed.fails_at = 2500;
      expect_equal(w, size_t(world));
    }
}

TEST(World, ASlowRankDividesItsTensorGroupItsReplicasAndTheirPipelines) {
  World w = random_world({.pp = 4, .dp = 16, .tp = 4}, 3);
  w.disturbed.slow_ranks[21] = 1.5;
  const WorldReplay few = replay_world(w);
  // Of each stage: the slow place, its neighbours in tp, and the other replicas' like places of either.
  EXPECT_EQ(few.classes.size(), 4u * 4u);
  int64_t ranks = 0;
  for (const RankClass& c : few.classes) ranks += c.ranks;
  EXPECT_EQ(ranks, w.mesh.world());
  expect_equal(w, 16);
}

// Layers of one kind on every stage, no collectives: F, I and W of each as given.
World plain_world(const Schedule& compute, int64_t f, int64_t i, int64_t w, int dp = 1, int tp = 1) {
  World out{.mesh = Mesh({.pp = int(compute.ranks.size()), .dp = dp, .tp = tp}),
            .schedule = add_step(add_transfers(compute)),
            .work = {},
            .node = 8,
            .disturbed = {}};
  LayerWork layer;
  layer.forward.compute = f, layer.input.compute = i, layer.weight.compute = w;
  out.work.kinds = {layer};
  for (int s = 0; s < compute.stages; s++)
    out.work.stages.push_back({.layers = {{"blocks." + std::to_string(s), 0}}});
  out.work.update.assign(compute.ranks.size(), 0);
  if (dp > 1) out.schedule = add_zero(out.schedule, 0);
  return out;
}

// The bubble of every generator is what it is in the pipeline's own virtual time, which the papers hold
// (published_test.cc), and of 1F1B and GPipe (p - 1) / (m + p - 1).
TEST(World, BubblesOfEveryGenerator) {
  for (std::string_view name : schedule_names()) {
    if (name == "dualpipe") continue;  // a stage on two ranks
    for (int p : {2, 4, 8}) {
      const int m = 3 * p;
      const Schedule s = make_schedule(name, p, default_chunks(name), m);
      const StageTimes t{.forward = 2, .input = 2, .weight = 1};
      const PipelineTapes tapes = tapes_of(s, {&t, 1});
      const Bubble expected = bubble(tapes.ranks(), replay(tapes.ranks()));
      const World w = plain_world(s, t.forward, t.input, t.weight, 3, 2);
      const WorldReplay all = replay_world(w);
      EXPECT_EQ(all.classes.size(), size_t(p));
      EXPECT_DOUBLE_EQ(bubble_of(rows_of(w, all)), expected.own) << name << " " << p;
      if (name == "1f1b" || name == "gpipe") {
        EXPECT_DOUBLE_EQ(expected.own, double(p - 1) / (m + p - 1));
      }
    }
  }
}

TEST(World, CopiesAreRefused) {
  EXPECT_THROW(replay_world(plain_world(dualpipe(4, 8), 1, 1, 1)), Error);
}

// One of two ranks of tp computes f times as long: every layer of its stage takes as long as its slow half.
TEST(World, ASlowRankOfAPipelineByHand) {
  const int p = 4, m = 8;
  const int64_t f = 30, i = 40, wt = 20;
  World w = plain_world(one_f_one_b(p, m), f, i, wt, 1, 2);
  w.work.kinds[0].forward.tp = w.work.kinds[0].input.tp = 10;
  const int64_t forward = f + 10, backward = i + 10 + wt;
  EXPECT_EQ(replay_world(w).replay.makespan, (m + p - 1) * (forward + backward));
  // The last stage, slower by half: it sets the pace, and the others' first forwards and last backwards stand
  // before and behind it.
  w.disturbed.slow_ranks[w.mesh.world() - 1] = 1.5;
  const int64_t slow = 45 + 10 + 60 + 10 + 30;
  EXPECT_EQ(replay_world(w).replay.makespan, (p - 1) * (forward + backward) + m * slow);
}

// Where time goes, by hand: of two ranks of tp the fast one waits for its peer in every collective, and both
// for the data; the other replica waits for the slow one's gradients.
TEST(Comb, WhatGapsWaitForByHand) {
  World w = plain_world(one_f_one_b(1, 3), 100, 60, 40, 2, 2);
  w.work.kinds[0].forward.tp = 7, w.work.kinds[0].input.tp = 9, w.work.kinds[0].reduce = 25;
  w.disturbed.slow_ranks[1] = 1.5;
  const WorldReplay all = replay_world(w);
  const std::vector<StepRow> rows = rows_of(w, all);
  ASSERT_EQ(rows.size(), 4u);  // the slow one, its neighbour, and the replica's two
  const auto of = [&](int rank, Use u) { return rows[size_t(all.class_of[size_t(rank)])].use[size_t(u)]; };
  // A microbatch takes the slow rank 150, 90 and 60. Its neighbour waits 50 for it in the first forward, 70
  // in the others (it began them 20 sooner, its weight gradient being done), 30 in each backward.
  EXPECT_EQ(of(1, Use::peers), 0);
  EXPECT_EQ(of(0, Use::peers), 50 + 2 * 70 + 3 * 30);
  // The replicas never wait in tp; they are done at 3 (100 + 7 + 60 + 9 + 40), and then wait for the others'
  // gradients.
  EXPECT_EQ(of(2, Use::peers), 2 * 316 + 256 + 40 - 648);
  EXPECT_EQ(of(3, Use::peers), 3 * 316 - 648);
  for (int rank : {0, 2}) EXPECT_EQ(of(rank, Use::agree), 20);  // for the slow rank's last weight gradient
  for (int rank : {1, 3}) EXPECT_EQ(of(rank, Use::agree), 0);
  for (int rank : {0, 1, 2, 3}) {
    EXPECT_EQ(of(rank, Use::tp), 3 * (7 + 9));
    EXPECT_EQ(of(rank, Use::dp), 25);
    EXPECT_EQ(of(rank, Use::forward), rank == 1 ? 450 : 300);
    EXPECT_EQ(of(rank, Use::bubble), 0);
  }
  EXPECT_EQ(all.replay.makespan, 3 * (150 + 7 + 90 + 9 + 60) + 25);
}

// One microbatch through three stages, a node each: a message on and back over the link to the last node
// takes twice as long, over the first one's as much; the middle one's are all four.
TEST(World, ASlowLinkByHand) {
  World w = plain_world(one_f_one_b(3, 1), 100, 60, 40);
  w.node = 1, w.work.message = 10;
  EXPECT_EQ(replay_world(w).replay.makespan, 3 * 200 + 4 * 10);
  for (const auto& [node, more] : {std::pair{0, 20}, {1, 40}, {2, 20}}) {
    w.disturbed.slow_links = {{node, 0.5}};
    EXPECT_EQ(replay_world(w).replay.makespan, 3 * 200 + 4 * 10 + more) << node;
  }
}

// A ring over three nodes is as slow as its slowest link, whichever that is; sums inside a node are not.
TEST(World, ARingIsAsSlowAsItsSlowestLink) {
  World w = plain_world(one_f_one_b(1, 2), 100, 60, 40, 3, 2);
  w.node = 2, w.work.kinds[0].forward.tp = 7, w.work.kinds[0].reduce = 90;
  const int64_t compute = 2 * (100 + 7 + 60 + 40);
  EXPECT_EQ(replay_world(w).replay.makespan, compute + 90);
  for (const int node : {0, 1, 2}) {
    w.disturbed.slow_links = {{node, 0.5}};
    EXPECT_EQ(replay_world(w).replay.makespan, compute + 180) << node;
  }
}

TEST(World, ASlowLinkLengthensWhatCrossesIt) {
  World w = plain_world(one_f_one_b(2, 4), 100, 100, 100, 1, 4);
  w.node = 4, w.work.message = 10;
  const int64_t whole = replay_world(w).replay.makespan;
  w.disturbed.slow_links[1] = 0.5;
  // Two messages a microbatch between the nodes; of 1F1B on two ranks one pair in two is in the way.
  const int64_t longer = replay_world(w).replay.makespan - whole;
  EXPECT_GE(longer, 2 * 10);
  EXPECT_LE(longer, 2 * 4 * 10);
}

// Stage 1's program: F0 140-240, I0 W0 240-340, then its message of 40 and, ZeRO 2 reducing every
// microbatch's gradients beside the next one's passes, a reduction of 80. Over one link each takes twice as
// long while both are under way: the message is there at 420, the gradients have 40 left then.
TEST(World, ReductionsAndMessagesShareTheNetwork) {
  World w = plain_world(one_f_one_b(2, 2), 100, 60, 40, 2);
  w.schedule = add_zero(add_step(add_transfers(one_f_one_b(2, 2))), 2);
  w.work.zero = 2, w.work.kinds[0].reduce = 80, w.work.message = 40;
  const auto step = [&](int node, bool share) {
    w.node = node, w.share_links = share;
    return replay_world(w).replay.makespan;
  };
  const int64_t alone = step(4, false);
  EXPECT_EQ(step(1, false), alone);
  EXPECT_EQ(step(4, true), step(1, true));  // all in one node or all over the network: the same link
  EXPECT_EQ(step(2, true), alone);          // stages over nodes and replicas in one: a link each
  w.node = 1;
  const WorldReplay all = replay_world(w);
  const RankProgram last = program_of(w, 1);
  int64_t message = -1, gradients = -1;
  for (size_t i = 0; i < last.tape.pieces.size(); i++) {
    const PieceTime& t = all.replay.ranks[all.at(1)].pieces[i];
    if (last.tape.pieces[i].kind == PieceKind::send && message < 0) message = t.end - t.begin;
    if (last.tape.pieces[i].name == "reduce_scatter" && gradients < 0) gradients = t.end - t.met;
  }
  EXPECT_EQ(message, 80);
  EXPECT_EQ(gradients, 120);
}

// Teeth and gaps add up to the step, teeth to what the replay calls busy, gaps that are waits to what it
// calls exposed; bins lose nothing.
TEST(Comb, UseAddsUp) {
  uint32_t seed = 50;
  for (const WorldShape& s : kShapes) {
    World w = random_world(s, seed++);
    w.disturbed.slow_ranks[1] = 1.4;
    const WorldReplay all = replay_world(w);
    for (const StepRow& row : rows_of(w, all)) {
      const RankReplay& r = all.replay.ranks[row.at];
      int64_t sum = 0, work = 0;
      for (size_t u = 0; u < kUses; u++) sum += row.use[u], work += u < kWorks ? row.use[u] : 0;
      EXPECT_EQ(sum, all.replay.makespan);
      EXPECT_EQ(work, r.busy);
      EXPECT_EQ(sum - work - row.use[size_t(Use::done)], r.exposed);
      for (int bins : {1, 7, 100}) {
        UseTimes binned{};
        for (const UseTimes& t : bins_of({row.name, row.stretches}, all.replay.makespan, bins))
          for (size_t u = 0; u < kUses; u++) binned[u] += t[u];
        EXPECT_EQ(binned, row.use);
      }
    }
  }
}

// 1F1B holds min(m, p - r) microbatches on rank r; memory comes back to the states.
TEST(MemoryCurve, HoldsWhatTheScheduleHolds) {
  const int p = 4;
  World w = plain_world(one_f_one_b(p, 8), 3, 2, 1);
  w.work.kinds[0].state = 1000, w.work.kinds[0].kept = 7, w.work.base = 50;
  const WorldReplay all = replay_world(w);
  for (const StepRow& row : rows_of(w, all)) {
    EXPECT_EQ(row.peak, 1050 + 7 * (p - row.pp));
    EXPECT_EQ(row.memory.back().bytes, 1050);
    EXPECT_EQ(row.memory.front().bytes, 1050);
  }
}

// Where backward is split, what a microbatch keeps is there until its weight gradient.
TEST(MemoryCurve, WaitsForTheWeightGradient) {
  const Schedule s = zb_h1(4, 9);
  World w = plain_world(s, 3, 2, 2);
  w.work.kinds[0].kept = 7;
  const std::vector<HeldPeak> held = held_peaks(s);
  for (const StepRow& row : rows_of(w, replay_world(w)))
    EXPECT_EQ(row.peak, 7 * held[size_t(row.pp)].all()) << row.pp;
}

// Behind its input gradient a microbatch holds more until its weight gradient; while a backward pass is at
// the layer that has bytes of its own.
TEST(MemoryCurve, HoldsMoreWhileItWaits) {
  const int p = 4;
  World w = plain_world(zb_h2(p, 9), 3, 2, 2);
  w.work.kinds[0].kept = 7, w.work.kinds[0].waiting = 5, w.work.kinds[0].scratch = 100;
  for (const StepRow& row : rows_of(w, replay_world(w))) {
    const int all = 2 * p - 1, waiting = 2 * row.pp + 1;
    EXPECT_EQ(row.peak, 7 * all + 5 * waiting + 100) << row.pp;
    EXPECT_EQ(row.memory.back().bytes, 0);
  }
}

// Rank 0 has come to tp's first collective and fails before its slow peer comes: they never meet.
TEST(World, AFailedRankIsMetByNobody) {
  World w = plain_world(one_f_one_b(1, 2), 100, 60, 40, 1, 2);
  w.work.kinds[0].forward.tp = 7;
  w.disturbed.slow_ranks[1] = 1.5, w.disturbed.failing_rank = 0, w.disturbed.fails_at = 120;
  const WorldReplay all = replay_world(w, true);
  for (const RankReplay& r : all.replay.ranks) EXPECT_LE(r.end, 150);
  EXPECT_EQ(all.replay.makespan, 150);
}

// A rank that fails begins nothing more; those that need it stand still, the others have gone as far as they
// can.
TEST(World, AFailingRankStopsThoseThatNeedIt) {
  World w = plain_world(one_f_one_b(3, 4), 10, 10, 10, 2);
  w.work.kinds[0].reduce = 5;
  const int64_t whole = replay_world(w).replay.makespan;
  w.disturbed.failing_rank = w.mesh.world() - 1, w.disturbed.fails_at = 65;
  const WorldReplay all = replay_world(w, true);
  EXPECT_LT(all.replay.makespan, whole + 1);
  for (size_t r = 0; r < all.tapes.size(); r++) {
    // Nobody comes through the step: all agree on its norm.
    EXPECT_LT(all.replay.ranks[r].pieces.back().end, 0);
    if (int(r) != w.disturbed.failing_rank) continue;
    for (const PieceTime& t : all.replay.ranks[r].pieces) EXPECT_LT(t.begin, 65);
  }
}

// Of ZeRO 3 every use of a layer has its weights gathered before, one layer ahead.
TEST(RankProgram, GathersOneLayerAhead) {
  const World w = random_world({.dp = 2, .microbatches = 2, .zero = 3}, 9);
  const RankProgram program = program_of(w, 0);
  int gathers = 0, used = 0;
  std::vector<int> ahead;  // of each use of a layer
  for (const Piece& p : program.tape.pieces) {
    const bool dense = p.kind == PieceKind::call && p.group >= 0 &&
                       program.kinds[size_t(p.group)] == GroupKind::dp && p.name == "all_gather";
    gathers += dense;
    if (p.kind != PieceKind::op || p.layer.empty()) continue;
    if (p.name != "F" && p.name != "I") continue;
    used++;
    ahead.push_back(gathers - used);
  }
  EXPECT_EQ(gathers, used);
  for (size_t i = 0; i + 1 < ahead.size(); i++) EXPECT_EQ(ahead[i], 1) << i;
  EXPECT_EQ(ahead.back(), 0);
}

}  // namespace
}  // namespace trireme
