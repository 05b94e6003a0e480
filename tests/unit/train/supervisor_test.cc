// The parent of a run: what it launches again, and what not. Its children here are shells.
#include "train/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

struct Supervised {
  int code = -1;
  std::vector<std::string> lines;
  std::string launches;  // one letter each
};

// Each launch of the script adds a letter to `folder`/launches; $N counts them from 1.
Supervised supervise_script(const fs::path& folder, const std::string& script, int64_t relaunches,
                            bool launcher = false, Deadline deadline = {}) {
  Supervised s;
  SuperviseOptions o;
  o.command = {"/bin/sh", "-c",
               "cd '" + folder.string() + "'; printf x >> launches; N=$(wc -c < launches); " + script, "sh",
               ""};
  o.deadline_at = 4, o.deadline = deadline;
  o.run_dir = folder / "run";
  o.launcher = launcher;
  o.restarts = {.per_hour = relaunches, .first_pause_s = 0, .most_pause_s = 0};
  o.say = [&](const std::string& line) { s.lines.push_back(line); };
  s.code = supervise(o);
  s.launches = fs::exists(folder / "launches") ? read_text(folder / "launches") : "";
  return s;
}

// Until a signal comes; for a minute at most.
constexpr const char* kLoop = "i=0; while [ $i -lt 10000000 ]; do i=$((i+1)); done; exit 5";
constexpr const char* kStep = "mkdir -p run; echo '{\"step\": '$N'}' >> run/metrics.jsonl; ";

TEST(Supervisor, WhatNeedsNoRelaunchGetsNone) {
  for (int code : {0, 2, 3}) {
    TempFolder tmp;
    const Supervised s = supervise_script(tmp.path(), "exit " + std::to_string(code), 5);
    EXPECT_EQ(s.code, code);
    EXPECT_EQ(s.launches, "x");
    EXPECT_TRUE(s.lines.empty());
  }
}

TEST(Supervisor, AFailureIsLaunchedAgainUpToTheLimit) {
  TempFolder tmp;
  const Supervised s = supervise_script(tmp.path(), std::string(kStep) + "exit 1", 3);
  EXPECT_EQ(s.code, 1);
  EXPECT_EQ(s.launches, "xxxx");
  EXPECT_EQ(
      s.lines,
      (std::vector<std::string>{
          "supervise: relaunch 1 of 3: it failed with exit code 1 after step 1; it resumes from the start in "
          "0 us",
          "supervise: relaunch 2 of 3: it failed with exit code 1 after step 2; it resumes from the start in "
          "0 us",
          "supervise: relaunch 3 of 3: it failed with exit code 1 after step 3; it resumes from the start in "
          "0 us",
          "supervise: it failed with exit code 1, and is not launched again: that was relaunch 3 of 3 within "
          "an hour"}));
}

TEST(Supervisor, NoneIsAllowedWithZero) {
  TempFolder tmp;
  const Supervised s = supervise_script(tmp.path(), "exit 1", 0);
  EXPECT_EQ(s.code, 1);
  EXPECT_EQ(s.launches, "x");
  ASSERT_EQ(s.lines.size(), 1u);
}

// Killed by a signal, itself or as a launcher tells of it; then it ends well.
TEST(Supervisor, AKilledRunIsLaunchedAgain) {
  for (const char* end : {"kill -9 $$", "exit 137"}) {
    TempFolder tmp;
    const Supervised s =
        supervise_script(tmp.path(), std::string(kStep) + "[ $N = 3 ] && exit 0; " + end + "; exit 2", 5);
    EXPECT_EQ(s.code, 0);
    EXPECT_EQ(s.launches, "xxx");
    ASSERT_EQ(s.lines.size(), 2u);
    EXPECT_EQ(s.lines[1],
              "supervise: relaunch 2 of 5: it was killed by signal 9 (Killed) after step 2; it "
              "resumes from the start in 0 us");
  }
}

