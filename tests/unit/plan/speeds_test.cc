// Prices of pieces from measured sizes, and a step's forecast made of them.
#include "measure/speeds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/rng.h"
#include "cost/flops.h"
#include "forecast/forecast.h"
#include "measure/calibrate.h"
#include "measure/price.h"
#include "runtime/recording.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme {
namespace {

double drawn(uint64_t n, double low, double high) {
  return low * std::pow(high / low, uniform(rng_key(7, 0, "speeds test"), n));
}

// Of all launches of an op.
double work_in(const Tape& tape, std::string_view op) {
  double work = 0;
  for (const Piece& p : tape.pieces) work += p.kind == PieceKind::op && p.name == op ? work_of(p) : 0;
  return work;
}

TEST(Speeds, ACurveIsExactAtItsPointsAndGrows) {
  SpeedTable t{.of = "rmsnorm f32", .points = {}};
  double work = 100, seconds = 1e-6;
  for (uint64_t i = 0; i < 9; i++) {
    t.points.push_back({.work = work, .seconds = seconds});
    work *= drawn(2 * i, 1.2, 40), seconds *= drawn(2 * i + 1, 1, 30);
  }
  for (const SpeedPoint& p : t.points) EXPECT_NEAR(curve_seconds(t, p.work), p.seconds, 1e-12 * p.seconds);
  double last = 0;
  for (double w = 1e-3; w < 1e18; w *= 1.07) {
    const double s = curve_seconds(t, w);
    EXPECT_GE(s, last * (1 - 1e-12)) << w;
    EXPECT_GT(s, 0) << w;
    last = s;
  }
  const SpeedPoint& end = t.points.back();
  EXPECT_NEAR(curve_seconds(t, 10 * end.work), 10 * end.seconds, 1e-9 * end.seconds);
  EXPECT_EQ(curve_seconds(t, 1), t.points.front().seconds);
}

TEST(Speeds, WhatIsKeptOfAMachine) {
  ClusterSpec before{.name = "box", .nodes = 6, .launch = 7e-6};
  before.intra_node_mpi = {.latency = 2e-6, .bandwidth = 3e9};
  before.tiers = {{.name = "rack", .size = 2}, {.name = "pod", .size = 3}};
  ClusterSpec now{.name = "box", .peak = {.f32 = 5e10}};
  take_links(now, before);
  ClusterSpec want = before;
  want.peak.f32 = 5e10;
  EXPECT_TRUE(now == want) << save_cluster(now);

  before.alone = {.ranks = 1, .threads = 8, .ops = "add f32 1x1x5=1e-6"};
  EXPECT_FALSE(displaces(now, before)) << "nothing was measured now";
  now.together = {.ranks = 2, .threads = 3, .ops = before.alone.ops};
  EXPECT_FALSE(displaces(now, before)) << "another slot";
  now.alone = before.alone;
  EXPECT_FALSE(displaces(now, before)) << "the same again";
  now.alone.threads = 7;
  EXPECT_TRUE(displaces(now, before));
  before.name = "another box";
  EXPECT_FALSE(displaces(now, before));
  before.name = "box", now.alone = {}, before.together = now.together, before.together.ranks = 4;
  EXPECT_TRUE(displaces(now, before));
}

// What was recorded while the clock was slower counts as it would have taken.
TEST(Speeds, TimesAreSetToTheUsualClock) {
  Tape tape;
  for (int i = 0; i < 3; i++) {
    Piece p{.name = "rmsnorm", .cost = {.bytes_read = 500, .bytes_written = 500}, .launched = true};
    p.begin_ns = 1000 + 10'000 * i, p.end_ns = p.begin_ns + 8000;
    tape.pieces.push_back(p);
  }
  SpeedSamples usual, slow;
  usual.add(tape, "f32"), slow.add(tape, "f32", 0.75);
  EXPECT_NEAR(usual.tables().at(0).points.at(0).seconds, 8e-6, 1e-12);
  EXPECT_NEAR(slow.tables().at(0).points.at(0).seconds, 6e-6, 1e-12);
  EXPECT_NEAR(slow.between_s(), 0.75 * usual.between_s(), 1e-12);
}

// The optimizer's launches count as one of all a rank's state: whether caches keep it from step to step does
// not follow from a layer's part. Priced, a launch has its share.
TEST(Speeds, WhatPassesThroughStateIsMeasuredByTheStep) {
  Tape tape;
  for (const int64_t bytes : {300, 100, 600}) {
    Piece p{.name = "adamw", .cost = {.bytes_read = bytes, .bytes_written = bytes}, .launched = true};
    p.begin_ns = 1000 * int64_t(tape.pieces.size() + 1), p.end_ns = p.begin_ns + bytes;
    tape.pieces.push_back(p);
  }
  SpeedSamples samples;
  samples.add(tape, "f32");
  const std::vector<SpeedTable> tables = samples.tables();
  ASSERT_EQ(tables.size(), 1u);
  ASSERT_EQ(tables[0].points.size(), 1u);
  EXPECT_NEAR(tables[0].points[0].work, 2000, 1e-6);
  EXPECT_NEAR(tables[0].points[0].seconds, 1e-6, 1e-12);

  Calibration c{.ranks = 1, .threads = 1};
  c.ops = "adamw f32 1x1x2000=1e-06 1x1x20000=4e-05";
  const Speeds speeds(c);
  EXPECT_NEAR(*speeds.op(tape.pieces[1], "f32", 2000), 1e-7, 1e-15);
  EXPECT_NEAR(*speeds.op(tape.pieces[1], "f32", 20000), 4e-7, 1e-15);
  // So in a step: all of it what the curve says of all of it, in one of several as in one.
  const RunSpec run = test::tiny_llama(2, 2, 1);
  const Tape step = record_training(run, schedule_of(run), 1),
             two = record_training(run, schedule_of(run), 1, 0, {}, 2);
  const double work = work_in(step, "adamw");
  ClusterSpec cluster;
  cluster.alone = c;
  cluster.alone.ops = Texts::of({fmt::format("adamw f32 1x1x{0:.0f}=0.001 1x1x{1:.0f}=0.5", work, 2 * work)});
  for (const Tape* t : {&step, &two}) {
    const std::vector<Price> prices = price(*t, cluster, run);
    int64_t spent = 0;
    for (size_t i = 0; i < prices.size(); i++)
      if (t->pieces[i].name == "adamw") spent += prices[i].time;
    EXPECT_NEAR(double(spent), 1e6 * t->steps, 1e3);
  }
}

// Where bf16 is emulated its ops are measured too, of every architecture.
TEST(Speeds, EmulatedTypesAreDrilledToo) {
  for (const int ranks : {1, 2})
    for (const bool quick : {false, true}) {
      std::map<std::string, std::set<std::string>> archs;  // by compute type
      size_t f32 = 0, bf16 = 0;
      for (const RunSpec& r : drills({.ranks = ranks, .threads = 1, .bf16 = false, .quick = quick})) {
        archs[r.precision.compute].insert(r.model.arch);
        (r.precision.compute == "bf16" ? bf16 : f32)++;
      }
      EXPECT_EQ(archs["bf16"], archs["f32"]) << ranks << quick;
      EXPECT_TRUE(quick ? bf16 == f32 : bf16 < f32) << bf16 << " of " << f32;
    }
}

// Gradients of a second microbatch are added to the first one's: products of their own.
TEST(Speeds, DrillsAddGradientsOfSeveralMicrobatches) {
  const auto added = [](const RunSpec& run) {  // sums that go on from what is there, or bias
    int64_t n = 0;
    const Tape tape = record_training(run, schedule_of(run), 1);
    for (const Piece& p : tape.pieces)
      if (p.name == "matmul") n += std::fmod(p.cost.flops, 2 * double(p.rows * p.cols)) != 0;
    return n;
  };
  std::map<Axis, std::set<bool>> seen;  // by what is divided
  int compared = 0;
  for (const RunSpec& r : drills({.ranks = 2, .threads = 1, .bf16 = true, .quick = false})) {
    const bool several = r.batch.global > r.layout.dp * r.batch.micro;
    seen[divided_axis(r.layout)].insert(several);
    // ZeRO 2 and 3 sum each microbatch's over the ranks first.
    if (r.model.hidden > 128 || r.layout.zero > 1 || !several) continue;
    RunSpec one = r;
    one.batch.global /= 2;
    EXPECT_GT(added(r), 2 * added(one));
    compared++;
  }
  EXPECT_GT(compared, 3);
  for (const Axis axis : {Axis::dp, Axis::tp, Axis::cp}) EXPECT_EQ(seen[axis].size(), 2u) << int(axis);
}

RunSpec small_run(int64_t dp) {
  return test::tiny_llama(2, 2, dp);
}

ClusterSpec calibrated(int64_t ranks) {
  ClusterSpec c;
  c.peak = {.f32 = 1e12, .bf16 = 2e12}, c.memory_bandwidth = 1e11;
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e10};
  Calibration& m = ranks == 1 ? c.alone : c.together;
  m = {.ranks = ranks, .threads = 1, .between_s = 2e-7};
  m.ops = Texts::of({"matmul f32 46x36x100000=3e-06 200x52x9000000=0.0004", "rmsnorm f32 1x1x1000=2e-06",
                     "adamw f32 1x1x5000=4e-06 1x1x100000=8e-05"});
  m.calls = "all_reduce ordered 2 1x1x1000=5e-05 1x1x1000000=0.002";
  return c;
}

