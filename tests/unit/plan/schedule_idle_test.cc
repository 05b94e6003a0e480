// What schedules idle, against the event simulator: of actions alone, and in the step of a whole model.
#include "forecast/schedule_idle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "catalog/catalog.h"
#include "forecast/scaled_run.h"
#include "published/score_fit.h"
#include "sanitized.h"
#include "search/search.h"
#include "sim/pipeline.h"

namespace trireme {
namespace {

constexpr std::string_view kZeroBubble[] = {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"};

// Parts of 24, of F, I and W: equal; a deep cut of tensor parallelism; full recompute.
constexpr StageTimes kTimes[] = {{8, 8, 8}, {9, 9, 6}, {6, 12, 6}};

double replayed_idle(std::string_view name, int p, int m, const StageTimes& t) {
  const int chunks = default_chunks(name);
  const PipelineTapes tapes = tapes_of(make_schedule(name, p, chunks, m), {&t, 1});
  const double own = double(t.forward + t.input + t.weight);
  return (double(replay(tapes.ranks()).makespan) / chunks - m * own) / (double(p - 1) * own);
}

// To the last tick, from half a microbatch a stage to eight; 1F1B's own idle time is 1.
TEST(ScheduleIdle, IsTheEventSimulators) {
  for (const StageTimes& t : kTimes) {
    const PassShares shares = {double(t.forward), double(t.input), double(t.weight)};
    for (const int p : {2, 4, 8, 16})
      for (int m = p / 2; m <= 8 * p; m *= 2) {
        for (const std::string_view name : kZeroBubble)
          EXPECT_NEAR(idle_of_1f1b(name, p, m, shares), std::max(0.0, replayed_idle(name, p, m, t)), 1e-12)
              << name << " of " << p << " stages, " << m << " microbatches";
        EXPECT_NEAR(idle_of_1f1b("1f1b", p, m, shares), 1, 1e-12);
      }
  }
}

// Beyond what is timed: within a tenth of 1F1B's idle time.
TEST(ScheduleIdle, GoesOnAsItDid) {
  for (const StageTimes& t : kTimes) {
    const PassShares shares = {double(t.forward), double(t.input), double(t.weight)};
    for (const auto& [p, m] : {std::pair{4, 100}, {32, 16}, {32, 64}, {16, 200}, {64, 256}}) {
      if (p * m > 2048 && test::one_of(2, 2) > 1) continue;
      for (const std::string_view name : kZeroBubble)
        EXPECT_NEAR(idle_of_1f1b(name, p, m, shares), std::max(0.0, replayed_idle(name, p, m, t)), 0.1)
            << name << " of " << p << " stages, " << m << " microbatches";
    }
  }
}

// The step in closed form, with that idle time, beside the step of all ranks event by event.
TEST(ScheduleIdle, MakesTheClosedFormTheSimulatedStep) {
  SearchRequest q;
  q.model = shipped_catalog().shape_named("llama3-70B")->model;
  q.model.layers = 64, q.model.vocab = 16384, q.seq = 4096, q.model.finish(q.seq);
  q.figures = shipped_catalog().device_named("H100")->figures;
  // Constants that no fit moves. Idle time rounds passes to 24ths of a microbatch: 0.4 % of a step with these
  // constants, up to 1.5 % with others.
  ScoreConstants fixed = shipped_constants();
  fixed.fitted.clear();
  for (const auto& [fit, value] : {std::pair{Fit::gemm_soft, 0.917}, std::pair{Fit::host, 0.003},
                                   std::pair{Fit::tp, 0.93}, std::pair{Fit::memory, 0.7}})
    fixed.priors[size_t(fit)].center = value;
  PricedBy by{.device = "H100", .software = "", .site = ""};
  by.own = std::make_shared<const ScoreConstants>(fixed);
  q.fits = constants_of(by);
  double worst = 0, sum = 0;
  int n = 0;
  for (const int64_t p : {2, 4, 8, 16})
    for (int64_t m = p / 2; m <= 8 * p; m *= 2)
      for (const std::string_view name : kZeroBubble) {
        const SearchLayout l{.gpus = 8 * p,
                             .global = m,
                             .tp = 8,
                             .pp = p,
                             .micro = 1,
                             .chunks = name.starts_with("zb-h") ? 1 : 2,
                             .schedule = name};
        RunSpec run;
        run.model = q.model, run.model.max_positions = 0, run.data.seq_len = q.seq;
        run.precision.compute = "bf16", run.precision.reduce = "bf16";
        const World w = world_of(
            {.run = resolve(with_layout(run, l), {.native_bf16 = true}), .figures = q.figures, .by = by});
        const double simulated = double(replay_world(w).replay.makespan) * 1e-9;
        const double off = price_layout(q, l).time.total / simulated - 1;
        worst = std::max(worst, std::abs(off)), sum += std::abs(off), n++;
        EXPECT_LT(std::abs(off), 0.04) << name << " of " << p << " stages, " << m << " microbatches: " << off;
      }
  EXPECT_LT(sum / n, 0.01) << "mean of " << n << ", worst " << worst;
}

}  // namespace
}  // namespace trireme
