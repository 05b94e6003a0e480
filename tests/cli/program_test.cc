// `trireme train` itself: killed, interrupted, started twice, given damaged folders, and out of disk.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/progress.h"
#include "process.h"
#include "sanitized.h"
#include "spec/cluster_spec.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

constexpr int64_t kEndless = 1'000'000;  // steps of a run that is always interrupted

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> train_args(const fs::path& run_file, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"train", run_file.string()};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void expect_one_line(const Ran& r, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, code) << r.err;
  std::vector<std::string> lines = lines_of(r.err);
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("note: "); });
  EXPECT_EQ(lines.size(), 1u) << r.err;
  for (const std::string& p : parts) EXPECT_NE(r.err.find(p), std::string::npos) << p << " not in: " << r.err;
}

fs::path newest_of(const fs::path& folder) {
  return find_newest(folder / "run" / "checkpoints").newest.value().folder();
}

TEST(Train, TheProgramAndTheLibraryAgreeToTheBit) {
  TempFolder a, b;
  Ran r = trireme(a.path(), train_args(tiny_run_file(a.path(), 10)));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(train_here(tiny_run(b.path(), 10)).ending, Ending::done);
  Outcome got = outcome_of(a / "run"), want = outcome_of(b / "run");
  expect_same(got, want);
  // Again: there is nothing to do, and nothing is done.
  Files before = files_in(a / "run");
  EXPECT_EQ(trireme(a.path(), train_args(a / "run.toml")).code, 0);
  EXPECT_EQ(damage(before, files_in(a / "run")), "");
}

// layout = "auto": chosen once, written into the run folder, kept by a resume; batch.micro = "auto" likewise.
TEST(Train, AChosenLayoutIsWrittenAndKept) {
  struct Choice {
    std::vector<std::string> sets;
    int64_t ranks;
    const char* kept;
  };
  const Choice choices[] = {{{"layout=auto", "layout.dp=2"}, 2, "the layout is the one that this run"},
                            {{"layout=auto", "layout.dp=1"}, 1, "the layout is the one that this run"},
                            {{"batch.micro=auto"}, 1, "batch.micro is the one that this run"},
                            {{"batch.micro=auto", "layout.pp=2", "layout.recompute=auto"},
                             2,
                             "batch.micro is the one that this run"}};
  for (const Choice& c : choices) {
    SCOPED_TRACE(c.sets.back());
    TempFolder tmp;
    const fs::path file = tiny_run_file(tmp.path(), 4);
    std::vector<std::string> more;
    for (const std::string& s : c.sets) more.insert(more.end(), {"--set", s});
    const auto steps = [&](const char* n) {
      std::vector<std::string> args = more;
      args.insert(args.end(), {"--set", n});
      return trireme(tmp.path(), train_args(file, args));
    };
    Process first(trireme_args(train_args(file, more)), tmp.path());
    ASSERT_TRUE(first.wait_for_err("layout chosen of"));
    const Ran ran = first.wait();
    ASSERT_EQ(ran.code, 0) << ran.err;
    const fs::path plan = tmp / "run" / "plan.toml";
    const RunSpec before = load_run(plan, {}, {.read_from = false});
    EXPECT_EQ(before.world(), c.ranks);
    // As if another had been chosen: a resume keeps what the folder says.
    RunSpec other = before;
    other.batch.micro = before.batch.micro == 1 ? 2 : 1;
    save_run(other, plan);
    for (const std::string& name : names_in(tmp / "run" / "checkpoints"))
      if (step_of_folder_name(name) && *step_of_folder_name(name) == 4)
        fs::remove_all(tmp / "run" / "checkpoints" / name);
    const Ran again = steps("train.keep=2");
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_NE(again.err.find(c.kept), std::string::npos) << again.err;
    const RunSpec after = load_run(plan, {}, {.read_from = false});
    EXPECT_EQ(after.batch.micro, other.batch.micro);
    EXPECT_EQ(after.layout, other.layout);
  }
}