// One rank has nothing to wait for: its step is its ops one behind the other, as the table prices each.
TEST(Speeds, AStepOfOneRankIsTheSumOfItsOps) {
  const RunSpec run = small_run(1);
  const ClusterSpec c = calibrated(1);
  const Forecast f = forecast(run, schedule_of(run), c, 1);
  ASSERT_TRUE(f.expected);
  const Speeds speeds(c.alone);
  const double adamw = work_in(f.booking.tape, "adamw");
  double sum = 0, by_op = 0, unmeasured = 0;
  for (const Piece& p : f.booking.tape.pieces) {
    if (p.kind != PieceKind::op) continue;
    const auto known = speeds.op(p, "f32", adamw);
    EXPECT_EQ(known.has_value(), p.name == "matmul" || p.name == "rmsnorm" || p.name == "adamw") << p.name;
    if (!known) unmeasured += op_seconds(p.name, p.cost, c, "f32").seconds;
    sum += known.value_or(op_seconds(p.name, p.cost, c, "f32").seconds) + (p.launched ? 2e-7 : 0);
  }
  for (const OpForecast& o : f.ops) by_op += o.seconds;
  EXPECT_NEAR(f.step_s, sum, 1e-9 * double(f.booking.tape.pieces.size()));
  EXPECT_NEAR(by_op + 2e-7 * double(f.booking.launches), sum, 1e-3 * sum);
  EXPECT_NEAR(f.unmeasured_s, unmeasured, 1e-9 * unmeasured);
  const std::string text = to_text(run, f, c);
  EXPECT_NE(text.find("that were not measured here: "), std::string::npos);
  const size_t line = text.find("that were not measured here: ");
  EXPECT_NE(text.substr(line, text.find('\n', line) - line).find("swiglu"), std::string::npos) << text;
  EXPECT_EQ(text.substr(line, text.find('\n', line) - line).find("matmul"), std::string::npos) << text;
  // Beside it the roof, which is the forecast of the machine without tables.
  EXPECT_EQ(f.roof_s, forecast(run, schedule_of(run), at_the_roof(c), 1).step_s);
  EXPECT_NE(f.step_s, f.roof_s);
}

