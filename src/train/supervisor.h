// A parent that launches a run, and launches it again when it fails.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/interrupt.h"

namespace trireme {

// How far a run folder has come.
struct RunProgress {
  int64_t saved = 0;  // step of the newest complete checkpoint; 0: none
  int64_t step = 0;   // last one in metrics.jsonl
  bool operator==(const RunProgress&) const = default;
};
RunProgress progress_of(const fs::path& run_dir);

struct SuperviseOptions {
  // What is launched: a path or a name to be looked for, and its arguments. deadline_at: where among them the
  // seconds of a deadline that is left belong, as "12.5s"; -1 = nowhere.
  std::vector<std::string> command;
  int deadline_at = -1;
  Deadline deadline;
  fs::path run_dir;
  int64_t relaunches = 0;  // at most
  // The command launches processes of its own (mpirun), which are asked to save and leave by SIGUSR1: SIGTERM
  // would leave them a second.
  bool launcher = false;
  std::function<void(const std::string&)> say;  // one line for each relaunch, and why there is no other
};

// Launches the command and waits. It is launched again when it ended by a signal or with an exit code other
// than 0, 2 and 3, not after these, nor when this process was asked to leave, nor when it failed twice in a
// row at the same step with no new checkpoint. Returns the exit code for this process: the command's, 1 where
// a signal ended it. SIGTERM, SIGINT and SIGUSR1 are passed on while it runs; it dies with this process.
// Single-threaded callers only. Error (request): the command cannot be started.
int supervise(const SuperviseOptions&);

}  // namespace trireme
