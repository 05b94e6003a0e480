// A run that is killed, or hangs, with somebody who looks after it: the real program, as a parent and its
// child.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "process.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

// A run of a second and more, on three ranks, saved every 5 steps.
fs::path run_file(const fs::path& folder, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  r.model.hidden = 96, r.model.layers = 3, r.model.ffn = 256;
  r.model.finish(r.data.seq_len);
  r.batch = {.global = 24, .micro = 4};
  r.layout.dp = 3, r.layout.zero = 2;
  r.train.checkpoint_every.count = 5, r.train.eval_every = 0, r.train.tensorboard = false;
  save_run(r, folder / "run.toml");
  return folder / "run.toml";
}

Process supervised(const fs::path& folder, int64_t steps, std::vector<std::string> more) {
  std::vector<std::string> args = {"train", run_file(folder, steps).string()};
  args.insert(args.end(), more.begin(), more.end());
  args.insert(args.end(), {"--backoff", "0s"});
  return Process(trireme_args(args), folder);
}

size_t steps_done(const fs::path& folder) {
  const fs::path metrics = folder / "run" / "metrics.jsonl";
  return fs::exists(metrics) ? lines_of(read_text(metrics)).size() : 0;
}

// The process that this one forked; 0: none.
pid_t child_of(pid_t parent) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");
    std::string stat;
    std::getline(in, stat);
    const size_t end = stat.rfind(')');
    if (end == std::string::npos) continue;
    char state = 0;
    long of = 0;
    if (std::sscanf(stat.c_str() + end + 1, " %c %ld", &state, &of) == 2 && of == long(parent) &&
        state != 'Z')
      return pid_t(std::atol(name.c_str()));
  }
  return 0;
}

// SIGKILL to the supervisor's child, once the run has so many steps. False: the run was over before.
bool kill_child_at(Process& p, const fs::path& folder, size_t steps) {
  while (steps_done(folder) < steps)
    if (!p.runs_after(0.002)) return false;
  const pid_t child = child_of(p.pid());
  if (child <= 1 || p.pid() <= 1) return false;
  return ::kill(child, SIGKILL) == 0;
}

TEST(Supervise, KilledInTheMidstOfStepsItEndsTheSame) {
  constexpr int64_t kSteps = 40;
  TempFolder whole;
  ASSERT_EQ(trireme(whole.path(), {"train", run_file(whole.path(), kSteps).string()}).code, 0);
  const Outcome want = outcome_of(whole / "run");
  ASSERT_EQ(want.step, kSteps);
  TempFolder tmp;
  Process p = supervised(tmp.path(), kSteps, {"--supervise", "3"});
  for (size_t steps : {7, 18}) ASSERT_TRUE(kill_child_at(p, tmp.path(), steps)) << steps;
  const Ran r = p.wait();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("supervise: relaunch 1 of 3: it was killed by signal 9 (Killed) after step "),
            std::string::npos)
      << r.err;
  EXPECT_NE(r.err.find("supervise: relaunch 2 of 3: "), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("relaunch 3"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("resumed from step "), std::string::npos) << r.err;
  expect_same(outcome_of(tmp / "run"), want);
}

TEST(Supervise, ALimitIsALimit) {
  TempFolder tmp;
  Process p = supervised(tmp.path(), 400, {"--supervise=1"});
  for (size_t steps : {6, 12}) ASSERT_TRUE(kill_child_at(p, tmp.path(), steps)) << steps;
  const Ran r = p.wait();
  EXPECT_EQ(r.code, 4);
  EXPECT_NE(r.err.find("and is not launched again: that was relaunch 1 of 1"), std::string::npos) << r.err;
}

// A signal goes to the child, which saves and leaves; the parent says what it said.
TEST(Supervise, SignalsSaveAndLeave) {
  for (bool launcher : {false, true}) {
    TempFolder tmp;
    std::vector<std::string> more = {"--supervise", "3"};
    if (launcher) more.insert(more.end(), {"--launcher", "env HERE=1"});
    Process p = supervised(tmp.path(), 400, more);
    while (steps_done(tmp.path()) < 3) ASSERT_TRUE(p.runs_after(0.002));
    p.send(launcher ? SIGHUP : SIGTERM);
    const Ran r = p.wait();
    EXPECT_EQ(r.code, 3) << r.err;
    EXPECT_NE(r.err.find("interrupted at step "), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("relaunch"), std::string::npos) << r.err;
    EXPECT_EQ(size_t(outcome_of(tmp / "run").step), steps_done(tmp.path()));
  }
}

