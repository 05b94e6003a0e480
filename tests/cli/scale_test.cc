// trireme scale: tables in, laws out; a ladder planned, trained, resumed and fitted.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "process.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

// L = 1.8 + 480 / N^0.35 + 2000 / D^0.365 at five budgets and seven sizes.
std::string table() {
  std::string s = "N,D,loss\n";
  for (int c = 0; c < 5; c++)
    for (int i = 0; i < 7; i++) {
      const double flops = 1e16 * std::pow(5, c);
      const double n = 4e5 * std::pow(2, i + c);
      const double d = flops / (6 * n);
      s += fmt::format("{},{},{}\n", n, d, 1.8 + 480 / std::pow(n, 0.35) + 2000 / std::pow(d, 0.365));
    }
  return s;
}

TEST(Scale, FitsATableAndItsLawHasAnOptimum) {
  TempFolder tmp;
  put_file(tmp.path() / "runs.csv", table());
  const Ran fit = trireme(
      tmp.path(), {"scale", "fit", (tmp.path() / "runs.csv").string(), "--forecast", "1e21", "--bootstrap",
                   "20", "--out", (tmp.path() / "law.json").string(), "--pictures",
                   (tmp.path() / "p").string(), "--page", (tmp.path() / "page.html").string(), "--json"});
  ASSERT_EQ(fit.code, 0) << fit.err;
  const std::string page = read_text(tmp.path() / "page.html");
  EXPECT_EQ(page.find("http://") == std::string::npos ? 0 : page.find("www.w3.org"),
            page.find("http://") + 7);
  for (const char* part : {"<svg", "approach 2 (IsoFLOP parabolas)", "</html>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  const auto j = nlohmann::json::parse(fit.out);
  EXPECT_NEAR(j["law"]["alpha"].get<double>(), 0.35, 0.007);
  EXPECT_NEAR(j["law"]["E"].get<double>(), 1.8, 0.036);
  EXPECT_EQ(j["converged"], true);
  for (const char* name : {"isoflop.svg", "envelope.svg", "forecast.svg"})
    EXPECT_NE(read_text(tmp.path() / "p" / name).find("</svg>"), std::string::npos) << name;
  const Ran best = trireme(tmp.path(), {"scale", "optimum", "--law", (tmp.path() / "law.json").string(),
                                        "--flops", "1e21", "--json"});
  ASSERT_EQ(best.code, 0) << best.err;
  const auto o = nlohmann::json::parse(best.out);
  EXPECT_NEAR(o["chinchilla"]["loss"].get<double>(), j["forecasts"][0]["loss"].get<double>(), 1e-9);
  EXPECT_EQ(o["chinchilla"]["loss_interval"].size(), 2u);
}

TEST(Scale, RefusesDamagedInput) {
  TempFolder tmp;
  const auto refused = [&](std::vector<std::string> args, const std::string& part) {
    args.insert(args.begin(), "scale");
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << part;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  };
  const std::string csv = (tmp.path() / "t.csv").string();
  put_file(csv, "N,D,loss\n1e6,1e7,x\n");
  refused({"fit", csv}, "row 2: loss = x: expected a number");
  put_file(csv, "N,D,loss\n1e6,1e7,3\n");
  refused({"fit", csv}, "expected at least 6");
  refused({"fit"}, "scale fit: TABLE is required");
  refused({}, "scale: expected one of plan, run, fit, optimum");
  refused({"fit", csv, "--bootstra", "1"}, "did you mean --bootstrap?");
  refused({"optimum", "--flops", "much"}, "--flops = much: expected a number above 0");
  refused({"optimum", "--flops", "1e21", "--inference", "1e9"}, "has no samples");
  put_file(csv, R"({"law": {"E": 1.8, "A": -3}})");
  refused({"optimum", "--flops", "1e21", "--law", csv}, "law.A = -3: expected a number from");
  refused({"run", tmp.path().string()}, "ladder.json");
  put_file(tmp.path() / "ladder.json", R"({"items": [{"name": "../x"}]})");
  refused({"run", tmp.path().string()}, "entry 1: name = \"../x\": expected a plain file name");
}

// A stable run and its branch; then the same ladder again, and with a run that fails.
TEST(Scale, TrainsALadderOnce) {
  TempFolder tmp;
  const fs::path base = tiny_run_file(tmp.path(), 4);
  const std::string text = read_text(base);
  const fs::path ladder = tmp.path() / "ladder";
  fs::create_directories(ladder);
  const auto item = [&](const std::string& name, const std::string& after, int64_t steps, bool point) {
    return nlohmann::json{{"name", name},   {"after", after}, {"dir", (ladder / "runs" / name).string()},
                          {"point", point}, {"size", 0},      {"steps", steps},
                          {"N", 1000},      {"D", 100},       {"C", 6e5}};
  };
  const auto write = [&](const std::string& name, int64_t steps, const std::string& branch) {
    std::string sets = text;
    const auto set = [&](const std::string& key, const std::string& value) {
      const size_t at = sets.find("\n" + key + " = ");
      if (at != std::string::npos) sets.erase(at, sets.find('\n', at + 1) - at);
      const size_t train = sets.find("[train]\n");
      sets.insert(train + 8, key + " = " + value + "\n");
    };
    set("dir", fmt::format("\"{}\"", (ladder / "runs" / name).string()));
    set("steps", std::to_string(steps));
    set("eval_every", "0");
    if (!branch.empty()) set("branch", fmt::format("\"{}\"", branch));
    put_file(ladder / (name + ".toml"), sets);
  };
  write("s1-stable-1", 3, "");
  write("s1-run-1", 4, (ladder / "runs/s1-stable-1").string() + "@3");
  put_file(
      ladder / "ladder.json",
      nlohmann::json{{"items", {item("s1-stable-1", "", 3, false), item("s1-run-1", "s1-stable-1", 4, true)}}}
          .dump());
  const Ran first = trireme(tmp.path(), {"scale", "run", ladder.string()});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("2 parts done, 0 of them before"), std::string::npos) << first.out;
  const auto written = fs::last_write_time(ladder / "runs/s1-run-1/metrics.jsonl");
  const Ran second = trireme(tmp.path(), {"scale", "run", ladder.string()});
  EXPECT_NE(second.out.find("2 parts done, 2 of them before"), std::string::npos) << second.out;
  EXPECT_EQ(fs::last_write_time(ladder / "runs/s1-run-1/metrics.jsonl"), written);
  const Ran fit = trireme(tmp.path(), {"scale", "fit", ladder.string()});
  EXPECT_EQ(fit.code, 2);  // the one point is found, and is too few
  EXPECT_NE(fit.err.find("there are 1 losses"), std::string::npos) << fit.err;
  EXPECT_EQ(trireme(tmp.path(), {"report", ladder.string()}).err, fit.err);
  const Ran refused = trireme(tmp.path(), {"report", ladder.string(), "--try"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("is a ladder: --markdown, --try"), std::string::npos) << refused.err;

  put_file(ladder / "s2-stable-1.toml", "[model]\nlayers = 0\n");
  put_file(ladder / "ladder.json",
           nlohmann::json{{"items",
                           {item("s1-stable-1", "", 3, false), item("s2-stable-1", "", 3, false),
                            item("s2-run-1", "s2-stable-1", 4, true)}}}
               .dump());
  const Ran failed = trireme(tmp.path(), {"scale", "run", ladder.string(), "--parallel", "2"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_NE(failed.err.find("2 of 3 parts did not finish; the first: s2-stable-1: exit code 2"),
            std::string::npos)
      << failed.err;
}

TEST(Scale, ASignalReachesTheRunsOfALadder) {
  TempFolder tmp;
  const fs::path run = tmp.path() / "run";  // train.dir
  const fs::path base = tiny_run_file(tmp.path(), 1'000'000);
  fs::create_directories(tmp.path() / "ladder");
  fs::copy_file(base, tmp.path() / "ladder/a.toml");
  const nlohmann::json item = {{"name", "a"},      {"after", ""}, {"dir", run.string()},
                               {"point", true},    {"size", 0},   {"N", 1000},
                               {"steps", 1000000}, {"D", 100},    {"C", 6e5}};
  put_file(tmp.path() / "ladder/ladder.json", nlohmann::json{{"items", {item}}}.dump());
  Process p(trireme_args({"scale", "run", (tmp.path() / "ladder").string()}), tmp.path());
  for (int i = 0; i < 3000 && !fs::exists(run / "metrics.jsonl"); i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  p.send(SIGINT);
  const Ran r = p.wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("interrupted with 0 of 1 parts finished; the same command resumes"), std::string::npos)
      << r.err;
  EXPECT_FALSE(fs::is_empty(run / "checkpoints"));
}

TEST(Scale, PlansALadder) {
  TempFolder tmp;
  const fs::path base = tiny_run_file(tmp.path(), 4);
  const std::string out = (tmp.path() / "ladder").string();
  const std::vector<std::string> words = {"scale",         "plan",    base.string(), "--flops", "1e15",
                                          "--most-layers", "8",       "--out",       out,       "--cluster",
                                          "H100",          "--rates", "0.5,1,2"};
  const Ran r = trireme(tmp.path(), words);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("device-hours on 8 x H100"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" runs with other learning rates or batches"), std::string::npos) << r.out;
  const auto j = nlohmann::json::parse(read_text(fs::path(out) / "ladder.json"));
  EXPECT_GE(j["items"].size(), 12u);
  for (const auto& i : j["items"])
    EXPECT_TRUE(fs::exists(fs::path(out) / (i["name"].get<std::string>() + ".toml")));
  const Ran checked = trireme(tmp.path(), {"plan", out + "/s1-run-1-lr0.5.toml"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const Ran slurm = trireme(tmp.path(), {"scale", "run", out, "--slurm", (tmp.path() / "l.sbatch").string()});
  EXPECT_EQ(slurm.code, 0) << slurm.err;
  EXPECT_NE(read_text(tmp.path() / "l.sbatch").find("0) runs='s1-stable-1 s1-run-1"), std::string::npos);
  std::vector<std::string> other = words;
  other[4] = "2e13";
  EXPECT_EQ(trireme(tmp.path(), other).code, 2);  // another ladder in the same folder
}

}  // namespace
}  // namespace trireme::test