// Peaks that were measured while others had the processors: a kernel went past them, so they bound nothing.
TEST(Speeds, NothingExpectedIsBelowItsBound) {
  for (const bool cached : {false, true}) {
    const RunSpec run = small_run(1);
    ClusterSpec c = calibrated(1);
    c.peak.f32 = 1e9;  // matmul was measured at 1e5 in 3 us
    if (cached)        // beyond the memory's 1e11
      c.alone.ops =
          Texts::of({"matmul f32 46x36x100000=3e-06 200x52x9000000=0.0004", "rmsnorm f32 1x1x1000=1e-09"});
    const ClusterSpec lifted = passed_by_kernels(run, c);
    EXPECT_NEAR(lifted.peak.f32, 100000 / 3e-06, 1);
    EXPECT_EQ(lifted.peak.bf16, c.peak.bf16);
    const Forecast f = forecast(run, schedule_of(run), c, 1);
    ASSERT_TRUE(f.expected);
    EXPECT_GE(f.step_s, f.roof_s);
    EXPECT_LE(f.mfu, 1);
    for (const OpForecast& o : f.ops) EXPECT_GE(o.seconds, o.roof_s) << o.total.op;
  }
  ClusterSpec quiet = calibrated(1);  // 1e12: no kernel comes near it
  EXPECT_EQ(passed_by_kernels(small_run(1), quiet), quiet);
}

// A step of several ranks is what its pieces foretell times what whole steps of ranks that divide the same
// took of that; files of before, which do not say, are as 1.
TEST(Speeds, WholeStepsOfRanksAreTimedByWhatTheyDivide) {
  const auto divided = [](std::string_view what) {
    RunSpec run = small_run(what == "dp" ? 2 : 1);
    LayoutSpec& l = run.layout;
    if (what == "tp") l.tp = 2, run.model.heads = run.model.kv_heads = 2, run.model.head_dim = 18;
    if (what == "cp") l.cp = 2, run.data.seq_len = 24;
    if (what == "pp") l.pp = 2, run.batch.global = 8;
    return run;
  };
  const std::pair<std::string_view, double Calibration::*> kinds[] = {{"dp", &Calibration::step_dp},
                                                                      {"tp", &Calibration::step_tp},
                                                                      {"cp", &Calibration::step_cp},
                                                                      {"pp", &Calibration::step_pp}};
  const ClusterSpec plain = calibrated(2);
  for (const auto& [what, ratio] : kinds) {
    const RunSpec run = divided(what);
    const auto step = [&](const ClusterSpec& c) { return forecast(run, schedule_of(run), c, 1).step_s; };
    const double before = step(plain);
    for (const auto& [other, key] : kinds) {
      ClusterSpec c = plain;
      c.together.*key = 1.25;
      EXPECT_NEAR(step(c), (other == what ? 1.25 : 1) * before, 1e-9 * before) << what << " " << other;
      EXPECT_EQ(step(at_the_roof(c)), step(at_the_roof(plain))) << what;
    }
  }
  LayoutSpec l;
  EXPECT_EQ(divided_axis(l), Axis::dp);
  l.dp = l.ep = 2;
  EXPECT_EQ(divided_axis(l), Axis::ep);
  EXPECT_EQ(whole_step(Axis::ep), &Calibration::step_ep);
  l.tp = 2, l.cp = 2, l.ep = 1;
  EXPECT_EQ(divided_axis(l), Axis::cp);
  l.pp = 2;
  EXPECT_EQ(divided_axis(l), Axis::pp);
}

