// Planted faults and five runs without one.
#include "report/diagnose.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "folder.h"
#include "planted.h"
#include "report/price_plan.h"

namespace trireme::test {
namespace {

struct Case {
  std::string fault;  // empty: none
  Plant plant;
  std::optional<ClusterSpec> cluster = quiet_machine();
};

// Two nodes of two devices whose network is slow: the axis that sends the most belongs inside a node.
ClusterSpec two_nodes() {
  ClusterSpec c = quiet_machine();
  c.nodes = 2;
  c.devices_per_node = 2;
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e11};
  c.inter_node = {.latency = 1e-4, .bandwidth = 1e8};
  return c;
}

// Memory so slow that weights, read once per microbatch, cost more than the products.
ClusterSpec slow_memory() {
  ClusterSpec c = quiet_machine();
  c.peak.f32 = 1e12;
  c.memory_bandwidth = 1e9;
  return c;
}

std::vector<Case> faults() {
  return {
      {"serialised_communication", {.ranks = 2, .sets = {"layout.bucket_mb=1000"}, .comm_ms = 20}},
      {"microbatch_too_small", {.micro = 1, .global = 8, .sets = {"data.seq_len=8"}}, slow_memory()},
      {"input_stall", {.sets = {"data.prefetch=0"}, .data_s = 0.02}},
      {"checkpoints_too_frequent", {.save_every = 1, .stall_s = 0.05}},
      {"needless_recompute", {.sets = {"layout.recompute=full"}, .recomputes = true}},
      {"straggler", {.ranks = 2, .slow = 1.3}},
      {"wrong_placement", {.ranks = 2, .sets = {"layout.tp=2", "layout.order=tp pp dp cp"}}, two_nodes()},
      {"clock_throttling", {.late_factor = 1.25, .clocks = {3.2, 3.2, 2.5, 2.5}}},
      {"launch_overhead", {.op_us = 20, .gap_us = 9}},
      {"slow_storage", {.stall_s = 0.2, .write_s = 2.0}},
      {"busy_machine", {.op_us = 9000, .others_cpu = 0.4, .threads = 8}},
  };
}

std::set<std::string> found_in(const Case& c, std::vector<Diagnosis>* all = nullptr) {
  TempFolder tmp;
  const ReportInput in = planted(tmp / "run", c.plant, c.cluster);
  std::set<std::string> out;
  const std::vector<Diagnosis> diagnoses = diagnose(in);
  EXPECT_EQ(diagnoses.size(), 12u);
  for (const Diagnosis& d : diagnoses)
    if (d.found) out.insert(d.id);
  if (all) *all = diagnoses;
  return out;
}

TEST(Diagnoses, EachPlantedFaultIsFoundFirst) {
  for (const Case& c : faults()) {
    SCOPED_TRACE(c.fault);
    std::vector<Diagnosis> all;
    const std::set<std::string> found = found_in(c, &all);
    EXPECT_TRUE(found.contains(c.fault)) << fmt::format("found: {}", fmt::join(found, ", "));
    for (const Diagnosis& d : all) {
      if (d.id != c.fault) continue;
      EXPECT_GE(d.gain_share, 0.01) << d.number;
      EXPECT_LE(d.gain_share, 1);
      EXPECT_FALSE(d.evidence.empty());
      EXPECT_FALSE(d.to.empty());
    }
    // A fault brings at most one other with it: slow storage stalls as frequent saves do.
    EXPECT_LE(found.size(), 2u) << fmt::format("found: {}", fmt::join(found, ", "));
  }
}

TEST(Diagnoses, NoneIsInventedInRunsWithoutAFault) {
  const std::vector<Case> clean = {
      {"", {}},
      {"", {.ranks = 2}},
      {"", {.others_cpu = 0.6, .threads = 2}},  // enough cores are left
      {"", {.ranks = 4, .steps = 200, .slow = 1.03, .save_every = 50}},
      {"", {.micro = 8, .global = 32, .data_s = 1e-4, .late_factor = 1.04, .clocks = {3.2, 3.1, 3.2, 3.15}}},
      {"",
       {.ranks = 2, .op_us = 300, .gap_us = 12, .comm_ms = 0.1, .checkpoint_bytes = 1 << 20},
       std::nullopt},
  };
  for (size_t i = 0; i < clean.size(); i++) {
    const std::set<std::string> found = found_in(clean[i]);
    EXPECT_TRUE(found.empty()) << i << ": " << fmt::format("{}", fmt::join(found, ", "));
  }
}

// Without a trace the forecast tells the bubble.
TEST(Diagnoses, AnEmptyPipelineWantsMoreMicrobatches) {
  TempFolder tmp;
  const std::vector<std::string> stages = {"layout.dp=1", "layout.pp=2", "batch.global=4"};
  ReportInput in =
      planted(tmp / "run", {.ranks = 2, .micro = 4, .global = 8, .sets = stages}, quiet_machine());
  in.trace = {};
  const std::vector<Diagnosis> all = diagnose(in);
  const auto d =
      std::find_if(all.begin(), all.end(), [](const Diagnosis& x) { return x.id == "pipeline_bubble"; });
  ASSERT_NE(d, all.end());
  EXPECT_TRUE(d->found) << d->number;
  EXPECT_EQ(d->key, "batch.micro");
  EXPECT_LT(std::stoi(d->to), 4);
}

TEST(Diagnoses, ATrialCountsMoreThanAPlan) {
  for (const double gain : {0.2, -0.01}) {
    TempFolder tmp;
    const Plant plant{.sets = {"layout.recompute=full"}, .recomputes = true};
    planted(tmp / "run", plant, quiet_machine());
    append_line(
        tmp / "run" / "events.jsonl",
        fmt::format(R"({{"event":"tried","time":1.7e9,"set":"layout.recompute=\"none\"","measured":{}}})",
                    gain));
    ReportInput in = read_report_input(tmp / "run");
    in.cluster = quiet_machine();
    in.price = [plan = tmp / "run" /
                       "plan.toml"](std::span<const std::string> sets) -> std::optional<PricedRun> {
      const std::optional<RunSpec> run = changed_plan(plan, sets);
      return run ? price_plan(*run, quiet_machine(), 1) : std::nullopt;
    };
    const std::vector<Diagnosis> all = diagnose(in);
    const auto d =
        std::find_if(all.begin(), all.end(), [](const Diagnosis& x) { return x.id == "needless_recompute"; });
    ASSERT_NE(d, all.end());
    EXPECT_EQ(d->found, gain > 0) << d->number;
    EXPECT_TRUE(d->measured);
    EXPECT_NEAR(d->gain_share, std::max(0.0, gain), 1e-12);
  }
}

}  // namespace
}  // namespace trireme::test
