// trireme simulate of a run: its trace against the trace of the real run; what a slow and a failing rank
// cost, as numbers; requests that make no sense.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "process.h"
#include "schedule/schedule.h"
#include "source_dir.h"
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

// A model has no batch of its own: what --layout and --set do not name is told.
TEST(Simulate, SizesThatNobodyNamedAreTold) {
  TempFolder tmp;
  std::vector<std::string> args = {"simulate", "--model",  "llama3-8B",           "--cluster",
                                   "H100",     "--layout", "dp=8 micro=1 seq=512"};
  const Ran r = trireme(tmp.path(), args);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("note: --layout does not name, so these are taken: global=32\n"), r.err.npos) << r.err;
  args.insert(args.end(), {"--set", "batch = {global = 8}"});
  const Ran all = trireme(tmp.path(), args);
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.err.find("does not name"), r.err.npos) << all.err;
}

// Whatever is shipped can be simulated: clusters of which no attention was measured too.
TEST(Simulate, EveryShippedClusterAndCase) {
  TempFolder tmp;
  const fs::path configs = source_dir() / "configs";
  int clusters = 0, cases = 0;
  for (const auto& file : fs::directory_iterator(configs / "cluster")) {
    const json j = simulated(tmp.path(), {"--model", "llama3-8B", "--cluster", file.path().string(),
                                          "--layout", "dp=8 zero=1 micro=1 global=8 seq=4096"});
    EXPECT_GT(j["step_s"], 0) << file.path();
    EXPECT_LT(j["mfu"], 1) << file.path();
    clusters++;
  }
  const fs::path here = fs::current_path();
  fs::current_path(source_dir());  // cases name their clusters from the tree's root
  for (const auto& file : fs::directory_iterator(configs / "cases")) {
    const Ran r = trireme(source_dir(), {"simulate", file.path().string(), "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_GT(json::parse(r.out)["step_s"], 0) << file.path();
    cases++;
  }
  fs::current_path(here);
  EXPECT_GE(clusters, 11);
  EXPECT_GE(cases, 5);
}

// A cluster file's device has the rates of the one of its family and memory that was measured, and says so.
TEST(Simulate, ACurveIsFoundByFamilyAndMemory) {
  TempFolder tmp;
  const std::string a100 = (source_dir() / "configs/cluster/a100-sxm-8.toml").string();
  const auto on = [&](const std::string& cluster) {
    return simulated(tmp.path(), {"--model", "llama3-8B", "--cluster", cluster, "--layout",
                                  "dp=8 zero=1 micro=1 global=8 seq=4096"});
  };
  const auto called = [&](const std::string& name) {
    const fs::path file = tmp / (name + ".toml");
    std::string text = read_text(a100);
    text.replace(text.find("a100-sxm-8"), std::string("a100-sxm-8").size(), name);
    write_text_atomic(file, text);
    return on(file.string());
  };
  const json file = on(a100);
  EXPECT_NE(file["priced"].get<std::string>().find("A100-80GB's curves"), std::string::npos)
      << file["priced"];
  EXPECT_EQ(file["step_s"], called("A100-80GB")["step_s"]);
  EXPECT_NE(file["step_s"], called("ours")["step_s"]);
  const json tpu = on((source_dir() / "configs/cluster/tpu-v5p.toml").string());
  EXPECT_NE(tpu["priced"].get<std::string>().find("attention at 50 % of the peak"), std::string::npos);
}

// What ranks really did is what was simulated: the same ops and collectives on the same lanes in the same
// order.
TEST(Simulate, ARealTraceHasTheSimulatedOrder) {
  // A type that is said: what "auto" is follows the device in a run and the cluster file in its simulation.
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"layout.dp=2", "batch.global=4", "precision.compute=bf16"},
        {"layout.dp=2", "layout.zero=3", "batch.global=4", "precision.compute=f32"},
        {"layout.pp=2", "precision.compute=bf16"}}) {
    TempFolder tmp;
    const fs::path file = tiny_run_file(tmp.path(), 2);
    std::vector<std::string> train = {"train", file.string(), "--trace-steps", "2"};
    std::vector<std::string> simulate = {file.string(), "--trace", (tmp / "simulated.json").string(),
                                         "--trace-ranks", "0,1"};
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

// The booked peak is the plan's, to the byte, with the room that experts' rows may take.
TEST(Simulate, MemoryIsThePlans) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  const std::vector<std::string> runs[] = {
      {},
      {"--set", "model.experts=4", "--set", "model.experts_per_token=2", "--set", "model.moe_ffn=512",
       "--set", "layout.dp=2", "--set", "layout.ep=2", "--set", "batch.global=8"}};
  for (const std::vector<std::string>& sets : runs) {
    std::vector<std::string> words = {file.string()}, planning = {"plan", file.string(), "--json"};
    words.insert(words.end(), sets.begin(), sets.end()),
        planning.insert(planning.end(), sets.begin(), sets.end());
    const Ran planned = trireme(tmp.path(), planning);
    ASSERT_EQ(planned.code, 0) << planned.err;
    const json plan = json::parse(planned.out), j = simulated(tmp.path(), words);
    int64_t most = 0;
    for (const json& group : j["groups"]) most = std::max(most, group["peak_bytes"].get<int64_t>());
    EXPECT_EQ(most, plan["best"]["memory"]["total"]);
    EXPECT_NEAR(j["step_s"].get<double>(), plan["best"]["step_s"].get<double>(), 1e-9);
  }
}