// Collectives beside compute are a table of their own; where only the other kind was measured it stands for
// both.
TEST(Speeds, CallsBesideComputeHaveTheirOwnTimes) {
  Calibration c{.ranks = 2, .threads = 1};
  c.calls = Texts::of({"all_gather direct 2 1x1x1000=1e-06", "all_gather direct 2 beside 1x1x1000=3e-05",
                       "all_reduce ordered 2 beside 1x1x1000=5e-05"});
  const Speeds speeds(c);
  EXPECT_EQ(speeds.call("all_gather", "direct", 2, false, 1000), 1e-6);
  EXPECT_EQ(speeds.call("all_gather", "direct", 2, true, 1000), 3e-5);
  EXPECT_EQ(speeds.call("all_reduce", "ordered", 2, false, 1000), 5e-5);
  EXPECT_FALSE(speeds.call("all_reduce", "ordered", 4, false, 1000));
}

// What such calls take of a step beyond their time comes once for each and for each byte, whatever the ratio
// of whole steps.
TEST(Speeds, CallsBesideComputeTakeTimeOfTheStep) {
  RunSpec run = small_run(2);
  run.layout.zero = 3;
  const Schedule schedule = schedule_of(run);
  const Beside beside = calls_beside(record_training(run, schedule, 1));
  ASSERT_GT(beside.calls, 3);
  ASSERT_GT(beside.bytes, 1000);
  ClusterSpec c = calibrated(2);
  const double plain = forecast(run, schedule, c, 1).step_s;
  c.together.beside_s = 1e-4, c.together.beside_s_per_byte = 1e-9, c.together.step_dp = 1.5;
  EXPECT_NEAR(forecast(run, schedule, c, 1).step_s,
              1.5 * plain + 1e-4 * double(beside.calls) + 1e-9 * double(beside.bytes), 1e-9);
}

// Steps made by the formula give its numbers back, though some were held up.
TEST(Speeds, CallsAndBytesAreFoundInWholeSteps) {
  std::vector<WholeStep> steps;
  for (int i = 0; i < 60; i++) {
    WholeStep s{.axis = i % 3 == 0 ? Axis::cp : Axis::dp};
    s.pieces_s = 1e-3 * (1 + i % 7), s.calls = i % 4 * 4, s.bytes = 1e6 * (i * i % 23);
    s.step_s = (s.axis == Axis::cp ? 1.10 : 1.02) * s.pieces_s + 32e-6 * s.calls + 16e-12 * s.bytes;
    if (i % 9 == 0) s.step_s *= 1.5;
    steps.push_back(s);
  }
  const WholeStepFit fit = fit_whole_steps(steps);
  EXPECT_NEAR(std::log2(fit.call_s / 32e-6), 0, 0.51) << fit.call_s;
  EXPECT_NEAR(std::log2(fit.byte_s / 16e-12), 0, 0.51) << fit.byte_s;
  EXPECT_NEAR(fit.ratios.at(Axis::dp), 1.02, 0.02);
  EXPECT_NEAR(fit.ratios.at(Axis::cp), 1.09, 0.03);
  EXPECT_EQ(fit.ratios.size(), 2u);
  for (WholeStep& s : steps) s.calls = s.bytes = 0, s.step_s = 2 * s.pieces_s;
  const WholeStepFit none = fit_whole_steps(steps);
  EXPECT_EQ(none.call_s, 0) << "what no step tells is none";
  EXPECT_EQ(none.byte_s, 0);
  EXPECT_NEAR(none.usual, 2, 1e-12);
}

// Where calls take 5 us in one half of the runs and 25 in the other, one run more of either half moves what
// is found by little: it lies between, not at whichever half has the most runs.
TEST(Speeds, OneMoreRunMovesWhatCallsTakeByLittle) {
  const auto found = [](int extra) {
    std::vector<WholeStep> steps;
    const auto add = [&](int i, double call) {
      WholeStep s{.pieces_s = 1e-3 * (1 + i % 3), .calls = 8};
      s.step_s = s.pieces_s + call * s.calls;
      steps.push_back(s);
    };
    for (int i = 0; i < 24; i++) add(i / 2, i % 2 ? 5e-6 : 25e-6);
    for (int i = 0; i < 12; i++) steps.push_back({.step_s = 1e-2 + i * 1e-3, .pieces_s = 1e-2 + i * 1e-3});
    for (int i = 0; i < std::abs(extra); i++) add(i, extra < 0 ? 5e-6 : 25e-6);
    return fit_whole_steps(steps).call_s;
  };
  EXPECT_NEAR(found(0), 15e-6, 5e-6);
  EXPECT_NEAR(found(-2), found(0), 2.5e-6);
  EXPECT_NEAR(found(2), found(0), 2.5e-6);
}

