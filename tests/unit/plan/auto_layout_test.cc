// Layouts that are chosen: the fastest of those booked that fits, and a refusal where none does.
#include "search/auto_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

RunSpec run_to_choose() {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = 3, run.model.hidden = 48, run.model.heads = 6, run.model.kv_heads = 2,
  run.model.ffn = 96;
  run.model.vocab = 211;
  run.data.seq_len = 24, run.batch.global = 12, run.batch.micro = 1;
  run.precision.compute = "f32";
  run.model.finish(run.data.seq_len);
  return run;
}

ClusterSpec roomy_machine() {
  ClusterSpec c;
  c.name = "test", c.peak.f32 = 5e10, c.memory_bandwidth = 1e10, c.memory_bytes = int64_t(1) << 32;
  c.intra_node = {.latency = 2e-6, .bandwidth = 4e9};
  return c;
}

TEST(AutoLayout, TakesTheFastestThatFits) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const AutoChoice c =
        choose_layout(run_to_choose(), {.layout = true, .ranks = ranks}, roomy_machine(), 1, {});
    ASSERT_FALSE(c.tried.empty());
    const TriedLayout& best = c.tried[c.best];
    EXPECT_TRUE(best.fits);
    for (const TriedLayout& t : c.tried) {
      EXPECT_EQ(t.run.world(), ranks) << t.text;
      EXPECT_TRUE(problems_of(t.run).empty()) << t.text;
      EXPECT_TRUE(unsupported_of(t.run).empty()) << t.text;
      if (t.fits) {
        EXPECT_GE(t.step_s, best.step_s) << t.text;
      }
      EXPECT_GT(t.bytes, 0);
    }
    EXPECT_NE(to_text(c).find(best.text), std::string::npos);
  }
}

TEST(AutoLayout, MeetsRequirements) {
  AutoWish wish{.layout = true, .ranks = 2};
  wish.require = {parse_requirement("tp=2")};
  const AutoChoice c = choose_layout(run_to_choose(), wish, roomy_machine(), 1, {});
  for (const TriedLayout& t : c.tried) EXPECT_EQ(t.run.layout.tp, 2) << t.text;
  wish.require = {parse_requirement("tp=5")};
  EXPECT_THROW(choose_layout(run_to_choose(), wish, roomy_machine(), 1, {}), Error);
}

TEST(AutoLayout, LittleMemoryTakesALeanerOne) {
  const AutoWish wish{.layout = true, .ranks = 2};
  const AutoChoice free = choose_layout(run_to_choose(), wish, roomy_machine(), 1, {});
  int64_t least = free.tried[0].bytes, most = 0;
  for (const TriedLayout& t : free.tried) least = std::min(least, t.bytes), most = std::max(most, t.bytes);
  ASSERT_LT(least, most);
  ClusterSpec small = roomy_machine();
  small.memory_bytes = 2 * least;  // both ranks share it
  const AutoChoice lean = choose_layout(run_to_choose(), wish, small, 1, {});
  EXPECT_EQ(lean.tried[lean.best].bytes, least);
  small.memory_bytes = 2 * least - 2;
  try {
    choose_layout(run_to_choose(), wish, small, 1, {});
    FAIL() << "nothing fits";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find(std::to_string(least)), std::string::npos) << e.what();
  }
}

TEST(AutoLayout, TheMicrobatchAlone) {
  RunSpec run = run_to_choose();
  run.layout.dp = 2;
  const AutoChoice c = choose_layout(run, {.micro = true, .ranks = 2}, roomy_machine(), 1, {});
  EXPECT_EQ(c.tried.size(), 4u);  // 6, 3, 2 and 1 sequences
  for (const TriedLayout& t : c.tried) {
    EXPECT_EQ(t.run.layout, run.layout);
    EXPECT_EQ(6 % t.run.batch.micro, 0);
  }
}

RunSpec staged_run() {
  RunSpec run = run_to_choose();
  run.model.layers = 4, run.layout.pp = 2;
  run.model.finish(run.data.seq_len);
  return run;
}

// A schedule that is searched for and recompute that is chosen are so before a microbatch is booked.
TEST(AutoLayout, TheMicrobatchBesideASearchedScheduleAndAChosenRecompute) {
  RunSpec run = staged_run();
  run.layout.schedule = "auto";
  EXPECT_EQ(choose_layout(run, {.micro = true, .ranks = 2}, roomy_machine(), 1, {}).tried.size(), 6u);
  run.layout.schedule = "1f1b", run.layout.recompute = "auto";
  const AutoChoice free = choose_layout(run, {.micro = true, .ranks = 2}, roomy_machine(), 1, {});
  EXPECT_EQ(free.tried.size(), 6u);
  int64_t least = free.tried[0].bytes;
  for (const TriedLayout& t : free.tried) least = std::min(least, t.bytes);
  ClusterSpec small = roomy_machine();
  small.memory_bytes = 2 * least;
  const AutoChoice lean = choose_layout(run, {.micro = true, .ranks = 2}, small, 1, {});
  EXPECT_LE(lean.tried[lean.best].bytes, least);
}

// One candidate that is refused (too large however much is computed again) is not the end of the others.
TEST(AutoLayout, ACandidateThatCannotBeIsPassedOver) {
  RunSpec run = staged_run();
  run.layout.recompute = "auto", run.layout.recompute_limit = 1;
  const AutoWish wish{.micro = true, .ranks = 2};
  try {
    choose_layout(run, wish, roomy_machine(), 1, {});
    FAIL() << "in one byte";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("layout.recompute_limit"), std::string::npos) << e.what();
  }
  RunSpec one = run;
  one.batch.micro = 1, one.layout.recompute = "none", one.layout.recompute_limit = 0;
  const ClusterSpec machine = roomy_machine();
  one = resolve(one, {});
  run.layout.recompute_limit = forecast(one, schedule_of(one), machine, 1).host_bytes();
  const AutoChoice c = choose_layout(run, wish, machine, 1, {});
  EXPECT_GE(c.tried.size(), 1u);
  EXPECT_LT(c.tried.size(), 6u);
  EXPECT_EQ(c.tried.back().run.batch.micro, 1);
}

TEST(AutoLayout, ABatchThatNothingDividesIsRefused) {
  RunSpec run = run_to_choose();
  run.batch.global = 7, run.data.seq_len = 25, run.model.layers = 1, run.model.heads = 5,
  run.model.kv_heads = 5;
  run.model.hidden = 50, run.model.head_dim = 10;
  EXPECT_THROW(choose_layout(run, {.layout = true, .ranks = 3}, roomy_machine(), 1, {}), Error);
}

}  // namespace
}  // namespace trireme
