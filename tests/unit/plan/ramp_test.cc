// Forecasts of a batch that grows in stages (batch.ramp): memory of the largest, time and tokens of all.
#include <gtest/gtest.h>

#include "base/json.h"
#include "forecast/forecast.h"
#include "forecast/slowed.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme {
namespace {

ClusterSpec machine() {
  ClusterSpec c;
  c.peak = {.f32 = 1e9, .bf16 = 1e9}, c.memory_bandwidth = 1e10, c.memory_bytes = int64_t(1) << 30;
  return c;
}

TEST(RampForecast, AddsUpItsStages) {
  RunSpec run = test::tiny_llama(2, 4);  // 8 sequences, 20 steps
  const Forecast flat = forecast(run, schedule_of(run), machine(), 1);
  EXPECT_EQ(flat.stages.size(), 1u);
  EXPECT_EQ(flat.run_s, flat.step_s * 20);
  EXPECT_EQ(flat.run_tokens, 20 * 8 * 23);
  run.batch.ramp = {{.value = 2, .until = 5}, {.value = 4, .until = 9}};
  const Forecast f = forecast(run, schedule_of(run), machine(), 1);
  EXPECT_EQ(f.step_s, flat.step_s);
  EXPECT_EQ(f.booking.arena_bytes, flat.booking.arena_bytes);
  EXPECT_EQ(f.booking.peak_total, flat.booking.peak_total);
  ASSERT_EQ(f.stages.size(), 3u);
  double run_s = 0;
  for (const auto& [stage, step_s] : f.stages) {
    const RunSpec one = with_batch(run, stage.global);
    EXPECT_EQ(step_s, forecast(one, schedule_of(one), machine(), 1).step_s);
    run_s += step_s * double(stage.steps());
  }
  EXPECT_LT(f.stages[0].step_s, f.stages[2].step_s / 2);
  EXPECT_DOUBLE_EQ(f.run_s, run_s);
  EXPECT_EQ(f.run_tokens, (5 * 2 + 4 * 4 + 11 * 8) * 23);
  EXPECT_DOUBLE_EQ(f.run_flops, flat.run_flops / 20 / 8 * (5 * 2 + 4 * 4 + 11 * 8));
  EXPECT_DOUBLE_EQ(f.seconds_after(7), 2 * f.stages[1].step_s + 11 * f.stages[2].step_s);
  EXPECT_EQ(f.seconds_after(20), 0);
  Forecast slow = f;
  slow.low_s = 3;
  slow.high_s = 5;
  slow.alternatives = {{.change = "layout.zero = 1", .step_s = 4}};
  slow_down(slow, {.by = "a test", .times = 2});
  EXPECT_EQ(slow.low_s, 6);
  EXPECT_EQ(slow.high_s, 10);
  EXPECT_EQ(slow.alternatives[0].step_s, 8);
  EXPECT_DOUBLE_EQ(slow.seconds_after(0), 2 * f.run_s);

  const std::string text = to_text(run, f, machine());
  for (const char* part : {"2 sequences to step 5, 4 to step 9, then 8", "steps 1 to 5: 2 sequences a step, ",
                           "steps 10 to 20: 8 sequences a step, "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in:\n" << text;
  EXPECT_EQ(to_text(test::tiny_llama(2, 4), flat, machine()).find("sequences a step"), std::string::npos);
  const auto j = nlohmann::json::parse(to_json(run, f))["best"]["run"];
  EXPECT_EQ(j["tokens"], f.run_tokens);
  EXPECT_EQ(j["seconds"].get<double>(), f.run_s);
  EXPECT_EQ(j["stages"].size(), 3u);
  EXPECT_EQ(j["stages"][1]["global"], 4);
  EXPECT_FALSE(nlohmann::json::parse(to_json(run, flat))["best"]["run"].contains("stages"));
}

}  // namespace
}  // namespace trireme
