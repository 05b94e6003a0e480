// The bubble that `plan` says: idle for the pipeline, of a rank's own span, from the step replayed.
#include <gtest/gtest.h>

#include "base/json.h"
#include "forecast/forecast.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Twelve blocks; table and head are small beside them.
RunSpec even_run(int64_t pp, int64_t microbatches, const std::string& schedule) {
  return resolve(parse_run("[model]\nlayers = 12\nhidden = 96\nheads = 4\nvocab = 37\n[data]\nseq_len = 33\n"
                           "[batch]\nmicro = 2\nglobal = " +
                               std::to_string(2 * microbatches) +
                               "\n[precision]\ncompute = \"f32\"\n[layout]\npp = " + std::to_string(pp) +
                               "\nschedule = \"" + schedule + "\"\n",
                           "run.toml"),
                 {});
}
Forecast even_forecast(const RunSpec& run) {
  ClusterSpec c;
  c.peak = {.f32 = 1e11, .bf16 = 1e11}, c.memory_bandwidth = 1e12;
  c.intra_node = {.latency = 1e-9, .bandwidth = 1e13};
  return forecast(run, schedule_of(run), c, 1);
}
nlohmann::json bubble_in_json(const RunSpec& run, const Forecast& f) {
  return nlohmann::json::parse(to_json(run, f))["candidates"][0]["bubble"];
}

// (p - 1) / (m + p - 1) of equal stages (Huang et al. 2019); these differ by the table and the head.
TEST(PlanBubble, IsThePapersOfEqualStages) {
  for (const int64_t p : {2, 3, 4})
    for (const int64_t m : {5, 8}) {
      SCOPED_TRACE(std::to_string(p) + " stages, " + std::to_string(m) + " microbatches");
      const double want = double(p - 1) / double(m + p - 1);
      for (const char* schedule : {"1f1b", "gpipe"}) {
        const RunSpec run = even_run(p, m, schedule);
        const Forecast f = even_forecast(run);
        EXPECT_NEAR(f.time.bubble, want, 0.1 * want) << schedule;
        EXPECT_EQ(bubble_in_json(run, f), f.time.bubble);
      }
      EXPECT_LT(even_forecast(even_run(p, m, "zb-h1")).time.bubble, 0.7 * want);
    }
}

TEST(PlanBubble, IsNoneOfOneStageAndNotKnownWithoutPeaks) {
  const RunSpec one = even_run(1, 5, "1f1b"), two = even_run(2, 5, "1f1b");
  EXPECT_EQ(bubble_in_json(one, even_forecast(one)), 0.0);
  EXPECT_TRUE(bubble_in_json(two, forecast(two, schedule_of(two), {}, 1)).is_null());
}

}  // namespace
}  // namespace trireme
