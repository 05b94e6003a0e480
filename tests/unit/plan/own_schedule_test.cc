// The searched schedule of a run: times from meta, the limit, and what the forecast makes of it.
#include "forecast/own_schedule.h"

#include <gtest/gtest.h>

#include "forecast/forecast.h"
#include "model/stages.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec uneven_run(const std::string& layout) {
  return resolve(
      parse_run("[model]\nlayers = 5\nhidden = 64\nheads = 4\nvocab = 3000\n[data]\nseq_len = 32\n"
                "[batch]\nglobal = 8\nmicro = 1\n[precision]\ncompute = \"f32\"\n[layout]\npp = 3\n" +
                    layout,
                "run.toml"),
      {});
}
ClusterSpec linked_machine() {
  ClusterSpec c;
  c.peak = {.f32 = 1e11, .bf16 = 1e11}, c.memory_bandwidth = 1e12;
  c.intra_node = {.latency = 1e-5, .bandwidth = 1e9};
  return c;
}

TEST(OwnSchedule, TimesOfStagesAreThoseOfTheirLayers) {
  // The head of the last stage is worth several blocks.
  const std::vector<StageTimes> t = stage_times(uneven_run(""), linked_machine());
  ASSERT_EQ(t.size(), 3u);
  for (const StageTimes& s : t) {
    EXPECT_GT(s.forward, 0);
    EXPECT_GT(s.input, 0);
    EXPECT_GT(s.weight, 0);
    // A message of 32 x 64 floats: 10 us and its bytes at 1 GB/s.
    EXPECT_NEAR(double(s.send), 10000 + 32 * 64 * 4, 100);
  }
  const auto cut = split_layers(uneven_run("").model, 32, 3);
  const auto of_a_block = [&](size_t s) { return double(t[s].forward) / double(cut[s].last - cut[s].first); };
  EXPECT_NEAR(of_a_block(0), of_a_block(1), 0.05 * of_a_block(1));
  EXPECT_GT(t[2].weight * (cut[1].last - cut[1].first), t[1].weight * (cut[2].last - cut[2].first));
  // Of an unknown machine: as if all were equally fast; links that nobody knows cost nothing.
  for (const StageTimes& s : stage_times(uneven_run(""), {})) EXPECT_GT(s.forward, 0);
  // What is computed again belongs to the backward.
  EXPECT_GT(stage_times(uneven_run("recompute = \"full\"\n"), linked_machine())[0].input, t[0].input);
}

TEST(OwnSchedule, IsSearchedWithinTheLimitAndIsNoLongerThanOthers) {
  const auto step = [](RunSpec run) {
    find_own_schedule(run, linked_machine());
    return forecast(run, schedule_of(run), linked_machine(), 1).step_s;
  };
  const double known = std::min(step(uneven_run("")), step(uneven_run("schedule = \"zb-h1\"\n")));
  EXPECT_LE(step(uneven_run("schedule = \"auto\"\n")), 1.005 * known);
  for (int most : {1, 2, 5}) {
    RunSpec run = uneven_run("schedule = \"auto\"\nin_flight = " + std::to_string(most) + "\n"), again = run;
    find_own_schedule(run, linked_machine());
    for (const HeldPeak& h : held_peaks(*run.own_schedule.actions)) EXPECT_LE(h.all(), most);
    EXPECT_TRUE(validate(schedule_of(run)).empty());
    find_own_schedule(again, linked_machine());
    EXPECT_EQ(again, run);
  }
  RunSpec other = uneven_run("");
  find_own_schedule(other, linked_machine());
  EXPECT_FALSE(other.own_schedule.actions);
}

}  // namespace
}  // namespace trireme
