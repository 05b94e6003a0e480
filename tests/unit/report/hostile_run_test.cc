// Files of a run that are well formed and hold values that no run writes, and runs without some of their
// files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "folder.h"
#include "planted.h"
#include "report/compare.h"
#include "report/diagnose.h"
#include "spec/batch_ramp.h"
#include "trace/chrome_trace.h"

namespace trireme::test {
namespace {

using nlohmann::json;

void add_line(const fs::path& file, const std::string& line) {
  put_file(file, (fs::exists(file) ? read_text(file) : "") + line + "\n");
}

json reported(const fs::path& folder) {
  const ReportInput in = read_report_input(folder);
  const json r = report_json(in);
  EXPECT_FALSE(report_text(in, r).empty());
  return r;
}

TEST(HostileRun, DeepNestingCostsOnlyItsLine) {
  TempFolder tmp;
  planted(tmp / "run", {});
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  add_line(tmp / "run" / "events.jsonl", R"({"event":"end","time":1.8e9,"a":)" + deep + "}");
  add_line(tmp / "run" / "spikes.jsonl", R"({"step":3,"a":)" + deep + "}");
  add_line(tmp / "run" / "metrics.jsonl", R"({"step":3,"a":)" + deep + "}");
  put_file(tmp / "run" / "forecast.json", R"({"best":{"step_s":1,"a":)" + deep + "}}");
  add_line(tmp / "run" / "trace.json", R"({"ph":"X","args":{"a":)" + deep + "}}");
  const json r = reported(tmp / "run");
  EXPECT_GE(r["notes"].size(), 4u);
  EXPECT_TRUE(r["comb"]["why_not"].is_null());
}

TEST(HostileRun, WrongTypesAndSignsAreNotKnown) {
  TempFolder tmp;
  planted(tmp / "run", {.ranks = 2, .comm_ms = 20}, quiet_machine());
  json forecast = json::parse(read_text(tmp / "run" / "forecast.json"));
  forecast["best"]["state"]["grads"] = "many";
  put_file(tmp / "run" / "forecast.json", forecast.dump());
  EXPECT_EQ(reported(tmp / "run")["checked"].size(), 12u);
  for (int step : {21, 31, 41, 51})
    add_line(tmp / "run" / "metrics.jsonl",
             fmt::format(R"({{"step":{},"step_s":0.1,"data_s":-3,"checkpoint_stall_s":-1,)"
                         R"("checkpoint_write_s":-1,"comm_bytes":{{"dp":1e300}}}})",
                         step));
  const json r = reported(tmp / "run");
  EXPECT_EQ(r["checked"].size(), 12u);
  for (const json& save : r["checkpoints"]["saves"])
    EXPECT_TRUE(save["stall_s"].is_null() || save["stall_s"].get<double>() >= 0);
}

// The forecast describes the last stage, and so do the timings that it is compared with.
TEST(HostileRun, OfAGrowingBatchTheLastStageIsTimed) {
  TempFolder tmp;
  const ReportInput in = planted(tmp / "run", {.sets = {"batch.ramp=[[4, 40]]"}, .late_factor = 2});
  ASSERT_TRUE(in.record.run);
  ASSERT_EQ(batch_stages(*in.record.run).size(), 2u);
  ASSERT_FALSE(in.record.timed().empty());
  EXPECT_EQ(in.record.timed().front()->step, batch_stages(*in.record.run).back().first);
}

std::vector<Span> pipeline_step(int64_t step) {
  std::vector<Span> all;
  for (int rank : {0, 1}) {
    Span s;
    s.kind = SpanKind::step;
    s.rank = rank;
    s.step = step;
    s.name = "step";
    s.begin_ns = step * 1'000'000;
    s.end_ns = s.begin_ns + 900'000;
    all.push_back(s);
    s.kind = SpanKind::comm;
    s.name = "p2p";
    s.group = "pp";
    s.algorithm = "copy";
    s.lane = rank == 0 ? "pp forward to 1" : "pp forward from 0";
    s.begin_ns += 100'000;
    s.end_ns = s.met_ns = s.begin_ns + 50'000;
    all.push_back(s);
  }
  return all;
}

TEST(HostileRun, APipelineWithoutItsPlanKeepsItsTimeline) {
  TempFolder tmp;
  add_line(tmp / "run" / "metrics.jsonl", R"({"step":1,"step_s":0.001})");
  {
    ChromeTraceFile file(tmp / "run" / "trace.json", {});
    for (int64_t step : {2, 3}) file.write(pipeline_step(step));
  }
  const TraceFacts t = read_traces(read_run_folder(tmp / "run"));
  EXPECT_TRUE(t.any());
  EXPECT_EQ(t.why_not, "");
  EXPECT_EQ(t.ranks.size(), 2u);
}

TEST(HostileRun, TimesThatAreFarApartAddUpWithoutOverflow) {
  TempFolder tmp;
  add_line(tmp / "run" / "metrics.jsonl", R"({"step":1,"step_s":0.001})");
  std::string text = R"({"displayTimeUnit":"ms","otherData":{"made_by":"trireme"},"traceEvents":[)";
  for (int64_t step = 1; step < 4000; step += 2)  // no two follow one another
    text += fmt::format(
        "\n{{\"name\":\"step\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0.000,"
        "\"dur\":{}.000,\"args\":{{\"step\":{},\"microbatch\":-1,\"action\":\"\"}}}},",
        step < 20 ? (int64_t(1) << 60) / 1000 - 1 : (int64_t(1) << 50) / 1000 - 1, step);
  put_file(tmp / "run" / "trace.json", text + "\n]}\n");
  const json r = reported(tmp / "run");
  EXPECT_TRUE(r["comb"].is_object());
  const TraceFacts t = read_traces(read_run_folder(tmp / "run"));
  EXPECT_EQ(t.damaged, 10);
  EXPECT_GT(t.steps.size(), 100u);
  EXPECT_GT(t.comb.makespan, 0);
  EXPECT_LT(t.comb.makespan, std::numeric_limits<int64_t>::max() / 4);
  for (size_t i = 1; i < t.steps.size(); i++) ASSERT_GE(t.steps[i].begin, t.steps[i - 1].end);
}

TEST(HostileRun, BytesOutOfRangeAreBounded) {
  TempFolder tmp;
  add_line(tmp / "run" / "metrics.jsonl", R"({"step":1,"step_s":0.001})");
  {
    ChromeTraceFile file(tmp / "run" / "trace.json", {});
    file.write(pipeline_step(2));
  }
  const std::string text = read_text(tmp / "run" / "trace.json");
  for (const char* bytes : {"-9223372036854775808", "9223372036854775807"}) {
    std::string wrong = text;
    const size_t at = wrong.find("\"wire_bytes\":0");
    ASSERT_NE(at, wrong.npos);
    wrong.replace(at, 14, std::string("\"wire_bytes\":") + bytes);
    put_file(tmp / "run" / "trace.json", wrong);
    const TraceFacts t = read_traces(read_run_folder(tmp / "run"));
    ASSERT_EQ(t.groups.size(), 1u);
    EXPECT_GE(t.groups[0].wire_bytes, 0) << bytes;
    EXPECT_LE(t.groups[0].wire_bytes, int64_t(2e18)) << bytes;
  }
}

TEST(HostileRun, ARunThatFailedIsFailedWhateverItsSupervisorSays) {
  TempFolder tmp;
  add_line(tmp / "run" / "metrics.jsonl", R"({"step":1,"step_s":0.1})");
  const fs::path events = tmp / "run" / "events.jsonl";
  add_line(events, R"({"event":"start","time":1000,"step":0})");
  EXPECT_EQ(reported(tmp / "run")["state"], "stopped");  // killed
  add_line(events, R"({"event":"failure","time":1001,"step":1,"text":"loss is NaN"})");
  add_line(events, R"({"event":"restart","time":1002,"text":"relaunch 1 of 3"})");
  EXPECT_EQ(reported(tmp / "run")["state"], "failed");
  add_line(events, R"({"event":"failure","time":1003,"text":"supervise: is not launched again"})");
  const json r = reported(tmp / "run");
  EXPECT_EQ(r["state"], "failed");
  std::string record;
  for (const json& row : r["record"]) record += row["value"].get<std::string>() + "\n";
  EXPECT_NE(record.find("1 failure, 0 restarts"), record.npos) << record;  // one launch failed
}

TEST(HostileRun, CommandsAreWordsOfAShellWhateverTheFolderIsCalled) {
  TempFolder tmp;
  const fs::path folder = tmp / "it's \"a\" run";
  planted(folder, {.sets = {"data.prefetch=0"}, .data_s = 0.02});
  const json r = report_json(read_report_input(folder / ""));
  EXPECT_EQ(r["name"], "it's \"a\" run");
  EXPECT_EQ(r["folder"], folder.string());
  ASSERT_FALSE(r["advice"].empty());
  const std::string command = r["advice"][0]["command"].get<std::string>();
  // Words as a shell splits them.
  std::vector<std::string> words(1);
  bool quoted = false;
  for (size_t i = 0; i < command.size(); i++) {
    if (command[i] == '\'')
      quoted = !quoted;
    else if (!quoted && command[i] == '\\')
      words.back() += command[++i];
    else if (!quoted && command[i] == ' ')
      words.emplace_back();
    else
      words.back() += command[i];
  }
  ASSERT_EQ(words.size(), 7u) << command;
  EXPECT_EQ(words[2], (folder / "plan.toml").string());
  const std::vector<std::string> sets = {words[4], words[6]};
  EXPECT_EQ(load_run(folder / "plan.toml", sets).train.dir, folder.string() + "-prefetch-4");
}

TEST(HostileRun, WhatIsNotPlannedIsNotCalledFaster) {
  TempFolder tmp;
  for (const Diagnosis& d : diagnose(planted(tmp / "run", {})))
    if (d.id == "microbatch_too_small") {
      EXPECT_NE(d.number.find("not planned"), d.number.npos) << d.number;
    }
  for (const Diagnosis& d : diagnose(planted(tmp / "planned", {}, quiet_machine())))
    if (d.id == "microbatch_too_small") {
      EXPECT_EQ(d.number.find(" 0.0 %"), d.number.npos) << d.number;
    }
}

// A change that does not fit hides nothing and is not advised.
TEST(HostileRun, AChangeThatDoesNotFitIsNotAdvised) {
  TempFolder tmp;
  ReportInput in =
      planted(tmp / "run", {.ranks = 2, .sets = {"layout.bucket_mb=1000"}, .comm_ms = 20}, quiet_machine());
  in.price = [](std::span<const std::string> sets) -> std::optional<PricedRun> {
    return PricedRun{.step_s = 0.1, .exposed_s = 0.02, .fits = sets.empty()};
  };
  for (const Diagnosis& d : diagnose(in)) EXPECT_FALSE(d.found && d.key == "layout.bucket_mb") << d.number;
  ReportInput launches = planted(tmp / "launches", {.op_us = 20, .gap_us = 9}, quiet_machine());
  launches.price = in.price;
  for (const Diagnosis& d : diagnose(launches))
    EXPECT_FALSE(d.id == "launch_overhead" && d.key == "batch.micro");
}

// Saves stall between steps; what they cost is no part of the steps' difference.
TEST(HostileRun, StallsAreNoPartOfTheStepsDifference) {
  TempFolder tmp;
  planted(tmp / "a", {.save_every = 2, .stall_s = 0.01, .write_s = 0.01});
  planted(tmp / "b", {.op_us = 1000, .save_every = 2, .stall_s = 0.5, .write_s = 0.5});
  const std::vector<ReportInput> both = {read_report_input(tmp / "a"), read_report_input(tmp / "b")};
  const json c = comparison_json(both);
  double cost = 0, stalls = 0;
  for (const json& d : c["differences"]) {
    const double one = d["cost_s"].is_number() ? d["cost_s"].get<double>() : 0;
    (d["what"] == "storage: checkpoint writes" ? stalls : cost) += one;
  }
  EXPECT_GT(stalls, 0.1);
  EXPECT_NEAR(cost, c["steps"][1]["measured"].get<double>() - c["steps"][0]["measured"].get<double>(), 1e-9);
}

}  // namespace
}  // namespace trireme::test