// Sixteen stages fit a screen, the last one among those shown; the bubble of equal stages is estimate's.
TEST(Simulate, ADeepPipelineFitsAScreen) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"simulate", "--model", "llama3-8B", "--cluster", "H100", "--layout",
                                     "pp=16 dp=4 zero=1 micro=1 global=64 seq=4096"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_LE(std::count(r.out.begin(), r.out.end(), '\n'), 25) << r.out;
  EXPECT_NE(r.out.find("\nstage 15 "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("(10 groups more: "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" at most; 48.4 % of equal stages, as in estimate"), std::string::npos) << r.out;
}

// A step that is priced at peak rates is called a bound.
TEST(Simulate, AStepAtPeakRatesIsABound) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 2).string();
  const std::string h100 = (source_dir() / "configs/cluster/h100-sxm-8.toml").string();
  std::vector<std::string> args = {
      file, "--by-op", "--set", "train.device=cuda", "--set", "precision.compute=bf16", "--cluster", h100};
  EXPECT_TRUE(simulated(tmp.path(), args)["bound"]);
  args.insert(args.begin(), "simulate");
  const Ran r = trireme(tmp.path(), args);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("\nstep       at least "), std::string::npos) << r.out;
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

// A run that this program does not train is simulated, and a line says why `plan` has no forecast of it.
TEST(Simulate, SaysThatPlanRefusesTheRun) {
  TempFolder tmp;
  const std::string run = tmp.path() / "run.toml";
  write_text_atomic(run,
                    "[model]\narch = \"llama\"\nlayers = 4\nhidden = 512\nheads = 8\n[batch]\nglobal = 64\n"
                    "[layout]\ndp = 8\n[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"ordered\"\n"
                    "[cluster]\nfile = \"h100-p5\"\n");
  const Ran planned = trireme(tmp.path(), {"plan", run});
  EXPECT_EQ(planned.code, 2);
  EXPECT_NE(planned.err.find("cannot be had with train.comm"), std::string::npos) << planned.err;
  const Ran refused = trireme(tmp.path(), {"simulate", run});
  EXPECT_EQ(refused.code, 0) << refused.err;
  EXPECT_NE(refused.err.find("note: plan and train refuse this run, so it is priced in closed form: "
                             "train.sum_order"),
            std::string::npos)
      << refused.err;
  const Ran right = trireme(tmp.path(), {"simulate", run, "--set", "train.sum_order=auto"});
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_EQ(right.err.find("refuse"), std::string::npos) << right.err;
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

// --- a schedule drawn ---

json drawn(const fs::path& home, std::vector<std::string> more) {
  more.insert(more.begin(), {"simulate", "--json"});
  const Ran r = trireme(home, more);
  EXPECT_EQ(r.code, 0) << r.err;
  return json::parse(r.out);
}

TEST(SimulateSchedule, DrawsItInTheTerminalAndIntoFiles) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2",
                                     "--svg", (tmp / "s.svg").string(), "--html", (tmp / "s.html").string()});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("1f1b: 2 pipeline ranks, 2 microbatches, times 1,1,1\n"), r.out.npos) << r.out;
  EXPECT_NE(r.out.find("   0 F0 F1 .  .  B0--- .  B1---\n   1 .  F0 B0--- F1 B1--- .  .\n"), r.out.npos)
      << r.out;
  EXPECT_NE(r.out.find("published idle (p-1)(F+I+W), here 3: exactly so\n"), r.out.npos) << r.out;
  EXPECT_NE(r.out.find("published held p - r: exactly so\n"), r.out.npos) << r.out;
  const std::string svg = read_text(tmp / "s.svg"), page = read_text(tmp / "s.html");
  EXPECT_EQ(svg.compare(0, 4, "<svg"), 0);
  EXPECT_NE(page.find("<svg"), page.npos);
  EXPECT_NE(page.find("exactly so"), page.npos);
}

