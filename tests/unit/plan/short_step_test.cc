// Steps of many microbatches simulated by few of them, against all, to the nanosecond.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "catalog/catalog.h"
#include "forecast/scaled_run.h"
#include "sanitized.h"
#include "search/search.h"
#include "sim/steady_step.h"
#include "sim/world_report.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

constexpr std::string_view kShortSchedules[] = {"1f1b", "gpipe",  "interleaved", "zb-h1",     "zb-h2",
                                                "zb-v", "v-half", "v-min",       "dualpipe-v"};

class DrawnSteps {
 public:
  explicit DrawnSteps(uint64_t seed) : random_(seed) {}
  int64_t one_of(std::initializer_list<int64_t> all) {
    return *(all.begin() + std::ptrdiff_t(std::uniform_int_distribution<size_t>(0, all.size() - 1)(random_)));
  }
  double between(double a, double b) { return std::uniform_real_distribution<double>(a, b)(random_); }
  SearchLayout layout(size_t schedule, int64_t layers, bool experts) {
    SearchLayout l;
    l.pp = one_of({1, 2, 2, 3, 4});
    if (l.pp > 1) l.schedule = kShortSchedules[schedule];
    if (l.schedule == "interleaved") l.chunks = std::min<int64_t>(layers / l.pp, one_of({2, 3}));
    if (l.schedule.starts_with("zb-v") || l.schedule.starts_with("v-") || l.schedule == "dualpipe-v")
      l.chunks = 2;
    l.dp = one_of({1, 2, 4}), l.tp = one_of({1, 1, 2});
    if (experts) l.ep = l.dp;
    l.zero = l.dp > 1 ? one_of({0, 1, 2, 3}) : 0;
    l.again = Again(one_of({0, 1, 2}));
    l.global = l.dp * l.pp * one_of({6, 12, 24, 25});
    l.gpus = l.tp * l.pp * l.dp;
    return l;
  }

 private:
  std::mt19937_64 random_;
};

TEST(ShortStep, TakesTheNanosecondsOfAllMicrobatches) {
  DrawnSteps draw(20261125);
  int shorter = 0, all = 0;
  for (int i = 0; i < 180; i++) {
    const bool experts = i % 4 == 3;
    RunSpec run;
    run.model = shipped_catalog().shape_named(experts ? "mixtral-8x7B" : "llama3-8B")->model;
    run.model.layers = draw.one_of({8, 9, 13}), run.model.vocab = draw.one_of({1024, 32000, 128256});
    run.model.tied = false, run.model.max_positions = 0, run.data.seq_len = 4096, run.model.finish(4096);
    run.precision.compute = "bf16", run.precision.reduce = "bf16";
    DeviceFigures figures = shipped_catalog().device_named("H100")->figures;
    figures.nic *= std::pow(10, draw.between(-1.5, 0.5));
    figures.bus = std::max(figures.bus * std::pow(10, draw.between(-0.7, 0.3)), figures.nic);
    const SearchLayout l = draw.layout(size_t(i) % std::size(kShortSchedules), run.model.layers, experts);
    run = with_layout(run, l);
    if (!problems_of(run).empty()) continue;
    SCOPED_TRACE(text_of(l));
    ScaledRun scaled{.run = resolve(run, {.native_bf16 = true}),
                     .figures = figures,
                     .by = {.device = "H100", .software = "", .site = ""},
                     .software = draw.one_of({0, 1}) == 1 ? kTrireme : kElsewhere};
    if (i % 5 == 0) scaled.run.layout.offload = "state", scaled.offload = 10e9;
    const World w = world_of(scaled);
    const WorldReplay whole = replay_world(w);
    const StepTotals t = step_totals(w);
    EXPECT_EQ(t.makespan, whole.replay.makespan);
    EXPECT_EQ(t.bubble, bubble_of(rows_of(w, whole)));
    EXPECT_LE(t.pieces, whole.pieces);
    shorter += t.microbatches < w.schedule.microbatches, all++;
  }
  RecordProperty("shorter", shorter), RecordProperty("of", all);
  EXPECT_GT(all, 120);
  EXPECT_GT(shorter, all / 3);
}

// Slow ranks are replayed as they are.
TEST(ShortStep, DisturbedStepsAreReplayedWhole) {
  RunSpec run;
  run.model = shipped_catalog().shape_named("llama3-8B")->model;
  run.data.seq_len = 4096, run.model.finish(4096);
  run.precision.compute = "bf16", run.precision.reduce = "bf16";
  run.layout.pp = 4, run.batch.micro = 1, run.batch.global = 128;
  World w = world_of({.run = resolve(run, {.native_bf16 = true}),
                      .figures = shipped_catalog().device_named("H100")->figures,
                      .by = {.device = "H100", .software = "", .site = ""},
                      .software = kTrireme});
  EXPECT_LT(step_totals(w).microbatches, 128);
  w.disturbed.slow_ranks[1] = 1.5;
  EXPECT_EQ(step_totals(w).microbatches, 128);
}

}  // namespace
}  // namespace trireme