// Weights' gradients over few rows take what their outputs take, so they are measured and not foretold: of
// dense products down to 32 rows, of experts' down to 32 of each expert.
TEST(Speeds, DrillsHaveProductsOfFewRows) {
  std::map<std::string, std::map<bool, std::set<int64_t>>> widths;  // by compute type, experts or none
  for (const RunSpec& r : drills({.ranks = 2, .threads = 1, .bf16 = true, .quick = false})) {
    const int64_t tokens = r.batch.micro * r.data.seq_len;
    const int64_t rows = r.model.moe() ? tokens * r.model.experts_per_token / r.model.experts : tokens;
    if (r.layout.dp == 2 && r.layout.ep == 1 && rows <= 32)
      widths[r.precision.compute][r.model.moe()].insert(r.model.hidden);
  }
  for (const std::string compute : {"f32", "bf16"}) {
    EXPECT_GE(widths[compute][false].size(), 5u) << compute;
    EXPECT_GE(widths[compute][true].size(), 4u) << compute;
  }
}

// Steps that are calls and nothing else leave no ratio below 0.
TEST(Speeds, StepsOfCallsAloneKeepTheirRatio) {
  std::vector<WholeStep> steps;
  for (int i = 1; i < 9; i++)
    steps.push_back({.step_s = 1e-5 * i, .pieces_s = 1e-6 * (9 - i), .calls = double(i)});
  const WholeStepFit fit = fit_whole_steps(steps);
  EXPECT_GT(fit.usual, 0);
  EXPECT_EQ(fit.call_s, 0);
  EXPECT_GT(fit.ratios.at(Axis::dp), 0);
}

// What a call beside compute takes is told apart from what else differs: small models are run once more with
// another stage of ZeRO and nothing else changed.
TEST(Speeds, SmallModelsAreDrilledWithFewCallsAndWithMany) {
  const std::vector<RunSpec> runs = drills({.ranks = 2, .threads = 1, .bf16 = true, .quick = false});
  std::map<std::string, std::set<int64_t>> pairs;  // by compute type: widths
  for (size_t i = 1; i < runs.size(); i++) {
    RunSpec one = runs[i - 1];
    if (one.layout.zero == runs[i].layout.zero) continue;
    one.layout.zero = runs[i].layout.zero;
    if (!(one == runs[i])) continue;
    const auto calls = [](const RunSpec& r) {
      return calls_beside(record_training(r, schedule_of(r), 1)).calls;
    };
    EXPECT_NE(calls(runs[i - 1]), calls(runs[i])) << i;
    pairs[runs[i].precision.compute].insert(runs[i].model.hidden);
  }
  for (const std::string compute : {"f32", "bf16"}) EXPECT_GE(pairs[compute].size(), 3u) << compute;
}

// By hand: four of 1.21 beside a usual 1 are 1.1; many outweigh it, and it outweighs none.
TEST(Speeds, FewRatiosAreDrawnTowardsTheUsualOne) {
  EXPECT_NEAR(pooled_ratio({1.21, 1.3, 0.2, 1.21}, 1), 1.1, 1e-12);
  EXPECT_NEAR(pooled_ratio({8}, 1), std::exp2(3.0 / 5), 1e-12);
  EXPECT_NEAR(pooled_ratio(std::vector<double>(100000, 1.5), 1), 1.5, 1e-4);
  EXPECT_EQ(pooled_ratio({}, 1.07), 1.07);
}

// The ranks of a machine that were measured say so of each kind of division, and near to 1.
TEST(Speeds, WholeStepsAreMeasuredBesideTheirPieces) {
  const std::vector<RunSpec> runs = drills({.ranks = 2, .threads = 1, .bf16 = false});
  std::map<Axis, std::set<int64_t>> widths;
  for (const RunSpec& r : runs) widths[divided_axis(r.layout)].insert(r.model.hidden);
  for (const Axis axis : {Axis::dp, Axis::tp, Axis::cp, Axis::ep, Axis::pp})
    EXPECT_GE(widths[axis].size(), 2u) << name_of(axis);
  const Calibration c = calibrate({.ranks = 2, .threads = 1, .bf16 = false, .quick = true});
  EXPECT_GT(c.step_dp, 0.3);
  EXPECT_LT(c.step_dp, 5);
  EXPECT_EQ(c.step_pp, 0) << "no pipeline was run";
  bool beside = false;
  for (const std::string& line : c.calls) beside |= line.starts_with("all_gather direct 2 beside ");
  EXPECT_TRUE(beside) << "ZeRO gathers beside compute";
}

