// trireme simulate of a run: its trace against the trace of the real run; what a slow and a failing rank
// cost, as numbers; requests that make no sense.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/json.h"
#include "process.h"
#include "tiny_run.h"
#include "trace/chrome_trace.h"

namespace trireme::test {
namespace {

using nlohmann::json;

json simulated(const fs::path& home, std::vector<std::string> args) {
  args.insert(args.begin(), "simulate"), args.push_back("--json");
  const Ran r = trireme(home, args);
  EXPECT_EQ(r.code, 0) << r.err;
  return json::parse(r.out);
}
const std::vector<std::string> kWide = {
    "--model",   "llama3-70B",
    "--cluster", "H100",
    "--layout",  "tp=8 pp=4 dp=4 zero=1 sequence=true micro=1 global=32 seq=4096",
    "--set",     "train.checkpoint_every=100"};
std::vector<std::string> wide(std::vector<std::string> more) {
  more.insert(more.begin(), kWide.begin(), kWide.end());
  return more;
}

// By rank and lane, ops and collectives in order. `known`: names of others are left out (a tape has more than
// a trace: the step's begin and end).
using Order = std::map<std::pair<int, std::string>, std::vector<std::string>>;
Order order_of(const Timeline& t, int64_t step, const std::set<std::string>& known) {
  Order order;
  for (const Span& s : t.spans) {
    if (s.step != step || (s.kind != SpanKind::op && s.kind != SpanKind::comm)) continue;
    if (!known.count(std::string(s.name)) || s.group == "control") continue;
    std::string line = fmt::format("{} {} {} {}", s.name, s.layer, s.group, s.wire_bytes);
    if (s.kind == SpanKind::op) line += fmt::format(" {} {}", s.action, s.cost.flops);
    order[{s.rank, std::string(s.lane)}].push_back(line);
  }
  return order;
}
std::set<std::string> names_of(const Timeline& t) {
  std::set<std::string> names;
  for (const Span& s : t.spans)
    if (s.kind == SpanKind::op || s.kind == SpanKind::comm) names.insert(std::string(s.name));
  return names;
}

// What ranks really did is what was simulated: the same ops and collectives on the same lanes in the same
// order.
TEST(Simulate, ARealTraceHasTheSimulatedOrder) {
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"layout.dp=2", "batch.global=4"},
                                                 {"layout.dp=2", "layout.zero=3", "batch.global=4"},
                                                 {"layout.pp=2"}}) {
    TempFolder tmp;
    const fs::path file = tiny_run_file(tmp.path(), 2);
    std::vector<std::string> train = {"train", file.string(), "--trace-steps", "2"};
    std::vector<std::string> simulate = {file.string(),   "--trace", (tmp / "simulated.json").string(),
                                         "--trace-ranks", "0",       "1"};
    for (const std::string& set : layout)
      for (auto* args : {&train, &simulate}) args->push_back("--set"), args->push_back(set);
    const Ran r = trireme(tmp.path(), train);
    ASSERT_EQ(r.code, 0) << r.err;
    const json j = simulated(tmp.path(), simulate);
    EXPECT_EQ(j["ranks"], 2);
    const Timeline real = read_chrome_trace(tmp / "run/trace.json"),
                   foretold = read_chrome_trace(tmp / "simulated.json");
    const Order did = order_of(real, 2, names_of(foretold)), would = order_of(foretold, 1, names_of(real));
    EXPECT_GE(did.size(), 4u);  // two ranks, compute and dp
    ASSERT_EQ(did.size(), would.size());
    for (const auto& [lane, lines] : did) {
      const std::vector<std::string>& other = would.at(lane);
      EXPECT_EQ(lines.size(), other.size()) << lane.first << " " << lane.second;
      for (size_t i = 0; i < std::min(lines.size(), other.size()); i++)
        ASSERT_EQ(lines[i], other[i]) << "rank " << lane.first << " lane " << lane.second << " number " << i;
    }
    const json seen =
        json::parse(trireme(tmp.path(), {"inspect", (tmp / "simulated.json").string(), "--json"}).out);
    EXPECT_EQ(seen["kind"], "trace");
    EXPECT_EQ(seen["ranks"], 2);
  }
}

// The booked peak is the plan's, to the byte.
TEST(Simulate, MemoryIsThePlans) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  const json plan = json::parse(trireme(tmp.path(), {"plan", file.string(), "--json"}).out);
  const json j = simulated(tmp.path(), {file.string()});
  EXPECT_EQ(j["groups"][0]["peak_bytes"], plan["best"]["memory"]["total"]);
  EXPECT_NEAR(j["step_s"].get<double>(), plan["best"]["step_s"].get<double>(), 1e-9);
}