// Another process kills it, and not the run itself: the code is the environment's.
TEST(Supervisor, ARunThatIsKilledTooOftenEndsWithTheCodeOfTheEnvironment) {
  TempFolder tmp;
  const Supervised s = supervise_script(tmp.path(), std::string(kStep) + "kill -9 $$", 2);
  EXPECT_EQ(s.code, int(Fault::environment));
  EXPECT_EQ(s.launches, "xxx");
}

TEST(Supervisor, NoProgressEndsEarly) {
  TempFolder tmp;
  const Supervised s = supervise_script(
      tmp.path(), "[ $N -gt 2 ] && N=2; " + std::string(kStep) + "printf '{\"step\": 9' >> run/half; exit 1",
      9);
  EXPECT_EQ(s.code, 1);
  EXPECT_EQ(s.launches, "xxxx") << "after step 1, and three times after step 2";
  ASSERT_EQ(s.lines.size(), 4u);
  EXPECT_EQ(
      s.lines[3],
      "supervise: it failed with exit code 1, and is not launched again: it failed 3 times in this way after "
      "step 2, with no checkpoint newer than step 0");
}

// The environment's failures are not the run's: none of them ends it, and the run's own at the same step
// still do.
TEST(Supervisor, TheEnvironmentHasMoreTries) {
  for (const char* failure : {"exit 4", "kill -9 $$", "exit 137"}) {
    TempFolder tmp;
    const Supervised s = supervise_script(
        tmp.path(), std::string("[ $N = 12 ] && exit 0; N=2; ") + kStep + failure + "; exit 1", 20);
    EXPECT_EQ(s.code, 0) << failure;
    EXPECT_EQ(s.launches.size(), 12u) << failure;
  }
  for (const char* crash : {"kill -SEGV $$", "exit 134"}) {
    TempFolder tmp;
    const Supervised s = supervise_script(tmp.path(), std::string("N=2; ") + kStep + crash + "; exit 0", 20);
    EXPECT_EQ(s.code, 1) << crash;
    EXPECT_EQ(s.launches, "xxx") << crash;
  }
  TempFolder tmp;
  EXPECT_EQ(supervise_script(tmp.path(), "exit 4", 2).code, 4) << "the budget is spent";
}

// A launcher's exit code is the run's if the run has locked its folder, which sets the time of its lock.
TEST(Supervisor, ALauncherThatFailsIsNotTheRun) {
  TempFolder tmp;
  Supervised s = supervise_script(tmp.path(), "[ $N = 12 ] && exit 0; exit 1", 20, true);
  EXPECT_EQ(s.code, 0);
  EXPECT_EQ(s.launches.size(), 12u);
  EXPECT_EQ(
      s.lines.at(0).find("supervise: relaunch 1 of 20: its launcher failed with exit code 1 after step 0"),
      0u)
      << s.lines[0];
  TempFolder other;
  s = supervise_script(other.path(), "mkdir -p run; touch run/lock; exit 1", 20, true);
  EXPECT_EQ(s.code, 1);
  EXPECT_EQ(s.launches, "xxx");
  TempFolder spent;
  EXPECT_EQ(supervise_script(spent.path(), "exit 1", 2, true).code, 4);
}

// A launcher that is missing at a later launch existed before.
TEST(Supervisor, ALauncherThatDisappearsIsWaitedFor) {
  TempFolder tmp;
  const fs::path launcher = tmp / "launcher";
  write_text_atomic(launcher,
                    "#!/bin/sh\nmv launcher away; (sleep 0.3; mv away launcher) & "
                    "echo x >> launches; [ $(wc -l < launches) = 2 ] && exit 0; exit 1\n");
  fs::permissions(launcher, fs::perms::owner_all);
  SuperviseOptions o;
  o.command = {"./launcher"}, o.run_dir = tmp / "run", o.launcher = true;
  o.restarts = {.per_hour = 100, .first_pause_s = 0.05, .most_pause_s = 0.05};
  std::vector<std::string> lines;
  o.say = [&](const std::string& line) { lines.push_back(line); };
  const fs::path before = fs::current_path();
  fs::current_path(tmp.path());
  const int code = supervise(o);
  fs::current_path(before);
  EXPECT_EQ(code, 0);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_NE(lines[1].find("./launcher could not be started (No such file or directory)"), std::string::npos)
      << lines[1];
}