TEST(SimulateSchedule, NumbersAreThoseOfTheTimes) {
  TempFolder tmp;
  const json even = drawn(tmp.path(), {"--schedule", "zb-h1", "--stages", "4", "--microbatches", "8"});
  EXPECT_EQ(even["ranks"], 4);
  EXPECT_EQ(even["makespan"], 27);  // 8 of 3, and (p-1)(F+I-W)
  EXPECT_EQ(even["idle"], 3);
  EXPECT_EQ(even["published_idle"], 3);
  EXPECT_EQ(even["peak_in_flight"], json::parse("[4, 4, 4, 4]"));
  const json slow = drawn(tmp.path(), {"--schedule", "gpipe", "--stages", "3", "--microbatches", "4",
                                       "--times", "1,1,1/2,2,2/1,1.5,1"});
  // GPipe: the sum of all stages and m - 1 times the slowest forward and backward.
  EXPECT_EQ(slow["makespan"], (1 + 2 + 1 + 3 * 2) + (2 + 4 + 2.5 + 3 * 4));
  const json chunks = drawn(tmp.path(), {"--schedule", "interleaved", "--stages", "2", "--microbatches", "4",
                                         "--chunks", "3", "--times", "3,3,3"});
  EXPECT_EQ(chunks["chunks"], 3);
  EXPECT_EQ(chunks["idle"], 3);  // (p-1)(F+B)/v
  const json link =
      drawn(tmp.path(), {"--schedule", "1f1b", "--stages", "2", "--microbatches", "1", "--comm", "0.25"});
  EXPECT_EQ(link["makespan"], 6.5);
}

// A searched schedule's text is a file that draws as the search said, and says what it was searched for.
TEST(SimulateSchedule, ASearchedOneIsWrittenAndReadBack) {
  TempFolder tmp;
  const std::string file = (tmp / "own.txt").string();
  const std::vector<std::string> times = {"--times", "2,3,2/4,3,2/2,3,5"};
  const auto with = [&](std::vector<std::string> a) {
    a.insert(a.end(), times.begin(), times.end());
    return a;
  };
  const json found = drawn(tmp.path(), with({"--schedule", "auto", "--stages", "3", "--microbatches", "7",
                                             "--memory", "2.5,0.5", "--out", file}));
  const json read = drawn(tmp.path(), with({"--file", file}));
  EXPECT_EQ(read["makespan"], found["makespan"]);
  EXPECT_EQ(read["peak_in_flight"], found["peak_in_flight"]);
  EXPECT_EQ(read["microbatches"], 7);
  const std::string text = read_text(file);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "# auto: 3 pipeline ranks, 7 microbatches, times 2,3,2/4,3,2/2,3,5");
  const Schedule s = parse_schedule(text);
  EXPECT_EQ(s.ranks.size(), 3u);
  for (const auto& rank : s.ranks) {  // the limit: 2.5 of a microbatch, half of one behind its I
    double held = 0;
    for (const Action& a : rank) {
      held += a.kind == Act::F ? 1 : -0.5;
      EXPECT_LE(held, 2.5);
    }
  }
  // Every generator's text too: stages, chunks and copies come back as they were.
  for (std::string_view name : schedule_names()) {
    const json made = drawn(
        tmp.path(), {"--schedule", std::string(name), "--stages", "4", "--microbatches", "8", "--out", file});
    const json again = drawn(tmp.path(), {"--file", file});
    EXPECT_EQ(again["makespan"], made["makespan"]) << name;
    EXPECT_EQ(again["chunks"], made["chunks"]) << name;
  }
}

