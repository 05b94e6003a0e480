// What a user says of the machine that is theirs: two measured steps, devices by name, stragglers; and what
// one process measures of it, once.
#include <gtest/gtest.h>

#include <regex>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "catalog/cluster_data.h"
#include "cost/flops.h"
#include "process.h"
#include "source_dir.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using nlohmann::json;

json planned(const fs::path& home, std::vector<std::string> args) {
  args.push_back("--json");
  const Ran r = trireme(home, args);
  EXPECT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << r.out;
  return j;
}
std::vector<std::string> and_also(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// `plan` of a run file that a search printed has the search's step, inside its interval, and the bytes that
// it booked.
void expect_as_searched(const json& found, const json& one) {
  const json& best = found["best"];
  EXPECT_TRUE(one["fits"].get<bool>()) << one;
  EXPECT_TRUE(one["closed_form"].get<bool>());
  EXPECT_DOUBLE_EQ(one["step_s"].get<double>(), best["step_s"].get<double>());
  EXPECT_LE(one["roof_s"].get<double>(), best["step_s"].get<double>());
  EXPECT_TRUE(best["replayed"].get<bool>());
  EXPECT_DOUBLE_EQ(one["step_low_s"].get<double>(), best["step_low_s"].get<double>());
  EXPECT_DOUBLE_EQ(one["step_high_s"].get<double>(), best["step_high_s"].get<double>());
  EXPECT_LE(best["step_low_s"].get<double>(), best["step_s"].get<double>());
  EXPECT_GE(best["step_high_s"].get<double>(), best["step_s"].get<double>());
  int booked = 0;
  for (const json& c : found["confirmed"]["layouts"]) {
    if (c["layout"] != best["layout"]) continue;
    booked++;
    EXPECT_EQ(one["memory"]["arena"], c["booked_bytes"]);
    EXPECT_NEAR(one["beside_bytes"], c["base"], 1);  // taken by drivers and libraries
  }
  EXPECT_EQ(booked, 1) << found["confirmed"];
}

// Two runs of one's own on eight H100s, which take so many seconds.
json own_rows(std::array<double, 2> seconds) {
  json rows = json::array();
  for (int i : {0, 1})
    rows.push_back({{"id", fmt::format("mine{}", i)},
                    {"source", "Llama 3, my own"},
                    {"kind", "measured"},
                    {"precision", "bf16"},
                    {"software", "llama3"},
                    {"site", "mine"},
                    {"model", {{"name", "llama3-8B"}, {"seq", 8192}}},
                    {"cluster", {{"gpu", "H100"}, {"count", 8}}},
                    {"layout",
                     {{"tp", i + 1},
                      {"pp", 1},
                      {"dp", 8 / (i + 1)},
                      {"zero", 1},
                      {"interleave", 1},
                      {"micro_batch", 1},
                      {"global_batch", 64},
                      {"recompute", "none"}}},
                    {"result", {{"step_time_s", seconds[size_t(i)]}}}});
  return rows;
}

// The same forecast before, and after calibration by what the site's steps took of theirs: of plan, simulate
// and search alike.
TEST(Planned, AUsersOwnStepsCalibrateEveryForecast) {
  TempFolder tmp;
  const fs::path rows = tmp / "mine.json", own = tmp / "mine-constants.json";
  put_file(rows, own_rows({10, 10}).dump());
  const json before = planned(tmp.path(), {"score", rows, "--as-is"})["rows"];
  ASSERT_EQ(before.size(), 2u);
  constexpr double kSlower = 1.1;
  put_file(rows, own_rows({kSlower * before[0]["predicted"].get<double>(),
                           kSlower * before[1]["predicted"].get<double>()})
                     .dump());
  Ran r = trireme(tmp.path(), {"score", rows, "--calibrate", own});
  ASSERT_EQ(r.code, 0) << r.err;
  const json after = planned(tmp.path(), {"score", rows, "--as-is", "--constants", own})["rows"];
  const double times = after[0]["predicted"].get<double>() / before[0]["predicted"].get<double>();
  EXPECT_GT(times, 1.05);
  EXPECT_LT(times, kSlower + 1e-3);

  const std::vector<std::string> simulate = {
      "simulate",  "--model",  "llama3-8B",
      "--cluster", "H100",     "--software",
      "llama3",    "--layout", "dp=8 zero=1 micro=1 global=64 seq=8192"};
  const json plain = planned(tmp.path(), simulate),
             mine = planned(tmp.path(), and_also(simulate, {"--constants", own}));
  EXPECT_NEAR(mine["step_s"].get<double>() / plain["step_s"].get<double>(), times, 0.01);
  EXPECT_NE(mine["priced"].get<std::string>().find(
                "software llama3, site mine (its own exposed waits; all parts x 1."),
            std::string::npos)
      << mine["priced"];

  // Layouts that differ in their sharding alone are nearly as fast, so that is fixed.
  const std::vector<std::string> search = {
      "search", "--model",    "llama3-8B", "--cluster",      "H100", "--gpus",    "8",     "--seq",
      "8192",   "--software", "llama3",    "--global-batch", "64",   "--require", "zero=1"};
  const json all = planned(tmp.path(), search),
             all_mine = planned(tmp.path(), and_also(search, {"--constants", own}));
  // A site has what it exposes of gradients beside its pace, so that layouts move a little apart.
  const auto moved = [&](const json& to, const json& from) {
    EXPECT_GT(to.get<double>() / from.get<double>(), 1.05);
    EXPECT_LT(to.get<double>() / from.get<double>(), kSlower + 0.02);
  };
  EXPECT_EQ(all["best"]["layout"], all_mine["best"]["layout"]);
  moved(all_mine["best"]["step_s"], all["best"]["step_s"]);
  int simulated = 0;
  for (const json& one : all_mine["confirmed"]["layouts"])
    for (const json& other : all["confirmed"]["layouts"])
      if (one["layout"] == other["layout"] && one["simulated_s"].is_number() &&
          other["simulated_s"].is_number())
        moved(one["simulated_s"], other["simulated_s"]), simulated++;
  EXPECT_GT(simulated, 0);
  EXPECT_NE(all_mine["constants"].get<std::string>().find("mine-constants.json"), std::string::npos);
  const std::vector<std::string> sweep = {
      "search", "--sweep",   "gpus=8..16", "--model", "llama3-8B", "--seq",      "8192",  "--global-batch",
      "64",     "--cluster", "H100",       "--best",  "1",         "--software", "llama3"};
  moved(planned(tmp.path(), and_also(sweep, {"--constants", own}))["sweep"][0]["step_s"],
        planned(tmp.path(), sweep)["sweep"][0]["step_s"]);

  // A run priced op by op takes its whole step's factor, and says so; the roof stays.
  const std::vector<std::string> run = {"plan", tiny_run_file(tmp.path(), 3)};
  const json op = planned(tmp.path(), run)["candidates"][0],
             op_mine = planned(tmp.path(), and_also(run, {"--constants", own}))["candidates"][0];
  const double slower = op_mine["slowed"][0]["times"];
  EXPECT_GT(slower, 1.03);
  EXPECT_LT(slower, kSlower);
  EXPECT_NEAR(op_mine["step_s"].get<double>(), slower * op["step_s"].get<double>(), 1e-9);
  EXPECT_EQ(op_mine["roof_s"], op["roof_s"]);
  EXPECT_EQ(r.err.find("train.keep"), std::string::npos) << r.err;
  r = trireme(tmp.path(), and_also(run, {"--constants", own, "--set", "train.keep=1000000"}));
  // More checkpoints than any disk of a test machine has room for.
  EXPECT_NE(r.err.find("train.keep = 1000000: 1000001 checkpoints of "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("the disk of train.dir = "), std::string::npos) << r.err;
  EXPECT_NE(r.out.find(fmt::format("x {:.3f} by site mine of {}", slower, own.string())), std::string::npos)
      << r.out;

  // A run on GPUs has the constants in its prices: plan and simulate print one step, and its interval and its
  // alternatives move with it.
  const fs::path gpus = tmp / "gpus.toml";
  put_file(gpus,
           "[model]\narch = \"llama\"\nlayers = 4\nhidden = 512\nheads = 8\nvocab = 1024\n"
           "[data]\nseq_len = 1024\n[batch]\nglobal = 32\nmicro = 1\n[layout]\ndp = 8\nzero = 1\n"
           "[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\"\n"
           "[cluster]\nfile = \"H100\"\n");
  const json plain_plan = planned(tmp.path(), {"plan", gpus}),
             own_plan = planned(tmp.path(), {"plan", gpus, "--constants", own});
  const json &there = plain_plan["candidates"][0], &here = own_plan["candidates"][0];
  const double pace = here["step_s"].get<double>() / there["step_s"].get<double>();
  EXPECT_GT(pace, 1.01);
  EXPECT_LT(pace, kSlower + 0.02);
  for (const char* of : {"step_low_s", "step_high_s"})
    EXPECT_NEAR(here[of].get<double>() / there[of].get<double>(), pace, 0.01) << of;
  ASSERT_EQ(own_plan["best"]["alternatives"].size(), 2u);
  const json &before_one = plain_plan["best"]["alternatives"][0], &one = own_plan["best"]["alternatives"][0];
  EXPECT_EQ(one["change"], before_one["change"]);
  EXPECT_NEAR(one["step_s"].get<double>() / before_one["step_s"].get<double>(), pace, 0.02);
  EXPECT_FALSE(here.contains("slowed"));
  EXPECT_NE(here["constants"].get<std::string>().find("site mine"), std::string::npos);
  EXPECT_NEAR(planned(tmp.path(), {"simulate", gpus, "--constants", own})["step_s"].get<double>(),
              here["step_s"].get<double>(), 1e-9);

  const auto refused = [&](std::vector<std::string> args, const std::string& what) {
    const Ran wrong = trireme(tmp.path(), args);
    EXPECT_EQ(wrong.code, 2) << wrong.out;
    EXPECT_NE(wrong.err.find(what), std::string::npos) << wrong.err;
  };
  refused(and_also(search, {"--constants", own, "--site", "nobodys"}), "--site: no \"nobodys\"");
  refused(and_also(search, {"--constants", (source_dir() / "data/score_constants.json").string()}),
          "differs from the shipped constants in its sites at most");
  refused(and_also(run, {"--constants", own, "--axes"}), "--constants: it applies to the forecast of a step");
}

TEST(Planned, ACalibrationNamesItsDoubtfulRows) {
  TempFolder tmp;
  const fs::path file = tmp / "mine.json";
  const auto calibrated = [&](const json& rows) {
    put_file(file, rows.dump());
    return trireme(tmp.path(), {"score", file, "--calibrate", (tmp / "c.json").string()});
  };
  const auto said = [](const Ran& r, int code, const std::string& what) {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(what), std::string::npos) << r.err;
  };
  Ran r = calibrated(own_rows({3300, 0.01}));
  said(r, 0, "mine.json: mine0: result.step_time_s: a step of 3300 s is ");
  said(r, 0, "mine.json: mine1 is left out: ");
  said(r, 0, "more than the peak of 989: a step of 0.01 s; expected ");
  EXPECT_NE(r.out.find("fitted on 1 row of"), std::string::npos) << r.out;
  const json rows = own_rows({10, 10});
  json other = rows;
  other[1]["software"] = "foo";
  said(calibrated(other), 2, "mine.json: mine1: software: no \"foo\"");
  other = rows;
  for (json& row : other) row["site"] = "dgxc";
  said(calibrated(other), 0, "mine.json: mine0: site \"dgxc\" is of published runs");
  said(calibrated(own_rows({10, 1e30})), 2,
       "row 2: result.step_time_s is 1e+30; right is a number above 0 and below");
  // A row of an unknown source has the attention of search and simulate.
  other = rows;
  for (json& row : other) row["source"] = "mine";
  other[1] = other[0];
  other[1]["id"] = "flash";
  other[1]["layout"]["attention"] = "flash";
  put_file(file, other.dump());
  const json scored = planned(tmp.path(), {"score", file, "--as-is"})["rows"];
  EXPECT_EQ(scored[0]["predicted"], scored[1]["predicted"]);
}

// A device by name has the memory of its file, and one that only a file describes is taken from it.
TEST(Planned, DevicesByNameAreThoseOfTheFiles) {
  TempFolder tmp;
  const auto fits = [&](const std::string& cluster) {
    const json j = planned(tmp.path(), {"simulate", "--model", "llama3-8B", "--cluster", cluster, "--layout",
                                        "tp=8 micro=1 global=8 seq=4096 sequence=true"});
    return j["device_memory_bytes"].get<int64_t>();
  };
  for (const auto& [name, file] : {std::pair("H100", "h100-sxm-8"),
                                   {"H200", "h200-sxm-8"},
                                   {"B200", "b200-sxm-8"},
                                   {"GB200", "gb200-nvl72"},
                                   {"A100-80GB", "a100-sxm-8"},
                                   {"MI300X", "mi300x-8"},
                                   {"mi300x-8", "mi300x-8"},
                                   {"tpu-v5p", "tpu-v5p"}})
    EXPECT_EQ(fits(name), fits((source_dir() / "configs/cluster" / file).string() + ".toml")) << name;
  const std::vector<std::string> search = {"search", "--model", "llama3-8B",      "--gpus", "8",
                                           "--seq",  "4096",    "--global-batch", "64",     "--cluster"};
  EXPECT_TRUE(planned(tmp.path(), and_also(search, {"MI300X"}))["best"].is_object());
  Ran r = trireme(tmp.path(), and_also(search, {"TPU"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("configs/cluster/tpu-v5e.toml, configs/cluster/tpu-v5p.toml"), std::string::npos)
      << r.err;
  r = trireme(tmp.path(), and_also(search, {"Z80"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("mi300x-8"), std::string::npos) << r.err;
}

// What a slow rank and a slow link cost is plan's as it is simulate's.
TEST(Planned, StragglersCostWhatSimulateSays) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 3).string();
  const std::vector<std::string> two = {"--set", "layout.dp=3", "--set", "layout.zero=1"},
                                 slow = {"--slow", "1=1.5"};
  const auto step = [&](const char* verb, const std::vector<std::string>& more) {
    const json j = planned(tmp.path(), and_also(and_also({verb, file}, two), more));
    return std::string(verb) == "plan" ? j["candidates"][0]["step_s"].get<double>()
                                       : j["step_s"].get<double>();
  };
  const double simulated = step("simulate", slow) / step("simulate", {});
  EXPECT_GT(simulated, 1.2);
  EXPECT_NEAR(step("plan", slow) / step("plan", {}), simulated, 1e-6);
  Ran r = trireme(tmp.path(), and_also(and_also({"plan", file}, two), slow));
  EXPECT_NE(r.out.find(fmt::format("x {:.3f} by rank 1 computing 1.5 times as long", simulated)),
            std::string::npos)
      << r.out;
  r = trireme(tmp.path(), and_also(and_also({"plan", file}, two), {"--slow", "3=1.5"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--slow 3: ranks are 0 to 2"), std::string::npos) << r.err;
  r = trireme(tmp.path(), and_also(and_also({"plan", file}, two), {"--explain", "--slow", "1=1.5"}));
  EXPECT_NE(r.err.find("--slow: it applies to the forecast of a step"), std::string::npos) << r.err;
}

// A model by name and the run file that search writes for it have one step, with stragglers too: in plan,
// simulate and estimate. A note names what a run file cannot say. Its bytes and its checkpoints are one
// number each.
TEST(Planned, AModelByNameAndItsRunFileAreOneForecast) {
  TempFolder tmp;
  const std::string out = (tmp / "out.toml").string();
  const Ran r = trireme(tmp.path(), {"search", "--model", "gpt-oss-120b", "--cluster", "H100", "--gpus", "64",
                                     "--global-batch", "128", "--seq", "4096", "--require", "pp=2",
                                     "--require", "schedule=1f1b", "--out", out, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("note: --model gpt-oss-120b: trireme has no sliding windows of 128 tokens"),
            std::string::npos)
      << r.err;
  const json best = json::parse(r.out)["best"];
  const auto plan = [&](const std::vector<std::string>& more) {
    return planned(tmp.path(), and_also({"plan", out}, more))["candidates"][0];
  };
  const json alone = plan({});
  expect_as_searched(json::parse(r.out), alone);
  for (const std::vector<std::string>& slow :
       {std::vector<std::string>{"--slow", "3=1.5"}, {"--slow-link", "1=0.25"}}) {
    const double slowed = plan(slow)["step_s"];
    EXPECT_GT(slowed, 1.05 * alone["step_s"].get<double>());
    EXPECT_NEAR(planned(tmp.path(), and_also({"simulate", out}, slow))["step_s"].get<double>() / slowed, 1,
                1e-9);
  }
  const json named = planned(tmp.path(), {"estimate", out, "--cluster", "H100"});
  EXPECT_NEAR(named["memory"]["total"]["value"].get<double>(),
              alone["memory"]["arena"].get<double>() + alone["beside_bytes"].get<double>(), 1);
  const json shape = planned(tmp.path(), {"estimate", "--model", "gpt-oss-120b", "--cluster", "H100"});
  for (const json& bytes : {named["memory"]["checkpoint"]["value"], shape["memory"]["checkpoint"]["value"]})
    EXPECT_NEAR(bytes.get<double>() / best["checkpoint"]["bytes"].get<double>(), 1, 1e-9);
  const json failed = planned(tmp.path(), {"simulate", out, "--fail", "3@100"})["failure"];
  EXPECT_NEAR(failed["save_s"].get<double>() / best["checkpoint"]["stall_s"].get<double>(), 1, 1e-9);
}

// One layout has one number of bytes: the largest arena and what no run books.
TEST(Planned, OptionsOfEstimateAreBookedAsSearchBooks) {
  TempFolder tmp;
  const json best = planned(
      tmp.path(), {"search", "--model", "llama3-8B", "--cluster", "H100", "--gpus", "8", "--global-batch",
                   "64", "--seq", "4096", "--require", "cp=1", "--require", "schedule=1f1b", "--require",
                   "recompute=none", "--require", "offload=none"})["best"];
  const json& l = best["layout"];
  std::vector<std::string> words = {"estimate", "--model", "llama3-8B", "--cluster", "H100",
                                    "--gpus",   "8",       "--seq",     "4096"};
  for (const char* key : {"tp", "pp", "zero", "micro", "microbatches"}) {
    words.push_back(fmt::format("--{}", key));
    words.push_back(std::to_string(l[key].get<int64_t>()));
  }
  const double closed = best["memory"]["total"], booked = best["memory"]["booked"];
  EXPECT_GT(std::abs(booked - closed), 1e8);
  EXPECT_NEAR(planned(tmp.path(), words)["memory"]["total"]["value"].get<double>(), booked, 1);
  // A step of this many microbatches is not booked.
  words.back() = "9000";
  const Ran r = trireme(tmp.path(), words);
  EXPECT_NE(r.out.find("one device in total, at least"), std::string::npos) << r.out;
}

// A search that finds nothing exits with 2, whichever its table is.
TEST(Planned, NoLargestModelIsABadRequest) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", "A100", "--gpus", "1",
                                     "--seq", "1000000", "--largest"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.out.find("all together                 not even one layer fits"), std::string::npos) << r.out;
  EXPECT_NE(r.err.find("search: nothing fits"), std::string::npos) << r.err;
}

// A V100 multiplies f16: a search without a run file is of f16, and a run in bf16 gets a note. A cluster
// that states no power of its machines says that the hosts are left out.
TEST(Planned, TypesAndPowerThatADeviceLacksAreNamed) {
  TempFolder tmp;
  const std::string out = (tmp / "out.toml").string();
  const std::vector<std::string> search = {
      "search",         "--model", "llama3-8B", "--gpus", "8",     "--seq", "2048",
      "--global-batch", "8",       "--require", "tp=8",   "--out", out};
  Ran r = trireme(tmp.path(), and_also(search, {"--cluster", "V100"}));
  EXPECT_NE(r.err.find("note: V100 has no bf16"), std::string::npos) << r.err;
  EXPECT_EQ(load_run(out).precision.compute, "f16");
  r = trireme(tmp.path(), {"plan", out, "--set", "precision.compute=bf16"});
  EXPECT_NE(r.out.find("V100 has no bf16: priced at its f16 rate"), std::string::npos) << r.out;
  const std::string tiny = tiny_run_file(tmp.path(), 1).string();
  r = trireme(tmp.path(),
              {"plan", tiny, "--all", "--set", "cluster.file=tpu-v5e", "--set", "precision.compute=f32"});
  EXPECT_NE(r.out.find("  not known: tpu-v5e has no peak.f32"), std::string::npos) << r.out << r.err;
  r = trireme(tmp.path(), and_also(search, {"--cluster", "h100-p5", "--require", "precision=fp8"}));
  EXPECT_NE(r.out.find("kW of the devices alone (power.node is not stated)"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" % of the bf16 peak; "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" USD\n"), std::string::npos) << r.out;
}

// A layout by options has the bytes and the errors of search. Experts are divided by ep as in the run file.
TEST(Planned, AnEstimateByOptionsIsOfTheLayoutThatSearchHas) {
  TempFolder tmp;
  const std::string out = (tmp / "out.toml").string();
  const std::vector<std::string> of = {"--model", "mixtral-8x7B", "--cluster", "H100",
                                       "--gpus",  "64",           "--seq",     "4096"};
  Ran r = trireme(
      tmp.path(),
      and_also(and_also({"search"}, of),
               {"--global-batch", "256",     "--require", "tp=1",           "--require", "pp=1",
                "--require",      "cp=1",    "--require", "ep=8",           "--require", "zero=2",
                "--require",      "micro=1", "--require", "recompute=none", "--require", "offload=none",
                "--out",          out,       "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const double bytes = json::parse(r.out)["best"]["memory"]["total"];
  const json file = planned(tmp.path(), {"estimate", out})["memory"];
  const std::vector<std::string> options =
      and_also(and_also({"estimate"}, of), {"--ep", "8", "--zero", "2", "--microbatches", "4"});
  const json by_options = planned(tmp.path(), options)["memory"];
  EXPECT_NEAR(by_options["total"]["value"].get<double>() / bytes, 1, 0.03);
  EXPECT_LT(file["zero2"]["value"].get<double>(), file["total"]["value"].get<double>());
  EXPECT_LT(by_options["zero2"]["value"].get<double>(), by_options["total"]["value"].get<double>());
  r = trireme(tmp.path(), {"estimate", "--model", "llama3-8B", "--gpus", "6", "--tp", "3"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--tp = 3: tp does not divide the heads: llama3-8B has 32 heads"), std::string::npos)
      << r.err;
  r = trireme(tmp.path(), and_also(and_also({"estimate"}, of),
                                   {"--micro", "1000000000", "--microbatches", "1000000000"}));
  EXPECT_EQ(r.code, 2) << r.out;  // more sequences than 64 bits count
  r = trireme(tmp.path(), {"estimate", "--model", "llama3-8B", "--pp", "2", "--chunks", "3"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--chunks = 3: --pp 2 x 3 stages do not divide the 32 layers"), std::string::npos)
      << r.err;
}

// f32 has the peak of the device's cluster file, or no time at all. Offload to a disk of unknown bandwidth
// does not lower the bound, and estimate calls a bound a bound.
TEST(Planned, BoundsAreNoForecasts) {
  TempFolder tmp;
  const std::string out = (tmp / "out.toml").string();
  Ran r = trireme(tmp.path(),
                  {"search", "--model", "llama3-8B", "--cluster", "H100", "--gpus", "8", "--global-batch",
                   "32", "--seq", "4096", "--require", "tp=2", "--require", "offload=none", "--out", out});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto plan = [&](const std::string& set) {
    return planned(tmp.path(), {"plan", out, "--set", set})["candidates"][0];
  };
  const double bf16 = plan("layout.offload=none")["roof_s"];
  const double offloaded = plan("layout.offload=state")["roof_s"];
  const double f32 = plan("precision.compute=f32")["roof_s"];
  EXPECT_GE(offloaded, bf16);
  EXPECT_GT(f32, 5 * bf16);  // 66.9 for 989 TFLOP/s
  const json simulated = planned(tmp.path(), {"simulate", out, "--set", "precision.compute=f32"});
  EXPECT_NEAR(simulated["step_s"].get<double>() / f32, 1, 0.05);
  for (const char* set : {"layout.offload=state", "precision.compute=f32"}) {
    r = trireme(tmp.path(), {"estimate", out, "--set", set});
    EXPECT_NE(r.out.find("MFU, at most"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("8 devices, at least"), std::string::npos) << r.out;
    EXPECT_EQ(r.out.find("forecast"), std::string::npos) << r.out;
  }
  const std::vector<std::string> unknown = {out, "--set", "precision.compute=f32", "--set",
                                            "cluster.file=\"A40\""};
  r = trireme(tmp.path(), and_also({"plan"}, unknown));
  EXPECT_NE(r.out.find("step        not known: A40 has no peak.f32"), std::string::npos) << r.out;
  for (const char* none : {"binds  ", "energy  ", "exposed"})
    EXPECT_EQ(r.out.find(none), std::string::npos) << r.out;
  r = trireme(tmp.path(), and_also({"simulate"}, unknown));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("A40: it has no peak.f32"), std::string::npos) << r.err;
}

// Nothing can be kept where a file stands in the folder's place: then too a choice and the run that follows
// it measure once.
TEST(Planned, TrainMeasuresThisMachineOnce) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  put_file(tmp / "cache", "in the way");
  const Ran r = trireme(tmp.path(), {"train", file, "--set", "cluster.file=\"\"", "--set", "layout=auto",
                                     "--set", "layout.dp=1", "--set", "train.threads=1"});
  EXPECT_EQ(r.code, 0) << r.err;
  size_t said = 0;
  for (size_t at = 0; (at = r.err.find("not kept", at)) != std::string::npos; at++) said++;
  EXPECT_EQ(said, 1u) << r.err;
}

// By how much it does not fit, in bytes: of a run, of a search's nearest, of each division.
TEST(Planned, AShortfallIsBytes) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  put_file(tmp / "small.toml", "memory_bytes = 500000\npeak.f32 = 1e11\nmemory_bandwidth = 1e10\n");
  const json j = planned(
      tmp.path(),
      {"plan", file, "--set", "cluster.file=\"" + (tmp / "small.toml").string() + "\""})["candidates"][0];
  EXPECT_EQ(j["fits"], false);
  EXPECT_EQ(j["allowed_bytes"], 500000);
  EXPECT_EQ(j["over_bytes"], j["device_bytes"].get<int64_t>() - 500000);
  EXPECT_NE(j["why_rejected"].get<std::string>().find(
                fmt::format("needs {} bytes", j["device_bytes"].get<int64_t>())),
            std::string::npos);
  const std::vector<std::string> search = {"search", "--model", "llama3-405B", "--cluster", "H100",
                                           "--gpus", "4",       "--seq",       "4096",      "--global-batch",
                                           "4"};
  // The answer says why, and the search fails.
  const std::string out = (tmp / "none.toml").string();
  const Ran none = trireme(tmp.path(), and_also(search, {"--json", "--out", out}));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("search: nothing fits; --out: " + out + " is not written"), std::string::npos)
      << none.err;
  EXPECT_FALSE(fs::exists(out));
  const json all = json::parse(none.out);
  EXPECT_TRUE(all["best"].is_null());
  double nearest = 0;
  for (const json& no : all["candidates"])
    if (no.contains("over_bytes")) {
      nearest = no["over_bytes"].get<double>();
      EXPECT_EQ(no["at_least"], false);
      EXPECT_DOUBLE_EQ(nearest, no["bytes"].get<double>() - no["allowed_bytes"].get<double>());
    }
  EXPECT_GT(nearest, 0);
  // The nearest division's bytes are known, and others have a lower bound.
  int known = 0;
  for (const json& no : all["rejected"])
    if (no.contains("over_bytes")) {
      EXPECT_GT(no["over_bytes"], 0);
      if (no["at_least"]) continue;
      EXPECT_DOUBLE_EQ(no["over_bytes"].get<double>(), nearest);
      known++;
    }
  EXPECT_EQ(known, 1);
  const Ran r = trireme(tmp.path(), search);
  EXPECT_NE(r.out.find(fmt::format("nearest, {} over 85.9 GB", bytes_text(nearest))), std::string::npos)
      << r.out;
}

// A run on GPUs of configs/cluster/h100-sxm-8.toml: its [model] to [layout], and further keys of [train].
std::string on_h100s(std::string_view to_layout, std::string_view train = "") {
  return fmt::format(
      "{}[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\"\n{}[cluster]\nfile = \"{}\"\n",
      to_layout, train, (source_dir() / "configs/cluster/h100-sxm-8.toml").string());
}

// Offload over a link that the cluster file does not state makes a bound, which says which key is missing.
// Sizes of a known model are printed by its name. A GPU cluster's disk is not this machine's.
TEST(Planned, AnOffloadWithoutALinkIsABound) {
  TempFolder tmp;
  const std::string run = (tmp / "run.toml").string();
  put_file(run, on_h100s("[model]\nvocab = 128256\nlayers = 32\nhidden = 4096\nheads = 32\nkv_heads = 8\n"
                         "ffn = 14336\n[data]\nseq_len = 4096\n[batch]\nglobal = 8\nmicro = 1\n[layout]\n"
                         "dp = 8\nzero = 3\nrecompute = \"full\"\noffload = \"state\"\n",
                         "keep = 1000000\n"));
  const Ran bound = trireme(tmp.path(), {"plan", run});
  EXPECT_EQ(bound.out.rfind("llama3-8B of 8.03 B parameters on 8 ranks", 0), 0u) << bound.out;
  EXPECT_NE(bound.out.find("expected is not known: layout.offload = \"state\": "), std::string::npos)
      << bound.out;
  EXPECT_NE(bound.out.find("\n  speed       at most "), std::string::npos) << bound.out;
  EXPECT_EQ(bound.err.find("train.keep"), std::string::npos) << bound.err;
  const Ran known = trireme(tmp.path(), {"plan", run, "--set", "layout.offload_to=host"});
  EXPECT_EQ(known.out.find("at most "), std::string::npos) << known.out;
  EXPECT_NE(known.out.find(" expected, "), std::string::npos) << known.out;

  // The factor of other constants on the step is printed, whichever parts they change.
  const auto step = [&](const std::vector<std::string>& more) {
    return planned(tmp.path(),
                   and_also({"plan", run, "--set", "layout.offload=none"}, more))["best"]["step_s"]
        .get<double>();
  };
  const std::vector<std::string> site = {"--site", "selene"};
  const std::string prices =
      trireme(tmp.path(), and_also({"plan", run, "--set", "layout.offload=none"}, site)).out;
  EXPECT_NE(
      prices.find(fmt::format("; this step is x {:.3f} of the shipped constants'", step(site) / step({}))),
      std::string::npos)
      << prices;
}

// Tapes of all ranks that are too large for a host's memory (84 million pieces) are not recorded: the step is
// the search's, and what only a replay knows is null.
TEST(Planned, ALongRingIsPricedWithoutItsTapes) {
  TempFolder tmp;
  const std::string run = (tmp / "run.toml").string();
  put_file(run, on_h100s("[model]\nvocab = 32000\nlayers = 2\nhidden = 1024\nheads = 8\n[data]\n"
                         "seq_len = 1048576\n[batch]\nglobal = 16\nmicro = 1\n[layout]\ncp = 512\n"));
  const json j = planned(tmp.path(), {"plan", run})["candidates"][0];
  EXPECT_GT(j["step_s"], 0);
  EXPECT_EQ(j["closed_form"], true);
  EXPECT_TRUE(j["compute_s"].is_null() && j["exposed_comm_s"].is_null()) << j["compute_s"];
  const Ran r = trireme(tmp.path(), {"plan", run});
  EXPECT_NE(r.out.find("; not replayed op by op, for that takes "), std::string::npos) << r.out;
}

// Full recompute takes a third more FLOPs of hardware, and the forecast of a named model counts it.
TEST(Planned, RecomputeIsInTheForecastOfANamedModel) {
  TempFolder tmp;
  const std::vector<std::string> args = {
      "estimate", "--model", "llama3-8B", "--cluster", "H100",           "--gpus", "8",
      "--seq",    "4096",    "--tp",      "8",         "--microbatches", "8"};
  const auto mfu = [&](const std::vector<std::string>& more) {
    return planned(tmp.path(), and_also(args, more))["time"]["mfu"]["value"].get<double>();
  };
  EXPECT_NEAR(mfu({"--recompute"}) / mfu({}), 0.75, 0.05);
}

// A rejected division is shown with the batch that rejects it, where a search looks at two.
TEST(Planned, ARejectedDivisionNamesItsBatch) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", "H100", "--gpus", "56",
                                     "--as", "nemo", "--seq", "4096", "--global-batch", "64", "--all"});
  EXPECT_NE(r.out.find("dp does not divide the global batch: "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("such as dp 56 with 64 sequences\n"), std::string::npos) << r.out;
}

// Money without a time, storage without room and headroom of booked bytes: the answer reports each.
TEST(Planned, WhatAnAnswerLacksIsSaid) {
  TempFolder tmp;
  const Ran cost = trireme(tmp.path(), {"estimate", "--model", "llama3-8B", "--cluster", "H100", "--gpus",
                                        "8", "--seq", "8192", "--budget", "1e6"});
  EXPECT_NE((cost.out + cost.err).find("note: --budget: cost needs how fast it is: --mfu"), std::string::npos)
      << cost.err;
  std::string text = read_text(source_dir() / "configs/cluster/h100-sxm-8.toml");
  put_file(tmp / "small.toml", "storage.bandwidth = 2e9\nstorage.bytes = 50e9\n" + text);
  const std::vector<std::string> asked = {
      "search", "--model", "llama3-8B", "--cluster", (tmp / "small.toml").string(),
      "--gpus", "8",       "--seq",     "4096",      "--global-batch",
      "56",     "--why"};
  const Ran r = trireme(tmp.path(), asked);
  EXPECT_NE(r.out.find("; storage of 50.0 GB CANNOT HOLD ONE checkpoint"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("where the best layout's step goes"), std::string::npos);
  EXPECT_EQ(r.out.find("Pareto front of time, cost and memory left"), std::string::npos) << r.out;
  const json best = planned(tmp.path(), asked)["best"];
  EXPECT_EQ(best["headroom"], 85899345920.0 - best["memory"]["booked"].get<double>());
}

// A batch that divides is compared with the user's.
TEST(Planned, ADividingBatchSaysAgainstWhat) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", "H100", "--gpus", "56",
                                     "--seq", "4096", "--global-batch", "64", "--confirm", "0"});
  EXPECT_NE(r.out.find(" % time per token against the best of 64 ("), std::string::npos) << r.out;
}

// Estimate's sum of gradients is plan's, and it depends on the order of the axes.
TEST(Planned, GradientsTakeAsLongAsInPlan) {
  TempFolder tmp;
  put_file(tmp / "dp.toml",
           "[model]\narch = \"llama\"\nvocab = 32000\nlayers = 8\nhidden = 2048\nheads = 16\n"
           "[data]\nseq_len = 2048\n[batch]\nglobal = 16\nmicro = 1\n[layout]\ndp = 16\n"
           "[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\"\n"
           "[cluster]\nfile = \"H100\"\n");
  const std::string file = (tmp / "dp.toml").string();
  const auto seconds = [&](const std::vector<std::string>& sets) {
    const json sent = planned(tmp.path(), and_also({"estimate", file}, sets))["time"]["gradients_sent"];
    return sent["seconds"].get<double>();
  };
  const json plan = planned(tmp.path(), {"plan", file})["best"];
  EXPECT_NEAR(seconds({}) / plan["comm_s"].get<double>(), 1, 0.02);
  const std::vector<std::string> two = {"--set", "layout.dp=4", "--set", "layout.tp=4"};
  // Two replicas in each of two nodes send half of the bytes each to the other; four in a node make a ring.
  EXPECT_NEAR(seconds(two) / seconds(and_also(two, {"--set", "layout.order=pp tp cp dp"})),
              (0.5 / 50) / (1.5 / 360), 0.02);
}

// Two chunks are what a V takes, and nearer to what was asked for than another schedule.
TEST(Planned, AVOfOneChunkIsOfferedTwo) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const Ran r =
      trireme(tmp.path(), {"plan", file, "--set", "layout.pp=2", "--set", "layout.schedule=dualpipe-v",
                           "--set", "model.layers=4", "--set", "batch.global=8", "--set", "batch.micro=1"});
  EXPECT_EQ(r.code, 2) << r.out;
  EXPECT_NE(r.err.find(" that works: layout.chunks = 2\n"), std::string::npos) << r.err;
}

// A device is taken by its own name, an alias of it or a cluster file's name; what is near it is named, not
// taken.
TEST(Planned, AMistypedDeviceIsNoDevice) {
  TempFolder tmp;
  const auto walls = [&](const char* name) {
    return trireme(tmp.path(), {"estimate", "--parameters", "7e9", "--cluster", name, "--gpus", "8"});
  };
  for (const auto& [typed, meant] :
       {std::pair{"H100x", "H100"}, {"H1000", "H100"}, {"B2000", "B200"}, {"h100-p6", "h100-p5"}}) {
    const Ran r = walls(typed);
    EXPECT_NE(r.code, 0) << typed;
    EXPECT_NE(r.err.find(fmt::format("--cluster: no \"{}\", did you mean {}?", typed, meant)),
              std::string::npos)
        << r.err;
  }
  EXPECT_NE(walls("H100-NVL").code, 0);
  for (const char* right : {"H100", "h100", "A100-80GB", "A100-SXM-80GB", "h100-p5", "H100-PCIE", "MI300X"})
    EXPECT_EQ(walls(right).code, 0) << right;
  const auto state = [&](const std::string& cluster) {
    return planned(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", cluster, "--gpus", "16",
                                "--seq", "4096", "--global-batch", "16", "--confirm", "0"})["best"]["step_s"];
  };
  EXPECT_EQ(state("h100-p5"), state((source_dir() / "configs/cluster/h100-p5.toml").string()));
  EXPECT_NE(state("h100-p5"), state("H100"));
}

// A cluster file of one node is priced for eight with a link that it does not have: search and simulate say
// which.
TEST(Planned, AnAssumedLinkIsSaid) {
  TempFolder tmp;
  const std::string one = (source_dir() / "configs/cluster/h100-sxm-8.toml").string();
  const std::string said =
      "has 1 node of 8 devices = 8, and the run takes 16 ranks = 2 nodes: priced as if it had as many, by a "
      "link "
      "between nodes of 50 GB/s a device, H100's in data/score_catalog.json";
  const auto search = [&](const std::string& cluster, const char* gpus) {
    const Ran r = trireme(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", cluster, "--gpus", gpus,
                                       "--seq", "4096", "--global-batch", "16", "--confirm", "0"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  EXPECT_NE(search(one, "16").find(said), std::string::npos);
  EXPECT_EQ(search(one, "8").find("priced"), std::string::npos);
  EXPECT_EQ(search("h100-p5", "16").find("priced as if"), std::string::npos);
  const Ran r = trireme(tmp.path(), {"simulate", "--model", "llama3-8B", "--cluster", one, "--layout",
                                     "dp=16 zero=1 micro=1 global=16 seq=4096"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find(said), std::string::npos) << r.out;
}

TEST(Planned, ASearchedLayoutIsARunFile) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 3);
  fs::create_directories(tmp / "some clusters");
  const fs::path one = tmp / "some clusters" / "h 100.toml";
  fs::copy_file(source_dir() / "configs/cluster/h100-sxm-8.toml", one);
  const std::vector<std::string> search = {"search", file, "--cluster", one.string(),
                                           "--gpus", "4",  "--set",     "precision.compute=bf16"};
  const json found = planned(tmp.path(), search);
  const std::string toml = found["best"]["toml"];
  EXPECT_EQ(found["best"]["layout"]["sequence"], found["best"]["layout"]["tp"] > 1);
  const Ran all = trireme(tmp.path(), and_also(search, {"--all"}));
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_TRUE(all.out.ends_with("the best, as a run file has it:\n" + toml)) << all.out;
  const Ran r = trireme(tmp.path(), and_also(search, {"--out", (tmp / "out.toml").string()}));
  EXPECT_EQ(read_text(tmp / "out.toml"), toml);
  EXPECT_LE(lines_of(r.out).size(), 24u) << r.out;
  const Ran tensors = trireme(tmp.path(), and_also(search, {"--set", "layout.recompute=selective", "--set",
                                                            "layout.recompute_tensors=[\"a\"]"}));
  EXPECT_NE(tensors.err.find("note: layout.recompute_tensors: searched layouts"), std::string::npos)
      << tensors.err;
  put_file(tmp / "best.toml", toml);
  const RunSpec run = load_run(tmp / "best.toml");
  EXPECT_EQ(run.train.device, "cuda");
  EXPECT_EQ(run.data.train, load_run(file).data.train);
  fs::create_directories(tmp / "elsewhere");
  expect_as_searched(found,
                     planned(tmp / "elsewhere", {"plan", (tmp / "best.toml").string()})["candidates"][0]);
}

// The run file of a search for three rank threads is planned and trained, with its cluster file.
TEST(Planned, ASearchedLayoutOfACpuTrains) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 3);
  const std::string out = (tmp / "best.toml").string();
  const std::vector<std::string> search = {"search", file, "--gpus", "3", "--require", "dp=3", "--out", out};
  const json found = planned(tmp.path(), search);
  EXPECT_EQ(read_text(out), found["best"]["toml"]);
  const RunSpec run = load_run(out);
  EXPECT_EQ(run.layout.dp, 3);
  EXPECT_EQ(run.cluster.file, load_run(file).cluster.file);
  const json one = planned(tmp.path(), {"plan", out})["candidates"][0];
  EXPECT_DOUBLE_EQ(one["step_s"].get<double>(), found["best"]["step_s"].get<double>());
  EXPECT_EQ(one["device_bytes"], found["best"]["device_bytes"]);
  const Ran trained = trireme(tmp.path(), {"train", out});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(fs::exists(fs::path(run.train.dir) / "checkpoints")) << trained.out;
  const Ran r = trireme(tmp.path(), search);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_LE(lines_of(r.out).size(), 24u) << r.out;
  const Ran wrong = trireme(tmp.path(), and_also(search, {"--price", "2"}));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("--price: a CPU's layouts are booked"), std::string::npos) << wrong.err;
}

// Prices by region, energy, checkpoints and service of the best layout, as the cluster file states them.
TEST(Planned, ASearchSaysWhatDecides) {
  TempFolder tmp;
  std::string text = read_text(source_dir() / "configs/cluster/h100-sxm-8.toml");
  put_file(tmp / "site.toml", text + "power.pue = 1.5\nstorage.bandwidth = 2e9\nstorage.bytes = 1e12\n");
  const auto found = [&](const std::vector<std::string>& more) {
    return and_also({"search", "--model", "llama3-8B", "--gpus", "8", "--global-batch", "8", "--seq", "4096",
                     "--confirm", "0"},
                    more);
  };
  const json best = planned(tmp.path(), found({"--cluster", (tmp / "site.toml").string()}))["best"];
  EXPECT_DOUBLE_EQ(best["watts"], 1.5 * (8 * 700 + 4600));
  const double bytes = best["checkpoint"]["bytes"];
  EXPECT_NEAR(bytes, 12 * 8.03e9, 0.01e9 * 12);
  EXPECT_DOUBLE_EQ(best["checkpoint"]["write_s"], bytes / 2e9);
  EXPECT_DOUBLE_EQ(best["checkpoint"]["stall_s"], bytes / 8 / 64e9);
  EXPECT_EQ(best["checkpoint"]["kept"], 10);
  EXPECT_GT(best["serving"]["tokens_per_s_per_gpu"], 0);
  EXPECT_FALSE(best.contains("price_per_hour"));
  EXPECT_DOUBLE_EQ(
      planned(tmp.path(), found({"--cluster", "H100", "--region", "us-east-1"}))["best"]["price_per_hour"],
      12.29);
  put_file(tmp / "mine.toml", "[[price]]\ndevice = \"H100\"\nregion = \"home\"\nper_hour = 1.5\n");
  EXPECT_DOUBLE_EQ(planned(tmp.path(), found({"--cluster", "H100", "--prices",
                                              (tmp / "mine.toml").string()}))["best"]["price_per_hour"],
                   1.5);
  const Ran r = trireme(tmp.path(), found({"--cluster", "H100", "--region", "mars"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--region mars: data/prices.toml has no price of H100 there"), std::string::npos)
      << r.err;
}

TEST(Planned, AnAnswerNamesItsDevicesPricesAndBytes) {
  TempFolder tmp;
  const std::vector<std::string> search = {"search", "--model", "Qwen2.5-0.5B", "--cluster", "H100",
                                           "--gpus", "8",       "--seq",        "2048",      "--global-batch",
                                           "64"};
  const auto line = [&](const std::vector<std::string>& more, const std::string& begins) {
    const Ran r = trireme(tmp.path(), and_also(search, more));
    EXPECT_EQ(r.code, 0) << r.err;
    for (const std::string& l : lines_of(r.out))
      if (l.starts_with(begins)) return l;
    return r.out;
  };
  EXPECT_EQ(line({"--as", "deepspeed"}, "  prices"),
            "  prices      deepspeed has no measured constants: times are of trireme's own step");
  const std::regex alternative("  [0-9.]+ m?s \\([+-][0-9.]+ % cost\\), .* on [0-9]+ GPUs \\(.*");
  const Ran fewer = trireme(tmp.path(), and_also(search, {"--by", "cost", "--fewer", "--price", "2.5"}));
  int named = 0;
  for (const std::string& l : lines_of(fewer.out)) named += std::regex_match(l, alternative);
  EXPECT_GT(named, 0) << fewer.out;
  const json found = planned(tmp.path(), and_also(search, {"--out", (tmp / "q.toml").string()}));
  const double booked = found["best"]["memory"]["booked"];
  EXPECT_NE(line({}, "  memory").find(bytes_text(booked)), std::string::npos);
  // Biases of q, k and v: 24 layers of 896 + 2 x 128.
  const ModelSpec qwen = load_run(tmp / "q.toml").model;
  EXPECT_EQ(qwen.arch, "qwen2");
  EXPECT_EQ(parameters(qwen), 494032768);
}

TEST(Planned, ASearchedLayoutOfANamedModelIsARunFile) {
  TempFolder tmp;
  const std::string file = (source_dir() / "configs/cluster/h100-p5.toml").string();
  for (const auto& [model, cluster] :
       {std::pair{"llama3-8B", "H100"}, std::pair{"mixtral-8x7B", file.c_str()}}) {
    const json found = planned(tmp.path(), {"search", "--model", model, "--cluster", cluster, "--gpus", "16",
                                            "--global-batch", "16", "--seq", "4096"});
    put_file(tmp / "best.toml", found["best"]["toml"].get<std::string>());
    const RunSpec run = load_run(tmp / "best.toml");
    EXPECT_EQ(run.train.sum_order, "auto");  // NCCL's own, which the search priced
    EXPECT_EQ(run.cluster.file, cluster);
    EXPECT_EQ(run.data.seq_len, 4096);
    EXPECT_EQ(run.world(), 16);
    EXPECT_EQ(run.model.hidden, 4096);
    EXPECT_EQ(run.model.kv_heads, 8);
    EXPECT_EQ(run.model.ffn, 14336);
    EXPECT_EQ(run.model.moe_ffn, cluster == file ? 14336 : 0);
    EXPECT_TRUE(run.train.checkpoint_every.automatic);  // the cadence that goodput has
    const json one = planned(tmp.path(), {"plan", (tmp / "best.toml").string()})["candidates"][0];
    expect_as_searched(found, one);
    const json& saves = found["best"]["checkpoint"];
    EXPECT_EQ(one["checkpoint"]["steps"], saves["steps"]);
    EXPECT_FALSE(saves.contains("stated_steps"));
    EXPECT_FALSE(one["checkpoint"].contains("stated_steps"));
  }
  const std::vector<std::string> best = {"simulate", (tmp / "best.toml").string(), "--fail", "1@7200",
                                         "--set",    "train.steps=100000000"};
  const json broken = planned(tmp.path(), best);
  EXPECT_EQ(broken["failure"]["checkpoint_every"],
            planned(tmp.path(), {"plan", best[1]})["candidates"][0]["checkpoint"]["steps"]);
  EXPECT_GT(broken["device_memory_bytes"], broken["peak_bytes"]);
  const json stated =
      planned(tmp.path(), {"plan", best[1], "--set", "train.checkpoint_every=7"})["candidates"][0];
  EXPECT_EQ(stated["checkpoint"]["stated_steps"], 7);
  EXPECT_GT(stated["checkpoint"]["stated_lost_share"], stated["checkpoint"]["lost_share"]);
  // A device by name has the link to its host, in search as in plan.
  const json waits = planned(tmp.path(), {"search", "--model", "llama3-70B", "--cluster", "H100", "--gpus",
                                          "4", "--global-batch", "4", "--seq", "4096"});
  put_file(tmp / "waits.toml", waits["best"]["toml"].get<std::string>());
  EXPECT_EQ(load_run(tmp / "waits.toml").layout.offload, "state");
  const json plan = planned(tmp.path(), {"plan", (tmp / "waits.toml").string()})["candidates"][0];
  expect_as_searched(waits, plan);
  const json walls = planned(tmp.path(), {"estimate", (tmp / "waits.toml").string()});
  EXPECT_EQ(walls["memory"]["checkpoint"]["value"], plan["checkpoint"]["bytes"]);
  EXPECT_DOUBLE_EQ(walls["time"]["save_every_s"]["value"].get<double>(),
                   plan["checkpoint"]["interval_s"].get<double>());
}

// A peak without its exponent.
TEST(Planned, AClusterThatIsTooSlowIsAnError) {
  TempFolder tmp;
  put_file(tmp / "slow.toml",
           "devices_per_node = 8\npeak.bf16 = 989\nmemory_bytes = 85899345920\nmemory_bandwidth = 3.35e12\n"
           "[intra_node]\nbandwidth = 450e9\nlatency = 3e-6\n");
  const Ran r =
      trireme(tmp.path(), {"search", "--model", "llama3-8B", "--cluster", (tmp / "slow.toml").string(),
                           "--gpus", "8", "--seq", "4096", "--global-batch", "64"});
  EXPECT_EQ(r.code, 2) << r.out;
  EXPECT_NE(r.err.find("peaks and bandwidths cannot be right"), std::string::npos) << r.err;
}

// Other software's layouts are ranked in closed form; no alternative is faster as replayed.
TEST(Planned, NoAlternativeOfOtherSoftwareIsFaster) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), {"search", "--model", "qwen2.5-72B", "--cluster", "H100", "--gpus", "128",
                                     "--global-batch", "512", "--seq", "4096", "--as", "torchtitan"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("(+"), std::string::npos) << r.out;
  EXPECT_FALSE(std::regex_search(r.out, std::regex("\\(-[0-9]"))) << r.out;
}

// With launch flags, lines that matter least to the choice give way.
TEST(Planned, AnAnswerWithLaunchFlagsFitsAScreen) {
  TempFolder tmp;
  const std::string file = (source_dir() / "configs/cluster/h100-sxm-8.toml").string();
  const Ran r = trireme(tmp.path(), {"search", "--model", "llama3-70B", "--cluster", file, "--gpus", "64",
                                     "--as", "megatron", "--global-batch", "64", "--seq", "4096"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_LE(lines_of(r.out).size(), 24u) << r.out;
  EXPECT_NE(r.out.find("--tensor-model-parallel-size"), std::string::npos) << r.out;
}

// An option that may be repeated takes one value each time, and what follows is the run file.
TEST(Planned, SettingsMayStandBeforeTheRunFile) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 3).string();
  const std::vector<std::string> sets = {"--set", "batch.micro=1", "--set", "layout.zero=1"};
  const json behind = planned(tmp.path(), and_also({"plan", file}, sets));
  EXPECT_EQ(planned(tmp.path(), and_also(and_also({"plan"}, sets), {file}))["candidates"][0]["memory"],
            behind["candidates"][0]["memory"]);
}

}  // namespace
}  // namespace trireme::test
