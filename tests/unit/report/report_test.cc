// The report of a folder: terms and goodput that add up, hostile folders, comparisons.
#include "report/report.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "folder.h"
#include "planted.h"
#include "report/compare.h"

namespace trireme::test {
namespace {

using nlohmann::json;

double sum_of(const json& terms) {
  double sum = 0;
  for (const json& t : terms) sum += t["value"].get<double>();
  return sum;
}

void write_forecast(const fs::path& folder) {
  const json best = {
      {"step_s", 0.09},
      {"roof_s", 0.05},
      {"exposed_comm_s", 1e-4},
      {"bubble", 0.0},
      {"parameters", 1e5},
      {"memory",
       {{"weights", 1 << 20}, {"grads", 1 << 20}, {"optimizer", 1 << 20}, {"activations", 1 << 20}}},
      {"ops", {{{"op", "matmul"}, {"seconds", 0.08}}, {{"op", "adamw"}, {"seconds", 1e-3}}}}};
  write_text_atomic(folder / "forecast.json", json{{"best", best}}.dump());
}

TEST(Report, TermsAddUpToTheDifference) {
  for (bool traced : {true, false}) {
    TempFolder tmp;
    planted(tmp / "run", {.ranks = 2});
    write_forecast(tmp / "run");
    if (!traced) fs::remove(tmp / "run" / "trace.json");
    const ReportInput in = read_report_input(tmp / "run");
    const json r = report_json(in);
    const json& step = r["step_time"];
    ASSERT_TRUE(step["measured"].is_number());
    EXPECT_NEAR(sum_of(step["terms"]), step["measured"].get<double>() - 0.09, 1e-9);
    EXPECT_GE(step["terms"].size(), 3u);
    ASSERT_EQ(r["tolls"].size(), 5u);
    for (const json& t : r["tolls"]) {
      if (!t["measured"].is_number() || !t["forecast"].is_number() || t["terms"].empty()) continue;
      const double measured = t["measured"].get<double>();
      EXPECT_NEAR(sum_of(t["terms"]), measured - t["forecast"].get<double>(), 1e-9 * (1 + std::abs(measured)))
          << t["toll"];
    }
    EXPECT_EQ(r["comb"]["why_not"].is_null(), traced);
    const std::string text = report_text(in, r);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 42);
  }
}

// A run that was killed at step 25, resumed from step 20, and was interrupted: each second has one cause.
TEST(Report, GoodputAddsUpAcrossRestarts) {
  TempFolder tmp;
  planted(tmp / "run", {});
  put_file(tmp / "run" / "events.jsonl",
           R"({"event":"start","time":1000,"step":0,"process_s":5}
{"event":"resume","time":1100,"step":20,"process_s":3,"had_step":25,"had_time":1060,"lost_s":7.5}
half a line)");
  const RunRecord r = read_run_folder(tmp / "run");
  EXPECT_EQ(r.events.size(), 2u);
  const MeasuredGoodput g = measured_goodput(r);
  double lost = 0;
  std::map<std::string, double> by;
  for (const LostTime& l : g.lost) {
    lost += l.seconds;
    by[l.cause] = l.seconds;
  }
  EXPECT_NEAR(g.useful_s + lost, g.wall_s, 1e-6);
  EXPECT_NEAR(g.wall_s, std::max(r.changed, 1100.0) - 995, 1e-6);  // from the first process to the last line
  EXPECT_NEAR(by["steps done twice after a restart"], 7.5, 1e-9);
  EXPECT_NEAR(by["start-up (process start to the first step)"], 8, 1e-9);
  EXPECT_NEAR(by["no process between launches"], 37, 1e-9);
  EXPECT_NEAR(by["checkpoint stalls"], 2 * 0.004, 1e-9);
}

TEST(Report, FoldersThatAreNoRunsAreRejectedAndDamageCostsOnlyItself) {
  TempFolder tmp;
  EXPECT_THROW(read_run_folder(tmp / "none"), Error);
  fs::create_directories(tmp / "empty");
  EXPECT_THROW(read_run_folder(tmp / "empty"), Error);
  planted(tmp / "run", {});
  for (const char* file :
       {"plan.toml", "forecast.json", "events.jsonl", "metrics.jsonl", "spikes.jsonl", "trace.json"})
    for (const char* content : {"", "{", "\xff\xff{\"step\":1e400}\n", "[[[[[[",
                                "{\"best\":[1]}\n{\"event\":3}\n{\"step\":\"x\"}"}) {
      SCOPED_TRACE(std::string(file) + " = " + content);
      const std::string before = fs::exists(tmp / "run" / file) ? read_text(tmp / "run" / file) : "";
      put_file(tmp / "run" / file, content);
      const ReportInput in = read_report_input(tmp / "run");
      const json r = report_json(in);
      EXPECT_EQ(r["kind"], "run");
      EXPECT_FALSE(report_text(in, r).empty());
      before.empty() ? void(fs::remove(tmp / "run" / file)) : put_file(tmp / "run" / file, before);
    }
}

TEST(Report, ComparesRunsAndMachines) {
  TempFolder tmp;
  planted(tmp / "one", {});
  planted(tmp / "two", {.ranks = 2});
  planted(tmp / "slow", {.op_us = 1200});
  const auto start = [&](const char* run, const char* cpu, double peak) {
    put_file(tmp / run / "events.jsonl", json{{"event", "start"},
                                              {"time", 1.7e9},
                                              {"step", 0},
                                              {"versions", {{"oneDNN", run}}},
                                              {"machine", {{"cpu", cpu}}},
                                              {"cluster", {{"peak_flops", peak}}}}
                                                 .dump() +
                                             "\n");
  };
  start("one", "fast", 4e9);
  start("slow", "slow", 3e9);
  const std::vector<ReportInput> sizes = {read_report_input(tmp / "one"), read_report_input(tmp / "two")};
  const json scaling = comparison_json(sizes);
  ASSERT_EQ(scaling["scaling"].size(), 2u);
  EXPECT_EQ(scaling["scaling"][1]["ideal"].get<double>(), 2);
  EXPECT_GT(scaling["scaling"][1]["speedup"].get<double>(), 0);
  const std::vector<ReportInput> machines = {read_report_input(tmp / "one"), read_report_input(tmp / "slow")};
  const json two = comparison_json(machines);
  std::map<std::string, json> rows;
  double cost = 0;
  for (const json& d : two["differences"]) {
    rows[d["what"].get<std::string>()] = d;
    cost += d["cost_s"].is_number() ? d["cost_s"].get<double>() : 0;
  }
  EXPECT_EQ(rows["processor"]["a"], "fast");
  EXPECT_TRUE(rows.contains("software: oneDNN"));
  EXPECT_GT(rows["peak FLOP/s of a rank"]["cost_s"].get<double>(), 0);
  const auto step = [&](size_t i) { return two["steps"][i]["measured"].get<double>(); };
  EXPECT_NEAR(cost, step(1) - step(0), 1e-9);
  EXPECT_FALSE(compared_text(two).empty());
}

TEST(Report, ComparisonsNameTheKeysThatDifferAndInventNoMeasurement) {
  TempFolder tmp;
  planted(tmp / "a", {});
  planted(tmp / "b", {.sets = {"layout.recompute=full"}});
  fs::remove(tmp / "b" / "trace.json");
  write_forecast(tmp / "b");
  const std::vector<ReportInput> both = {read_report_input(tmp / "a"), read_report_input(tmp / "b")};
  const json c = comparison_json(both);
  bool named = false;
  for (const json& d : c["differences"]) named |= d["what"] == "run file: layout.recompute";
  EXPECT_TRUE(named);
  EXPECT_TRUE(c["tolls"][4]["values"][1].is_null()) << c["tolls"][4];  // last inch of a run without a trace
}

TEST(Report, AKilledLaunchIsAFailureAndWritesBelongToTheirSaves) {
  TempFolder tmp;
  planted(tmp / "run", {});
  std::string events = read_text(tmp / "run" / "events.jsonl");
  events.resize(events.rfind("{\"event\":\"end\""));
  events += "{\"event\":\"resume\",\"time\":1.71e9,\"step\":40,\"had_step\":44,\"had_time\":1.705e9}\n";
  put_file(tmp / "run" / "events.jsonl", events);
  std::string lines = "{\"step\":1,\"step_s\":0.1}\n";
  lines += "{\"step\":2,\"step_s\":0.1,\"checkpoint_stall_s\":0.01}\n";
  lines += "{\"step\":3,\"step_s\":0.1,\"checkpoint_write_s\":0.5}\n";
  lines += "{\"step\":4,\"step_s\":0.1}\n";
  put_file(tmp / "run" / "metrics.jsonl", lines);
  const json r = report_json(read_report_input(tmp / "run"));
  int failures = 0;
  for (const json& e : r["events"]) failures += e["kind"] == "failure" && e["step"] == 44;
  EXPECT_EQ(failures, 1);
  EXPECT_NE(r["record_markdown"].get<std::string>().find("1 failure, 1 restart"), std::string::npos);
  ASSERT_EQ(r["checkpoints"]["saves"].size(), 1u);
  EXPECT_EQ(r["checkpoints"]["saves"][0]["step"], 1);
  EXPECT_EQ(r["checkpoints"]["saves"][0]["write_s"], 0.5);
}

}  // namespace
}  // namespace trireme::test