TEST(Supervise, ADeadlineIsNoFailure) {
  TempFolder tmp;
  const Ran r = supervised(tmp.path(), 400, {"--stop-after=0s", "--supervise", "3"}).wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_EQ(r.err.find("supervise:"), std::string::npos) << r.err;
}

TEST(Supervise, WhatIsWrongWithTheRequestIsToldOnce) {
  TempFolder tmp;
  const std::string file = run_file(tmp.path(), 5).string();
  struct Case {
    std::vector<std::string> more;
    const char* told;
  };
  for (const Case& c : {Case{{"--launcher", "mpirun"}, "--launcher goes with --supervise N"},
                        Case{{"--supervise", "3", "--set", "train.steps=-1"}, "train.steps"},
                        Case{{"--supervise", "3", "--launcher", "/no/such/launcher -n 2"},
                             "/no/such/launcher could not be started"},
                        Case{{"--supervise", "3", "--set", "data.train=/no/such/shard"}, "/no/such/shard"},
                        Case{{"--supervise", "-1"}, "--supervise"},
                        Case{{"--supervise", "0"},
                             "--supervise = 0: give how often to launch it again per "
                             "hour, 1 or more"},
                        Case{{"--backoff", "2s"}, "--backoff and --backoff-max go with --supervise N"},
                        Case{{"--supervise", "3", "--backoff-max", "long"}, "--backoff-max = \"long\""}}) {
    std::vector<std::string> args = {"train", file};
    args.insert(args.end(), c.more.begin(), c.more.end());
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find(c.told), std::string::npos) << r.err;
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  }
}

// Rank 0 stands still in step 4: it is called slow, then late, the process ends with exit code 1, and the run
// goes on from its last checkpoint as if nothing had been.
TEST(Watched, ARankThatHangsIsNamedAndEndsTheRun) {
  TempFolder whole, tmp;
  ASSERT_EQ(run({held_child(), whole.path().string(), "7", "0"}, whole.path()).code, 0);
  const Ran r = run({held_child(), tmp.path().string(), "7", "4"}, tmp.path());
  EXPECT_EQ(r.code, 1);
  const std::vector<std::string> lines = lines_of(r.err);
  ASSERT_GE(lines.size(), 2u) << r.err;
  const std::string &slow = lines[lines.size() - 2], &late = lines.back();
  EXPECT_TRUE(slow.starts_with("warning: rank 0 is slow: ranks 1, 2 have waited ")) << slow;
  EXPECT_TRUE(late.starts_with("trireme: rank 0 is late: ranks 1, 2 have waited 2.0")) << late;
  for (const std::string& line : {slow, late}) {
    EXPECT_NE(line.find(" for it, and it is in B of microbatch 0, of step 4; "), std::string::npos) << line;
    EXPECT_NE(line.find(" of group "), std::string::npos) << line;
  }
  EXPECT_EQ(outcome_of(tmp / "run").step, 3);
  const Ran again = run({held_child(), tmp.path().string(), "7", "0"}, tmp.path());
  EXPECT_EQ(again.code, 0) << again.err;
  expect_same(outcome_of(tmp / "run"), outcome_of(whole / "run"));
}

// One rank fails while another hangs where no collective tells it: both are named, and the process ends as
// the failure wants it to.
TEST(Watched, AFailureBesideARankThatHangsEndsTheRun) {
  TempFolder tmp;
  for (int fault : {1, 2}) {
    const Ran r = run({held_child(), "fails", std::to_string(fault)}, tmp.path());
    EXPECT_EQ(r.code, fault);
    const std::vector<std::string> lines = lines_of(r.err);
    ASSERT_EQ(lines.size(), 2u) << r.err;
    EXPECT_EQ(lines[0], "trireme: rank 2: its memory has holes");
    EXPECT_TRUE(lines[1].starts_with("trireme: a rank failed ")) << lines[1];
    EXPECT_TRUE(
        lines[1].ends_with("and one has not left: rank 1, in B of microbatch 1, layer blocks.2, of "
                           "step 5; the run ends without it"))
        << lines[1];
  }
}

}  // namespace
}  // namespace trireme::test