TEST(SimulateSchedule, AFileThatCannotRunIsRefusedWithThePlace) {
  TempFolder tmp;
  put_file(tmp / "bad.txt", "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1\n");
  const Ran r = trireme(tmp.path(), {"simulate", "--file", (tmp / "bad.txt").string()});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("deadlock: rank 0 at 0B0 waits for 1B0"), r.err.npos) << r.err;
  EXPECT_NE(r.err.find("     1 [0B0]    [1F1]  <-- here\n"), r.err.npos) << r.err;
}

TEST(SimulateSchedule, TheGalleryIsWritten) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"simulate", "--gallery", (tmp / "g").string()});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_text(tmp / "g/schedules.md"), read_text(source_dir() / "docs/schedules.md"));
  for (std::string_view name : schedule_names())
    EXPECT_TRUE(fs::exists(tmp / "g/schedules" / (std::string(name) + ".svg"))) << name;
}

// Trained, traced, searched with what the trace says, and trained under what was found: to the bit the same.
TEST(SimulateSchedule, FromATraceToARunOfItsOwn) {
  TempFolder tmp;
  const std::string run = tiny_run_file(tmp.path(), 4).string(), own = (tmp / "own.txt").string();
  const std::vector<std::string> common = {
      "train", run, "--set", "layout.pp=2", "--set", "batch.global=12", "--set", "model.layers=4"};
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    const Ran r = trireme(tmp.path(), more);
    EXPECT_EQ(r.code, 0) << r.err;
    return outcome_of(tmp / "run");
  };
  const Outcome before = train({"--set", "layout.schedule=zb-h1", "--trace-steps", "2-4"});
  const std::string trace = (tmp / "run/trace.json").string();
  const json found =
      drawn(tmp.path(), {"--schedule", "auto", "--times-of", trace, "--memory", "3", "--out", own});
  EXPECT_EQ(found["ranks"], 2);
  EXPECT_EQ(found["microbatches"], 6);
  EXPECT_GT(found["makespan"], 0);
  const json plenty = drawn(tmp.path(), {"--schedule", "auto", "--times-of", trace, "--memory", "1GB"});
  // Never longer than the schedules that it knows, by the same times.
  for (const char* name : {"1f1b", "zb-h1"}) {
    const json known = drawn(tmp.path(), {"--schedule", name, "--times-of", trace});
    EXPECT_LE(found["makespan"], known["makespan"]) << name;
    EXPECT_LE(plenty["makespan"], known["makespan"]) << name;
  }
  // Bytes: so few that each rank has one microbatch at a time.
  const auto why = [&](const char* memory) {
    return trireme(tmp.path(), {"simulate", "--schedule", "auto", "--times-of", trace, "--memory", memory})
        .err;
  };
  EXPECT_NE(why("0.001kB").find("leaves no room for a microbatch"), std::string::npos) << why("0.001kB");
  EXPECT_NE(why("5MX").find("neither bytes nor microbatches"), std::string::npos);
  fs::remove_all(tmp / "run");
  const Outcome after = train({"--set", "layout.schedule=file", "--set", "layout.schedule_file=" + own});
  EXPECT_EQ(after.tensors, before.tensors);
  EXPECT_EQ(after.step, 4);
  ASSERT_EQ(after.metrics.size(), before.metrics.size());
  for (size_t i = 0; i < after.metrics.size(); i++) {
    const json a = json::parse(after.metrics[i]), b = json::parse(before.metrics[i]);
    for (const char* key : {"step", "loss", "grad_norm", "lr"}) EXPECT_EQ(a[key], b[key]) << key;
  }
}

}  // namespace
}  // namespace trireme::test