// Nanoseconds are integers: a machine that would take years for a step is refused, not wrapped around.
TEST(Speeds, AbsurdMachinesAreRefused) {
  const RunSpec run = small_run(1);
  ClusterSpec c;
  c.name = "snail", c.peak = {.f32 = 1e12, .bf16 = 1e12}, c.memory_bandwidth = 1e-9;
  try {
    forecast(run, schedule_of(run), c, 1);
    FAIL() << "a step of ages was priced";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("\"snail\""), std::string::npos) << e.what();
  }
}

// Whatever the machine: a step takes as long as its slowness makes it, or it is refused.
TEST(Speeds, SlowMachinesAreSlowInProportion) {
  const RunSpec run = small_run(1);
  ClusterSpec c;
  c.peak = {.f32 = 1e30, .bf16 = 1e30};
  double seconds_bytes = 0;
  int priced = 0, refused = 0;
  for (double bandwidth = 1e6; bandwidth > 1e-7; bandwidth /= 10) {
    c.memory_bandwidth = bandwidth;
    try {
      const double step = forecast(run, schedule_of(run), c, 1).step_s;
      if (seconds_bytes == 0) seconds_bytes = step * bandwidth;
      EXPECT_NEAR(step * bandwidth / seconds_bytes, 1, 1e-3) << bandwidth;
      priced++;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request) << e.what();
      refused++;
    }
  }
  EXPECT_GT(priced, 3);
  EXPECT_GT(refused, 3);
}

// Expected is what kernels that take more than half of the step make it, by their own seconds.
TEST(Speeds, ExpectedWhereMostOfTheStepWasMeasured) {
  const RunSpec run = small_run(1);
  ClusterSpec c = calibrated(1);
  c.memory_bandwidth = 1e9;
  const Speeds speeds(c.alone);
  double measured = 0, others = 0;
  const Tape tape = record_training(run, schedule_of(run), 1);
  for (const Piece& p : tape.pieces) {
    const auto known = speeds.op(p, "f32", work_in(tape, p.name));
    if (p.launched && known) measured += *known;
    if (p.launched && !known) others += op_seconds(p.name, p.cost, c, "f32").seconds;
  }
  for (const double ratio : {0.6, 0.9, 1.1, 1.9}) {  // of what was measured to what was not
    const double slower = ratio * others / measured;
    ClusterSpec other = c;
    Texts ops;
    for (const std::string& line : c.alone.ops) {
      std::string wrong;
      SpeedTable t = speed_table_of(line, wrong);
      ASSERT_TRUE(wrong.empty()) << wrong;
      std::string text = t.of;
      for (const SpeedPoint& p : t.points)
        text += fmt::format(" {:.0f}x{:.0f}x{:.17g}={:.17g}", std::max(p.rows, 1.0), std::max(p.cols, 1.0),
                            p.work, p.seconds * slower);
      ops.list.push_back(text);
    }
    other.alone.ops = ops;
    EXPECT_EQ(forecast(run, schedule_of(run), other, 1).expected, ratio > 1) << ratio;
  }
}

// Two stages: what their messages take while neither waits for them is taken from compute, whose cores copy;
// it is some of a rank's four messages of 0.3 ms.
TEST(Speeds, HiddenMessagesTakeComputesTime) {
  RunSpec run = small_run(1);
  run.layout.pp = 2, run.batch.global = 8;
  ClusterSpec c = calibrated(2);
  c.together.calls.list.push_back("p2p direct 2 1x1x1000=0.0003 1x1x100000=0.0003");
  const Forecast f = forecast(run, schedule_of(run), c, 1);
  ASSERT_TRUE(f.expected);
  const double replayed = double(replay_steps(run, schedule_of(run), c, 1, 1).makespan) * 1e-9;
  EXPECT_GT(f.step_s, replayed + 1e-5);
  EXPECT_LT(f.step_s, replayed + 4 * 3e-4);
}

// By hand: devices' hours at their price; and what computes again counts beside the model's own FLOPs.
TEST(Speeds, MoneyAndHardwareFlops) {
  RunSpec run = small_run(2);
  run.layout.recompute = "full";
  ClusterSpec c = calibrated(2);
  c.price_per_hour = 3;
  const Forecast f = forecast(run, schedule_of(run), c, 1);
  ASSERT_GT(f.step_s, 0);
  EXPECT_NEAR(f.cost, f.step_s * 20 / 3600 * 2 * 3, 1e-12 * f.cost);
  const double forward = forward_flops_per_token(run.model, 23), head = 2.0 * 36 * 61;
  EXPECT_NEAR(f.hfu / f.mfu, 1 + (forward - head) / (3 * forward), 1e-9);
  EXPECT_NEAR(f.mfu, 3 * forward * 8 * 23 / (f.step_s * 2 * 1e12), 1e-9 * f.mfu);
}