TEST(Supervisor, WhatCannotBeStartedIsTheRequests) {
  TempFolder tmp;
  SuperviseOptions o;
  o.command = {(tmp / "nothing").string()}, o.run_dir = tmp / "run", o.restarts.per_hour = 5;
  try {
    supervise(o);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("nothing could not be started"), std::string::npos) << e.what();
  }
}

// The child asks its parent to leave, as a scheduler would: that comes back to the child, and whatever it
// says then is the end. A launcher hears SIGUSR1 first.
TEST(Supervisor, SignalsArePassedOnAndEndIt) {
  struct Case {
    const char *sent, *trap;
    bool launcher;
  };
  for (const Case& c : {Case{"TERM", "TERM", false}, Case{"INT", "INT", false}, Case{"USR1", "USR1", false},
                        Case{"HUP", "HUP", false}, Case{"HUP", "USR1", true}, Case{"TERM", "USR1", true},
                        Case{"INT", "USR1", true}}) {
    for (const char* leave : {"exit 3", "exit 1"}) {
      TempFolder tmp;
      const std::string script =
          fmt::format("trap 'echo caught > caught; {}' {}; [ $PPID -gt 1 ] && kill -{} $PPID; {}", leave,
                      c.trap, c.sent, kLoop);
      const Supervised s = supervise_script(tmp.path(), script, 5, c.launcher);
      EXPECT_EQ(s.code, leave[5] - '0') << c.sent;
      EXPECT_EQ(s.launches, "x");
      EXPECT_TRUE(fs::exists(tmp / "caught"));
      EXPECT_TRUE(s.lines.empty());
    }
  }
}

TEST(Supervisor, KilledByWhatItPassedOnIsInterrupted) {
  TempFolder tmp;
  const Supervised s =
      supervise_script(tmp.path(), std::string("[ $PPID -gt 1 ] && kill -TERM $PPID; ") + kLoop, 5);
  EXPECT_EQ(s.code, 3);
  EXPECT_EQ(s.launches, "x");
}

// A process of the launcher outlives it and still has the run folder: there is no relaunch before it lets go.
TEST(Supervisor, WaitsForTheFolderThatALaunchersProcessesHold) {
  TempFolder tmp;
  const std::string script =
      "[ $N = 2 ] && { [ -e left ]; exit $?; }; mkdir -p run; : > run/lock; "
      "(flock 9; : > held; while kill -0 $$ 2> /dev/null; do sleep 0.02; done; sleep 0.3; : > left) 9< "
      "run/lock & "
      "while [ ! -e held ]; do sleep 0.02; done; exit 1";
  const Supervised s = supervise_script(tmp.path(), script, 1, true);
  EXPECT_EQ(s.code, 0) << "the second launch came while the folder was held";
  EXPECT_EQ(s.launches, "xx");
}

// What is left of a deadline is told to each launch, and one that has passed ends it.
TEST(Supervisor, ADeadlineIsForAllLaunchesTogether) {
  TempFolder tmp;
  const std::string script = std::string(kStep) + "echo $1 >> left; [ $N = 2 ] && exit 0; exit 1";
  Supervised s = supervise_script(tmp.path(), script, 5, false, Deadline::after(1000));
  EXPECT_EQ(s.code, 0);
  const std::vector<std::string> left = lines_of(read_text(tmp / "left"));
  ASSERT_EQ(left.size(), 2u);
  const double first = parse_duration("", left[0]), second = parse_duration("", left[1]);
  EXPECT_LE(first, 1000);
  EXPECT_LT(second, first);
  EXPECT_GT(second, 900);
  TempFolder other;
  s = supervise_script(other.path(), std::string(kStep) + "exit 1", 5, false, Deadline::after(0));
  EXPECT_EQ(s.code, 1);
  EXPECT_EQ(s.launches, "x");
}

}  // namespace
}  // namespace trireme::test