TEST(Simulate, SlowAndFailingRanksInAWideLayout) {
  TempFolder tmp;
  const json even = simulated(tmp.path(), wide({}));
  EXPECT_EQ(even["ranks"], 128);
  EXPECT_EQ(even["classes"], 4);
  const json all = simulated(tmp.path(), wide({"--all-ranks"}));
  EXPECT_EQ(all["step_s"], even["step_s"]);
  const json slow = simulated(tmp.path(), wide({"--slow", "40=1.5"}));
  EXPECT_EQ(slow["classes"], 16);
  EXPECT_GT(slow["step_s"], even["step_s"]);
  EXPECT_EQ(simulated(tmp.path(), wide({"--slow", "40=1.5", "--all-ranks"}))["step_s"], slow["step_s"]);
  const double step = even["step_s"], at = 250.5 * step + 2 * 3;
  const json failed =
      simulated(tmp.path(),
                wide({"--fail", fmt::format("40@{:.9f}", at), "--save", "3", "--restart", "90"}))["failure"];
  EXPECT_EQ(failed["saved_step"], 200);
  EXPECT_EQ(failed["step"], 251);
  EXPECT_NEAR(failed["work_lost_s"].get<double>(), 50.5 * step, 1e-6);
  EXPECT_EQ(failed["waited_s"], 100);
}

TEST(Simulate, RefusesWhatMakesNoSense) {
  TempFolder tmp;
  const auto why = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "simulate");
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << r.err;
    return r.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  EXPECT_TRUE(has(why({"--model", "llama3-70B", "--layout", "tp=8"}), "--cluster is required"));
  EXPECT_TRUE(has(why({"--model", "nobody", "--cluster", "H100"}), "--model: no \"nobody\""));
  EXPECT_TRUE(has(why(wide({"--slow", "128=2"})), "ranks are 0 to 127"));
  EXPECT_TRUE(has(why(wide({"--slow", "1"})), "RANK=FACTOR"));
  EXPECT_TRUE(has(why(wide({"--slow", "1=nan"})), "RANK=FACTOR"));
  EXPECT_TRUE(has(why(wide({"--slow-link", "16=0.5"})), "nodes are 0 to 15"));
  EXPECT_TRUE(has(why(wide({"--slow-link", "1=1.5"})), "0.001 to 1"));
  EXPECT_TRUE(has(why(wide({"--fail", "1@-3"})), "--fail"));
  EXPECT_TRUE(has(why(wide({"--fail", "1@1e12"})), "0 to 1e+09"));
  EXPECT_TRUE(has(why(wide({"--fail", "1@900000000"})), "train.steps = 1000"));
  EXPECT_TRUE(has(why(wide({"--software", "lama3"})), "did you mean llama3?"));
  EXPECT_TRUE(has(why(wide({"--site", "nowhere"})), "--site: no \"nowhere\""));
  EXPECT_TRUE(has(why({"--layout", "tp=8 pp=4"}), "--layout: goes with a run"));
  EXPECT_TRUE(has(why({"--schedule", "1f1b", "--slow", "1=2"}), "--slow: goes with a run"));
  EXPECT_TRUE(has(why({"--trace", (tmp / "t.json").string()}), "--trace: goes with a run"));
  for (const char* option : {"--gallery", "--times", "--memory", "--aim", "--comm"}) {
    const char* value = std::string_view(option) == "--aim" ? "step" : "1";
    const std::string text = why(wide({option, value}));
    EXPECT_TRUE(has(text, option) && has(text, "excludes")) << text;
  }
  EXPECT_TRUE(has(why(wide({"--fail", "200@3"})), "ranks are 0 to 127"));
  const std::string booked = tiny_run_file(tmp.path(), 2).string();
  EXPECT_TRUE(has(why({booked, "--share-links"}), "--share-links: a run that is booked here"));
  EXPECT_TRUE(has(why(wide({"--set", "layout.tp_chunks=2"})), "layout.tp_chunks = 2"));
  EXPECT_TRUE(
      has(why(wide({"--trace-ranks", "999", "--trace", (tmp / "t.json").string()})), "--trace-ranks 999"));
  EXPECT_FALSE(fs::exists(tmp / "t.json"));
}

}  // namespace
}  // namespace trireme::test