// What a run file says and its writer seldom means is told once, before the first step; so is a held-out
// shard that is not there.
TEST(Train, TellsWhatIsSeldomMeant) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 3);
  const Ran r = trireme(tmp.path(), train_args(file, {"--set", "optimizer.warmup=6", "--set", "layout.zero=1",
                                                      "--set", "data.valid=nowhere/valid"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const auto once = [&](const std::string& text) {
    const size_t at = r.err.find(text);
    EXPECT_NE(at, r.err.npos) << text << "\nnot in " << r.err;
    EXPECT_EQ(r.err.find(text, at + 1), r.err.npos) << r.err;
  };
  once("note: " + file.string() + ": optimizer.warmup = 6 of train.steps = 3: the learning rate ends at");
  once("note: " + file.string() + ": layout.zero = 1 shards over dp x cp, which is 1");
  once("there is no held-out shard nowhere/valid (data.valid): it is not evaluated\n");
}

// Where the output is no terminal: a line each log_every steps.
TEST(Train, LogEverySteps) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), train_args(tiny_run_file(tmp.path(), 8), {"--set", "train.log_every=3"}));
  ASSERT_EQ(r.code, 0) << r.err;
  std::string steps;
  for (size_t at = 0; (at = r.err.find("  step ", at)) != r.err.npos; at++)
    steps += r.err.substr(at + 7, r.err.find(' ', at + 7) - at - 7) + " ";
  EXPECT_EQ(steps, "1 3 6 8 ") << r.err;
}

// What cannot fit is refused in a line with what would make it fit; that does, and plan says the same.
TEST(Train, WhatCannotFitIsRefusedWithARemedyThatWorks) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  ClusterSpec c = load_cluster(tmp / "cluster.toml");
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e9}, c.disk_bandwidth = 1e9;
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", file.string(), "--json", "--set", "layout.dp=3"});
    const Ran r = trireme(tmp.path(), more);
    EXPECT_EQ(r.code, 0) << r.err;
    return nlohmann::json::parse(r.out)["candidates"][0];
  };
  const auto fits = planned({});
  EXPECT_FALSE(fits.contains("remedies"));
  const int64_t need = fits["memory"]["arena"].get<int64_t>() + fits["memory"]["snapshot"].get<int64_t>();
  c.memory_bytes = 3 * need - 1;  // three rank threads share it
  save_cluster(c, tmp / "cluster.toml");
  const auto refused = planned({});
  ASSERT_GE(refused["remedies"].size(), 2u);
  const std::string first = refused["remedies"][0]["change"];
  const Ran no = trireme(tmp.path(), train_args(file, {"--set", "layout.dp=3"}));
  expect_one_line(no, 2,
                  {fmt::format("this run needs {} on rank 0", exact_bytes(need)), "optimizer", first,
                   refused["remedies"][1]["change"]});
  EXPECT_EQ(no.err, "trireme: " + refused["why_rejected"].get<std::string>() + "\n");
  EXPECT_FALSE(fs::exists(tmp / "run"));
  for (const auto& remedy : refused["remedies"]) {
    std::vector<std::string> sets = {"--set", "layout.dp=3"};
    std::string change = remedy["change"];
    SCOPED_TRACE(change);
    for (size_t at; (at = change.find(" with ")) != change.npos; change = change.substr(at + 6))
      sets.insert(sets.end(), {"--set", change.substr(0, at)});
    sets.insert(sets.end(), {"--set", change});
    const auto after = planned({sets.begin() + 2, sets.end()});
    EXPECT_TRUE(after["fits"]);
    EXPECT_DOUBLE_EQ(after["step_s"].get<double>(), remedy["step_s"].get<double>());
    if (change != first) continue;
    const Ran yes = trireme(tmp.path(), train_args(file, sets));
    EXPECT_EQ(yes.code, 0) << yes.err;
  }
}

TEST(Train, KilledAtAnyInstantItEndsTheSame) {
  constexpr int64_t kSteps = 40;
  const int kKills = test::kSanitized ? 3 : 6;
  TempFolder whole, killed;
  double begin = now_s();
  ASSERT_EQ(trireme(whole.path(), train_args(tiny_run_file(whole.path(), kSteps))).code, 0);
  double seconds = now_s() - begin;
  tiny_run_file(killed.path(), kSteps);
  std::mt19937_64 rng(3);
  int kills = 0;
  for (int i = 0; i < kKills; i++) {
    Process p(trireme_args(train_args(killed / "run.toml")), killed.path());
    bool alive = p.runs_after(seconds * double(rng() % 1000) / 1000);
    p.send(SIGKILL);
    Ran r = p.wait();
    kills += alive && r.signal == SIGKILL;
  }
  Ran r = trireme(killed.path(), train_args(killed / "run.toml"));
  ASSERT_EQ(r.code, 0) << r.err;
  expect_same(outcome_of(killed / "run"), outcome_of(whole / "run"));
  fmt::print("a run of {:.2f} s: {} kills of {} at random instants came in time; it ended the same\n",
             seconds, kills, kKills);
}