// Which of the two an op is bound by is what most of its time at the roof is.
TEST(Speeds, AnOpIsBoundByWhatMostOfItIs) {
  const RunSpec run = small_run(1);
  int mixed = 0;
  for (double bandwidth = 1e9; bandwidth < 1e13; bandwidth *= 1.2) {
    ClusterSpec c;
    c.peak = {.f32 = 1e12, .bf16 = 1e12}, c.memory_bandwidth = bandwidth;
    const Forecast f = forecast(run, schedule_of(run), c, 1);
    for (const OpForecast& o : f.ops) {
      double computing = 0, moving = 0;
      for (const Piece& p : f.booking.tape.pieces) {
        if (!p.launched || p.name != o.total.op) continue;
        const double flops = p.cost.flops / 1e12,
                     bytes = double(p.cost.bytes_read + p.cost.bytes_written) / bandwidth;
        (flops >= bytes ? computing : moving) += std::max(flops, bytes);
      }
      if (computing + moving == 0) continue;
      EXPECT_EQ(o.compute_bound, computing >= moving) << o.total.op << " " << bandwidth;
      mixed += computing > moving && moving > 0;
    }
  }
  EXPECT_GT(mixed, 0);
}

// Kernels measured in another type say nothing: the roof, and that it is that.
TEST(Speeds, MostlyUnmeasuredIsNotExpected) {
  RunSpec run = small_run(1);
  run.precision.compute = "f16";
  const ClusterSpec c = calibrated(1);
  const Forecast f = forecast(run, schedule_of(run), c, 1);
  EXPECT_FALSE(f.expected);
  EXPECT_EQ(f.step_s, f.roof_s);
  EXPECT_GT(f.step_s, 0);
  EXPECT_EQ(f.unmeasured_s, 0);
  for (const OpForecast& o : f.ops) EXPECT_EQ(o.seconds, o.roof_s) << o.total.op;
  EXPECT_NE(to_text(run, f, c).find("no kernels measured in f16"), std::string::npos);
}

TEST(Speeds, OnlyWhatWasMeasuredWithAsManyRanksAndThreadsCounts) {
  RunSpec one = small_run(1), two = small_run(2), three = small_run(3);
  ClusterSpec c = calibrated(2);
  EXPECT_EQ(calibration_of(one, c), nullptr);
  EXPECT_EQ(calibration_of(two, c), &c.together);
  EXPECT_EQ(calibration_of(three, c), nullptr);
  two.train.threads = 2;
  EXPECT_EQ(calibration_of(two, c), nullptr);
  two.train.threads = 0;
  EXPECT_EQ(calibration_of(two, c), &c.together);
  const Forecast f = forecast(one, schedule_of(one), c, 1);
  EXPECT_FALSE(f.expected);
  EXPECT_EQ(f.step_s, f.roof_s);
  EXPECT_NE(to_text(one, f, c).find("the expected time is not known"), std::string::npos);
  // Four ranks of two machines are two on each.
  RunSpec four = small_run(4);
  c.nodes = 2;
  EXPECT_EQ(calibration_of(four, c), &c.together);
  EXPECT_EQ(calibration_of(two, c), nullptr);
  c.together.f32 = 7e10, c.together.memory_bandwidth = 3e9;
  EXPECT_EQ(as_met(four, c).peak.f32, 7e10);
  EXPECT_EQ(as_met(four, c).memory_bandwidth, 3e9);
  EXPECT_EQ(as_met(two, c).memory_bandwidth, c.memory_bandwidth);
  // GPUs: each rank has one, as the rank alone that was measured had, whatever the host's threads.
  two.train.device = four.train.device = "cuda", four.train.threads = 5;
  EXPECT_EQ(calibration_of(two, c), nullptr);
  c.alone = c.together, c.alone.ranks = 1;
  EXPECT_EQ(calibration_of(two, c), &c.alone);
  EXPECT_EQ(calibration_of(four, c), &c.alone);
}

// What rank threads take beyond their pieces, wires that are copies by the cores that compute, GPUs do not.
// hidden.
TEST(Speeds, WiresTakeNothingFromGpus) {
  RunSpec run = small_run(2);
  ClusterSpec c = calibrated(2);
  c.together.step_dp = 2;  // what whole steps of rank threads take of their pieces
  c.alone = c.together;
  const double together = forecast(run, schedule_of(run), c, 1).step_s;
  run.train.device = "cuda";
  EXPECT_NEAR(forecast(run, schedule_of(run), c, 1).step_s, together / 2, 1e-9);
}

