// lower(): operations by hand for one small step; for drawn runs every program is valid, and one in which an
// operation is missing, doubled or exchanged is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "program/lower.h"

namespace trireme {
namespace {

struct Drawn {
  const char* schedule = "1f1b";
  int pp = 1, chunks = 1, microbatches = 2;
  int layers = 2;  // per stage
  bool experts = false, again = false, keep = false, tied = false;
  ShardPolicy policy{};
};

Schedule schedule_of(const Drawn& d) {
  Schedule s = make_schedule(d.schedule, d.pp, d.chunks, d.microbatches);
  if (d.again) s = add_recompute(std::move(s), {}, true);
  s = add_step(add_transfers(std::move(s)));
  return add_zero(std::move(s), d.policy.zero, !d.keep, d.policy.experts_in_weight);
}

RankShape shape_of(const Drawn& d, const Schedule& s, int rank) {
  RankShape shape;
  const Holders holders(s);
  shape.tied = d.tied;
  for (const int stage : holders.stages_of(rank)) {
    StageShape& c = shape.stages.emplace_back();
    c.stage = stage;
    c.embedding = stage == 0;
    c.head = stage == s.stages - 1;
    c.first = shape.layers.size();
    c.last = c.first + size_t(d.layers);
    for (size_t l = c.first; l < c.last; l++) {
      LayerShape& layer = shape.layers.emplace_back();
      layer.name = std::to_string(stage) + "." + std::to_string(l - c.first);
      layer.recomputes = d.again;
      for (int e = 0; e <= int(d.experts); e++) {
        layer.units.push_back(uint32_t(shape.units.size()));
        const auto at = int64_t(shape.units.size());
        shape.units.push_back({.name = layer.name + (e ? "x" : ""),
                               .layer = l,
                               .experts = e > 0,
                               .gathers = d.policy.zero == 3,
                               .slots = d.policy.zero >= 2,
                               .begin = 100 * at,
                               .end = 100 * at + 100});
      }
    }
  }
  if (d.tied && shape.layers.size() > 1 && shape.stages.front().embedding && shape.stages.back().head)
    shape.layers.back().units.push_back(shape.layers.front().units[0]);
  return shape;
}

struct Lowered {
  std::vector<RankShape> shapes;
  std::vector<Program> programs;
};
Lowered lowered(const Drawn& d) {
  const Schedule s = schedule_of(d);
  const Holders holders(s);
  const auto ends = send_ends(s);
  Lowered all;
  for (int r = 0; r < d.pp; r++) {
    all.shapes.push_back(shape_of(d, s, r));
    all.programs.push_back(lower(
        {.actions = s.ranks[size_t(r)], .holders = &holders, .send_ends = ends[size_t(r)], .settle_at = {}},
        all.shapes.back(), d.policy));
  }
  return all;
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b",   "interleaved", "zb-h1",    "zb-h2",
                                      "zb-v",  "v-half", "v-min",       "dualpipe", "dualpipe-v"};

Drawn draw(std::mt19937& random) {
  const auto one_of = [&](int n) { return int(random() % unsigned(n)); };
  Drawn d;
  d.schedule = kSchedules[one_of(10)];
  d.pp = std::string_view(d.schedule) == "dualpipe" ? 2 + 2 * one_of(2) : 1 + one_of(4);
  d.chunks = std::string_view(d.schedule) == "interleaved" ? 2 : default_chunks(d.schedule);
  d.microbatches = d.pp * (1 + one_of(3)) * 2;
  d.layers = 1 + one_of(3);
  d.experts = one_of(3) == 0;
  d.again = one_of(2);
  d.keep = one_of(3) == 0;
  d.tied = one_of(2);
  d.policy.zero = one_of(4);
  d.policy.prefetch = one_of(4);
  d.policy.reshard_last = one_of(2);
  d.policy.experts_in_weight = d.experts && one_of(2);
  d.policy.casts = one_of(2);
  d.policy.bucket_bytes = 100 * one_of(4);
  d.policy.offloads_inputs = d.again && one_of(2);
  d.policy.interleaves = one_of(2);
  return d;
}

int64_t count(const Program& p, OpKind k) {
  return std::count_if(p.ops.begin(), p.ops.end(), [&](const Op& op) { return op.kind == k; });
}

// Two layers, ZeRO 3, one microbatch. The next unit is in flight while one computes, except the last
// layer's: its backward pass gathers them again after its forward pass has released them.
TEST(Program, ZeroThreeByHand) {
  const Drawn d{.microbatches = 1, .policy = {.zero = 3}};
  EXPECT_EQ(to_text(lowered(d).programs[0]),
            "0Unshard\n"
            "       0 gather 0.0\n"
            "0F0\n"
            "       1 load\n"
            "       2 gather 0.1\n"
            "       3 arrive 0.0 after 0\n"
            "       4 forward 0.0\n"
            "       5 release 0.0\n"
            "       6 gather 0.0\n"
            "       7 arrive 0.1 after 2\n"
            "       8 forward 0.1\n"
            "       9 release 0.1\n"
            "      10 gather 0.1\n"
            "      11 losses\n"
            "0B0\n"
            "      12 arrive 0.1 after 10\n"
            "      13 input 0.1\n"
            "      14 release 0.1\n"
            "      15 open 0.1\n"
            "      16 weight 0.1\n"
            "      17 sum 0.1\n"
            "      18 reduce 0.1\n"
            "      19 clear 0.1\n"
            "      20 arrive 0.0 after 6\n"
            "      21 input 0.0\n"
            "      22 release 0.0\n"
            "      23 open 0.0\n"
            "      24 weight 0.0\n"
            "      25 sum 0.0\n"
            "      26 reduce 0.0\n"
            "      27 clear 0.0\n"
            "      28 unload\n"
            "Step\n"
            "      29 retire 0.1 after 18\n"
            "      30 retire 0.0 after 26\n"
            "      31 norm\n"
            "      32 update 0.0\n"
            "      33 update 0.1\n"
            "      34 settle\n");
}

TEST(Program, DrawnRunsAreValid) {
  std::mt19937 random(20261127);
  for (int i = 0; i < 100; i++) {
    const Drawn d = draw(random);
    SCOPED_TRACE(std::string(d.schedule) + " " + std::to_string(i));
    const Lowered all = lowered(d);
    for (size_t r = 0; r < all.programs.size(); r++) {
      const Program& p = all.programs[r];
      check_program(p, all.shapes[r]);
      EXPECT_EQ(count(p, OpKind::load), count(p, OpKind::unload));
      EXPECT_EQ(count(p, OpKind::update), int64_t(all.shapes[r].units.size()));
      EXPECT_EQ(count(p, OpKind::gather) > 0, d.policy.zero == 3);
      EXPECT_EQ(count(p, OpKind::again), d.again ? count(p, OpKind::input) : 0);
    }
    check_messages(all.programs);
    EXPECT_EQ(lowered(d).programs[0].ops, all.programs[0].ops);
  }
}

// Rank 0 of DualPipe-V with two layers per stage: pairs of layers, the backward pass from its last layer on.
TEST(Program, InterleavesPassesThatAreIssuedTogether) {
  Drawn d{.schedule = "dualpipe-v", .pp = 2, .chunks = 2, .microbatches = 4, .layers = 2};
  EXPECT_EQ(to_text(lowered(d).programs[0]).find("beside"), std::string::npos);
  d.policy.interleaves = true;
  const Lowered all = lowered(d);
  const Program& p = all.programs[0];
  std::string passes;
  for (const ActionOps& a : p.actions)
    if (passes.empty() && a.interleaved > 0)
      for (const Op& op : p.of(a))
        if (op.layer >= 0) passes += to_text(p, op) + "\n";
  EXPECT_EQ(passes,
            "forward 0.0 by turns with the next 2\n"
            "input 3.1\n"
            "weight 3.1\n"
            "clear 3.1\n"
            "forward 0.1 by turns with the next 2\n"
            "input 3.0\n"
            "weight 3.0\n"
            "clear 3.0\n");
  EXPECT_NE(to_text(p).find(" and 3B"), std::string::npos);
  for (size_t r = 0; r < all.programs.size(); r++) check_program(all.programs[r], all.shapes[r]);
  check_messages(all.programs);
  Program broken = all.programs[0];
  for (Op& op : broken.ops)
    if (op.by_turns > 0) op.by_turns++;
  EXPECT_THROW(check_program(broken, all.shapes[0]), Error);
}

// Weights of at most the units in use and those gathered ahead of them are held at once.
TEST(Program, GathersNoFartherAheadThanAsked) {
  for (const int64_t prefetch : {0, 1, 3}) {
    const Drawn d{.microbatches = 3, .layers = 8, .policy = {.zero = 3, .prefetch = prefetch}};
    int64_t live = 0, most = 0;
    const Lowered all = lowered(d);
    for (const Op& op : all.programs[0].ops) {
      live += (op.kind == OpKind::gather) - (op.kind == OpKind::release);
      most = std::max(most, live);
    }
    EXPECT_EQ(most, 1 + prefetch);
  }
}

// reshard_last = false keeps the last layer's weights between its passes: one gather less per microbatch.
TEST(Program, KeepsTheLastLayer) {
  Drawn d{.microbatches = 4, .layers = 3, .policy = {.zero = 3}};
  const int64_t all = count(lowered(d).programs[0], OpKind::gather);
  EXPECT_EQ(all, 4 * 2 * 3);
  d.policy.reshard_last = false;
  EXPECT_EQ(count(lowered(d).programs[0], OpKind::gather), all - 4);
}

// At most two whole gradients have memory, the one that is open included after the wait.
TEST(Program, TwoReductionsAreInFlight) {
  for (const int zero : {1, 2, 3}) {
    const Drawn d{.microbatches = 3, .layers = 6, .policy = {.zero = zero, .casts = true}};
    int pending = 0;
    const Lowered all = lowered(d);
    for (const Op& op : all.programs[0].ops) {
      pending += (op.kind == OpKind::reduce) - (op.kind == OpKind::retire);
      EXPECT_LE(pending, 2);
    }
    EXPECT_EQ(pending, 0);
  }
}

TEST(Program, NeighboursShareABucket) {
  Drawn d{.layers = 6, .policy = {.zero = 0, .bucket_bytes = 250}};
  EXPECT_EQ(count(lowered(d).programs[0], OpKind::reduce), 2);
  d.policy.bucket_bytes = 0;
  EXPECT_EQ(count(lowered(d).programs[0], OpKind::reduce), 6);
  d.experts = true;  // experts have other replicas
  d.policy.bucket_bytes = 1000;
  EXPECT_EQ(count(lowered(d).programs[0], OpKind::reduce), 12);
}

// An operation that others depend on is missing or comes twice.
TEST(Program, FaultsAreFound) {
  std::mt19937 random(3);
  const Drawn d{.schedule = "1f1b", .pp = 2, .microbatches = 3, .policy = {.zero = 3}};
  const Lowered all = lowered(d);
  const Program& good = all.programs[1];
  int tried = 0;
  for (size_t i = 0; i < good.ops.size(); i++) {
    const OpKind k = good.ops[i].kind;
    if (k < OpKind::gather || k == OpKind::sum || k >= OpKind::norm) continue;
    tried++;
    Program missing = good;
    missing.ops[i] = {.kind = OpKind::losses};
    EXPECT_THROW(check_program(missing, all.shapes[1]), Error) << to_text(good, good.ops[i]);
    Program twice = good;
    twice.ops.insert(twice.ops.begin() + std::ptrdiff_t(i), good.ops[i]);
    EXPECT_THROW(check_program(twice, all.shapes[1]), Error) << to_text(good, good.ops[i]);
  }
  EXPECT_GT(tried, 50);
}

TEST(Program, MessagesOutOfOrderAreFound) {
  const Drawn d{.schedule = "1f1b", .pp = 2, .microbatches = 3};
  Lowered all = lowered(d);
  check_messages(all.programs);
  std::vector<Op*> sends;
  for (Op& op : all.programs[0].ops)
    if (op.kind == OpKind::send) sends.push_back(&op);
  std::swap(sends[0]->mb, sends[1]->mb);
  EXPECT_THROW(check_messages(all.programs), Error);
  // Rank 0 waits for a gradient before it sends the activations that it follows from.
  all = lowered(d);
  std::vector<Op>& ops = all.programs[0].ops;
  const auto send =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::send; });
  const auto receive =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::receive; });
  ASSERT_LT(send, receive);
  std::iter_swap(send, receive);
  EXPECT_THROW(check_messages(all.programs), Error);
}

}  // namespace
}  // namespace trireme