TEST(Train, EverySignalAndADeadlineLeaveWithThreeAndLoseNothing) {
  TempFolder tmp, whole;
  fs::path file = tiny_run_file(tmp.path(), kEndless);
  int64_t step = 0;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, 0}) {
    Ran r;
    if (signal == 0) {
      // From the program's start on: a machine that is busy may have no step done by then, and then it loses
      // none.
      for (int seconds = 1; seconds <= 64; seconds *= 2) {
        r = trireme(tmp.path(), train_args(file, {"--stop-after", fmt::format("{}s", seconds)}));
        ASSERT_EQ(r.code, 3) << r.err;
        const Outcome o = outcome_of(tmp / "run");
        EXPECT_EQ(int64_t(o.metrics.size()), o.step);
        if (o.step > step) break;
        ASSERT_EQ(o.step, step);
      }
    } else {
      Process p(trireme_args(train_args(file)), tmp.path());
      ASSERT_TRUE(p.wait_for_err("loss"));  // a step is done
      p.send(signal);
      r = p.wait();
    }
    EXPECT_EQ(r.code, 3) << signal << " " << r.err;
    EXPECT_NE(r.err.find("the same command goes on from there"), std::string::npos) << r.err;
    Outcome o = outcome_of(tmp / "run");
    EXPECT_GT(o.step, step) << signal;
    EXPECT_EQ(int64_t(o.metrics.size()), o.step);
    step = o.step;
  }
  // The same number of steps in one go.
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) {
    if (m.step == step) request_interrupt();
  };
  EXPECT_EQ(train_here(tiny_run(whole.path(), kEndless), hooks).ending, Ending::interrupted);
  clear_interrupt();
  Outcome got = outcome_of(tmp / "run"), want = outcome_of(whole / "run");
  got.checkpoints = want.checkpoints;  // pauses save at steps of their own
  expect_same(got, want);
}

// One signal, three ranks: they leave together, and go on under another layout.
TEST(Train, ManyRanksLeaveTogetherAndGoOn) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), kEndless);
  Process first(trireme_args(train_args(file, {"--set", "layout.dp=3", "--set", "layout.zero=3"})),
                tmp.path());
  ASSERT_TRUE(first.wait_for_err("loss"));
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 3);
  Outcome o = outcome_of(tmp / "run");
  EXPECT_GT(o.step, 0);
  EXPECT_EQ(int64_t(o.metrics.size()), o.step);
  EXPECT_TRUE(fs::exists(newest_of(tmp.path()) / "rank-00001.safetensors"));
  Process second(trireme_args(train_args(file, {"--set", "layout.dp=2", "--set", "batch.micro=3"})),
                 tmp.path());
  ASSERT_TRUE(second.wait_for_err(fmt::format("resumed from step {}", o.step)));
  ASSERT_TRUE(second.wait_for_err("loss"));
  second.send(SIGINT);
  EXPECT_EQ(second.wait().code, 3);
  EXPECT_GT(outcome_of(tmp / "run").step, o.step);
}

// Beside other programs threads that spin take the time of those that they wait for.
TEST(Train, ItsThreadsSpinBrieflyUnlessToldOtherwise) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), kEndless);
  const auto environment = [&](std::vector<std::string> set) {
    std::vector<std::string> argv = {"/usr/bin/env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"};
    argv.insert(argv.end(), set.begin(), set.end());
    for (const std::string& word : trireme_args(train_args(file))) argv.push_back(word);
    Process p(argv, tmp.path());
    EXPECT_TRUE(p.wait_for_err("loss"));
    std::ifstream in(fmt::format("/proc/{}/environ", p.pid()));
    const std::string seen((std::istreambuf_iterator<char>(in)), {});
    p.send(SIGTERM);
    EXPECT_EQ(p.wait().code, 3);
    return seen;
  };
  EXPECT_NE(environment({}).find(std::string("GOMP_SPINCOUNT=3000\0", 20)), std::string::npos);
  EXPECT_EQ(environment({"OMP_WAIT_POLICY=active"}).find("GOMP_SPINCOUNT"), std::string::npos);
}

TEST(Train, ADeadlineThatHasPassedIsExitThreeWithoutAStep) {
  TempFolder tmp;
  Ran r = trireme(tmp.path(), train_args(tiny_run_file(tmp.path(), 10), {"--stop-after", "0s"}));
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_EQ(outcome_of(tmp / "run").step, 0);
  expect_one_line(trireme(tmp.path(), train_args(tmp / "run.toml", {"--stop-after", "soon"})), 2,
                  {"--stop-after", "soon", "55m"});
}

