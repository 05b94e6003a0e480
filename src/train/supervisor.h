// A parent that launches a run, and launches it again when it fails.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/interrupt.h"
#include "train/restart_policy.h"

namespace trireme {

RunProgress progress_of(const fs::path& run_dir);

struct SuperviseOptions {
  // What is launched: a path or a name to be looked for, and its arguments. deadline_at: where among them the
  // seconds of a deadline that is left belong, as "12.5s"; -1 = nowhere.
  std::vector<std::string> command;
  int deadline_at = -1;
  Deadline deadline;
  fs::path run_dir;
  RestartLimits restarts;
  // The command launches processes of its own (mpirun), which are asked to save and leave by SIGUSR1: SIGTERM
  // would leave them a second.
  bool launcher = false;
  std::function<void(const std::string&)> say;  // one line for each relaunch, and why there is no other
};

// Launches the command, waits, and launches it again after a failure. Final are exit codes 0, 2 and 3, a
// signal to this process, the deadline, and what the policy ends (restart_policy.h).
// - The run failed by itself if it crashed (SIGSEGV, SIGABRT, ...), or ended with another code than 4. Behind
// a
//   launcher it must also have locked its folder, otherwise the launcher failed.
// - Everything else is the environment's: code 4, SIGKILL, a launcher that fails or is missing, no process.
// Returns the exit code for this process: the command's; 1 if a signal ended it; 4 if the environment failed.
// SIGTERM, SIGINT, SIGHUP and SIGUSR1 are passed on while the command runs; it dies with this process.
// Requires: a single-threaded caller.
// Throws Error (request) if the command does not exist at the first launch.
int supervise(const SuperviseOptions&);

}  // namespace trireme