// More threads than processors: the ranks' peaks add up to the machine's.
TEST(Speeds, ManyRanksShareAMachine) {
  ClusterSpec c;
  c.peak = {.f32 = 8e10, .bf16 = 16e10}, c.memory_bandwidth = 4e10;
  c.together.ranks = 2, c.together.threads = 1, c.together.f32 = 7e10;
  EXPECT_EQ(part_of(c, 2, 1, 2), c);
  EXPECT_EQ(part_of(c, 1, 16, 2), c);
  EXPECT_EQ(2 * part_of(c, 2, 16, 2).peak.f32, c.peak.f32);
  const ClusterSpec part = part_of(c, 8, 1, 2);
  EXPECT_EQ(8 * part.peak.f32, 2 * c.peak.f32);
  EXPECT_EQ(8 * part.peak.bf16, 2 * c.peak.bf16);
  EXPECT_EQ(8 * part.memory_bandwidth, 2 * c.memory_bandwidth);
  EXPECT_EQ(part.together, Calibration());
}

// A balanced router fills 1 / ep_buffer of the room: products of experts are priced by that, others as they
// are.
TEST(Speeds, ExpertsOverRanksArePricedByTheRowsThatCome) {
  RunSpec run = small_run(2);
  run.layout.ep = 2, run.layout.ep_buffer = 1.5;
  const Piece p{.name = "grouped_matmul", .cost = {3000, 10, 20}, .rows = 150, .cols = 10, .launched = true};
  EXPECT_NEAR(as_filled(p, run, 0).cost.flops, 2000, 1e-9);
  EXPECT_EQ(as_filled(p, run, 0).rows, 100);
  Piece weight = p, other = p;
  weight.name = "grouped_matmul_weight", other.name = "matmul";
  EXPECT_NEAR(as_filled(weight, run, 0).cost.flops, 2000, 1e-9);
  EXPECT_EQ(as_filled(weight, run, 0).rows, 150);
  EXPECT_EQ(as_filled(other, run, 0).cost.flops, 3000);
  run.layout.ep_load = 1.2;  // of the fullest rank
  EXPECT_NEAR(as_filled(p, run, 0).cost.flops, 2400, 1e-9);
  EXPECT_EQ(as_filled(p, run, 0).rows, 120);
  EXPECT_NEAR(as_filled(weight, run, 0).cost.flops, 2400, 1e-9);
  run.layout.ep_load = 5;  // more than all there are
  EXPECT_NEAR(as_filled(p, run, 0).cost.flops, 4000, 1e-9);
  run.layout.ep_buffer = 1, run.layout.ep_load = 1.5;
  EXPECT_EQ(as_filled(p, run, 0).cost.flops, 4500);
  run.layout.ep_load = 1;
  run.layout.ep_buffer = 0.4;  // of three rounds each has room for 0.4
  EXPECT_NEAR(as_filled(p, run, 0).cost.flops, 2500, 1e-9);
  run.layout.ep_buffer = 1e6;  // room for all rows of both
  EXPECT_EQ(as_filled(p, run, 0).cost.flops, 1500);
  EXPECT_EQ(as_filled(p, run, 0).rows, 75);
  run.layout.ep = 1;
  EXPECT_EQ(as_filled(p, run, 0).cost.flops, 3000);
}

TEST(Speeds, SamplesAreMediansBySize) {
  Tape tape;
  auto launch = [&](std::string_view name, int64_t rows, double flops, int64_t bytes, int64_t ns) {
    Piece p{.name = name, .cost = {flops, bytes, 0}, .rows = rows, .cols = 8, .launched = true};
    const int64_t begin = tape.pieces.empty() ? 1000 : tape.pieces.back().end_ns + 50;
    p.begin_ns = begin, p.end_ns = begin + ns;
    tape.pieces.push_back(p);
  };
  for (int64_t ns : {900, 1000, 5000}) launch("matmul", 4, 4096, 10, ns);
  launch("matmul", 5, 4096, 10, 700);
  launch("add", 4, 8, 1000, 100), launch("add", 4, 8, 1200, 400);  // near each other: one point
  SpeedSamples samples;
  samples.add(tape, "f32");
  EXPECT_NEAR(samples.between_s(), 50e-9, 1e-12);
  const std::vector<SpeedTable> t = samples.tables();
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t[0].of, "add f32");
  ASSERT_EQ(t[0].points.size(), 1u);
  EXPECT_NEAR(t[0].points[0].seconds, 200e-9, 1e-12);
  ASSERT_EQ(t[1].points.size(), 2u);
  EXPECT_EQ(t[1].points[0].rows, 4);
  EXPECT_EQ(t[1].points[1].rows, 5);
  EXPECT_NEAR(t[1].points[0].seconds, 1e-6, 1e-15);
  EXPECT_NEAR(t[1].points[1].seconds, 0.7e-6, 1e-15);
}

}  // namespace
}  // namespace trireme