TEST(Train, ARefusalOfItsDataLeavesNoFolder) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  const Ran refused =
      trireme(tmp.path(), train_args(file, {"--set", "data.train=" + (tmp / "none").string()}));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_FALSE(fs::exists(tmp / "run")) << refused.err;
}

TEST(Train, TwoTrainersInOneFolderAreOneTooMany) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), kEndless);
  Process first(trireme_args(train_args(file)), tmp.path());
  ASSERT_TRUE(first.wait_for_err("loss"));
  expect_one_line(trireme(tmp.path(), train_args(file)), 2, {(tmp / "run").string(), "in use", "train.dir"});
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 3);
  EXPECT_GT(outcome_of(tmp / "run").step, 0);
}

TEST(Train, ADamagedCheckpointIsPassedOver) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 10);
  ASSERT_EQ(trireme(tmp.path(), train_args(file)).code, 0);
  const Outcome whole = outcome_of(tmp / "run");
  for (auto [name, at] :
       {std::pair("rank-00000.safetensors", size_t(60000)), std::pair("rank-00000.safetensors", size_t(9)),
        std::pair("manifest.json", size_t(40))}) {
    fs::path damaged = newest_of(tmp.path()) / name;
    flip_byte(damaged, at);
    Ran r = trireme(tmp.path(), train_args(file));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("passed over a damaged checkpoint"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(damaged.string()), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("resumed from step 9"), std::string::npos) << r.err;
    expect_same(outcome_of(tmp / "run"), whole);
  }
}

TEST(Train, AllCheckpointsDamagedIsTheUsersDecision) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 10);
  ASSERT_EQ(trireme(tmp.path(), train_args(file)).code, 0);
  for (const char* step : {"step-00000009", "step-00000010"})
    flip_byte(tmp / "run" / "checkpoints" / step / "rank-00000.safetensors", 50000);
  Files before = files_in(tmp.path());
  Ran r = trireme(tmp.path(), train_args(file, {"--json"}));
  expect_one_line(r, 2, {"no checkpoint", "step-00000010", "damaged", "remove them"});
  expect_one_line(trireme(tmp.path(), {"eval", file.string()}), 2, {"no checkpoint", "step-00000010"});
  EXPECT_EQ(damage(before, files_in(tmp.path())), "");
}

TEST(Train, ACheckpointOfAnotherRunIsRefusedByItsKeys) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 4);
  ASSERT_EQ(trireme(tmp.path(), train_args(file)).code, 0);
  Files before = files_in(tmp.path());
  Ran r = trireme(tmp.path(),
                  train_args(file, {"--set", "optimizer.lr=0.002", "--set", "train.seed=8", "--json"}));
  expect_one_line(r, 2, {"another run", "optimizer.lr: 0.01 -> 0.002", "train.seed: 7 -> 8", "train.dir"});
  // Its weights would fit this model, and mean something else.
  r = trireme(tmp.path(), {"eval", file.string(), "--set", "model.rope_theta=500.0"});
  expect_one_line(r, 2, {"another model", "model.rope_theta: 10000.0 -> 500.0", "plan.toml is a copy"});
  EXPECT_EQ(damage(before, files_in(tmp.path())), "");
  // What does not change the numbers may change.
  r = trireme(tmp.path(), train_args(file, {"--set", "train.keep=5", "--set", "train.eval_every=3"}));
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(Train, AFullDiskLeavesThePreviousCheckpointWhole) {
  TempFolder tmp, whole;
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  fs::path disk = tmp / "run";
  make_folders(disk);
  // A checkpoint has about 0.28 MB: the second one does not fit.
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=500k") != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs: " << std::strerror(errno);
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk};
  fs::path file = tiny_run_file(tmp.path(), 10);
  Ran r = trireme(tmp.path(), train_args(file, {"--json"}));
  Outcome o = outcome_of(disk);
  expect_one_line(r, 4,
                  {disk.string(), "No space left on device", "free some space",
                   fmt::format("the checkpoint of step {} stays", o.step)});
  EXPECT_EQ(o.step, 3);
  EXPECT_TRUE(o.parts.empty()) << o.parts.front();
  // With more room the same command ends as if the disk had never been full.
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=8m"), 0) << std::strerror(errno);
  EXPECT_EQ(trireme(tmp.path(), train_args(file)).code, 0);
  train_here(tiny_run(whole.path(), 10));
  expect_same(outcome_of(disk), outcome_of(whole / "run"));
}

}  // namespace
}  // namespace trireme::test
