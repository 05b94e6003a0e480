// Collectives of groups that are fewer ranks than a machine's: measured by size, and priced between the
// sizes.
#include <gtest/gtest.h>

#include <set>

#include "measure/calibrate.h"
#include "measure/price.h"
#include "measure/speeds.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme::test {
namespace {

TEST(CallGroups, AreThePowersOfTwoThatDivideTheRanks) {
  EXPECT_EQ(smaller_groups(1), std::vector<int>());
  EXPECT_EQ(smaller_groups(2), std::vector<int>());
  EXPECT_EQ(smaller_groups(6), std::vector<int>({2}));
  EXPECT_EQ(smaller_groups(16), std::vector<int>({2, 4, 8}));
}

// Four ranks, more than some machines' cores: each kind has a table of either size.
TEST(CallGroups, AreMeasuredBesideAllRanks) {
  const Calibration c = calibrate({.ranks = 4, .threads = 1, .bf16 = false, .quick = true});
  std::map<std::string, std::set<size_t>> sizes;  // points, by table
  for (const std::string& line : c.calls) {
    std::string wrong;
    const SpeedTable t = speed_table_of(line, wrong);
    EXPECT_EQ(wrong, "");
    sizes[t.of].insert(t.points.size());
  }
  const Speeds speeds(c);
  for (const char* table : {"all_reduce ordered", "all_gather direct", "reduce_scatter ordered",
                            "all_to_all direct", "p2p direct"})
    for (const char* group : {" 2", " 4"}) {
      EXPECT_EQ(sizes.count(std::string(table) + group), 1u) << table << group;
    }
  const std::optional<double> two = speeds.call("all_reduce", "ordered", 2, false, 1 << 20),
                              four = speeds.call("all_reduce", "ordered", 4, false, 1 << 20);
  ASSERT_TRUE(two && four);
  EXPECT_GT(*two, 1e-6);
  EXPECT_GT(*four, 1e-6);
}

TEST(CallGroups, BetweenMeasuredSizesAreOnALineOfLogarithms) {
  Calibration c{.ranks = 8, .threads = 1};
  c.calls = Texts::of({"all_reduce ordered 2 1x1x1000=1e-05 1x1x1000000=0.001",
                       "all_reduce ordered 8 1x1x1000=4e-05 1x1x1000000=0.016",
                       "all_reduce ordered 8 beside 1x1x1000=9e-05"});
  const Speeds s(c);
  EXPECT_NEAR(*s.call("all_reduce", "ordered", 4, false, 1000), 2e-5, 1e-12);
  EXPECT_NEAR(*s.call("all_reduce", "ordered", 4, false, 1e6), 4e-3, 1e-9);
  EXPECT_NEAR(*s.call("all_reduce", "ordered", 2, false, 1000), 1e-5, 1e-12);
  EXPECT_NEAR(*s.call("all_reduce", "ordered", 4, true, 1000), 2e-5, 1e-12);  // no two sizes beside compute
  EXPECT_FALSE(s.call("all_reduce", "ordered", 9, false, 1000));              // beyond what was measured
  EXPECT_FALSE(s.call("all_reduce", "ring", 4, false, 1000));
}

// A run of four ranks in two groups of two is priced by the table of two.
TEST(CallGroups, PriceTheCallsOfALayoutsGroups) {
  RunSpec run = tiny_llama(2, 2, 2);
  run.layout.tp = 2, run.model.heads = 4, run.model.kv_heads = 2, run.model.head_dim = 10;
  run = resolve(run, {});
  ClusterSpec c;
  c.peak = {.f32 = 1e12, .bf16 = 1e12}, c.memory_bandwidth = 1e11;
  c.together = {.ranks = 4, .threads = 1};
  c.together.ops = "matmul f32 46x36x100000=3e-06 200x52x9000000=0.0004";
  c.together.calls = Texts::of({"all_reduce ordered 2 1x1x1=0.003 1x1x1000000=0.003",
                                "all_reduce ordered 4 1x1x1=0.005 1x1x1000000=0.005"});
  const Tape tape = record_training(run, schedule_of(run), 1);
  const std::vector<Price> prices = price(tape, c, run);
  int by_two = 0;
  for (size_t i = 0; i < prices.size(); i++) {
    const Piece& p = tape.pieces[i];
    if (p.kind != PieceKind::call || p.name != "all_reduce" || p.algorithm != "ordered") continue;
    const size_t group = tape.groups[size_t(p.group)].ranks.size();
    EXPECT_EQ(prices[i].time, group == 2 ? 3000000 : 5000000) << group;
    by_two += group == 2;
  }
  EXPECT_GT(by_two, 3);
}

// Behind the last step calls are still timed one by one, and whole steps recorded: on a busy machine that
// takes longer than the steps.
TEST(CallGroups, AMeasurementEndsBehindItsStepsToo) {
  bool stop = false;
  int asked = 0;
  CalibrationRequest request{.ranks = 2, .threads = 1, .bf16 = false, .quick = true};
  request.stop = [&] {
    asked += stop;
    return stop;
  };
  const Calibration c = calibrate(request, [&](int64_t done, int64_t all) { stop = done == all; });
  EXPECT_FALSE(c.known());
  EXPECT_EQ(asked, 3);  // before the first call, the first whole step, and what is returned
}

}  // namespace
}  // namespace trireme::test
