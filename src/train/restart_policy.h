// Decides whether a run that failed is launched again, and after which pause.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace trireme {

// Progress of a run folder.
struct RunProgress {
  int64_t saved = 0;  // step of the newest complete checkpoint; 0: none
  int64_t step = 0;   // the last step in metrics.jsonl
  bool operator==(const RunProgress&) const = default;
};

struct RestartLimits {
  int64_t per_hour = 0;        // launches after a failure, within any 3600 s
  double first_pause_s = 0.5;  // from a failure to the next launch; doubles until a checkpoint is newer
  double most_pause_s = 30;
};

// One end of the command that was not in good order.
struct RunFailure {
  bool by_itself =
      false;     // the run failed or crashed. False: its environment failed, or another process ended it
  int code = 0;  // exit code, or minus the signal's number
};

struct RestartDecision {
  bool again = false;
  double pause_s = 0;
  int64_t within_hour = 0;  // launches after a failure in the last hour, this one included
  std::string why_not;
};

// Pure: time comes from the caller.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}
  // now_s: seconds of any steady clock.
  RestartDecision failed(const RunFailure&, const RunProgress&, double now_s);

  static constexpr int kSameFailures =
      3;  // with one code at one step, and no newer checkpoint: the run's own

 private:
  RestartLimits limits_;
  std::deque<double> launched_s_;                // launches after a failure, in the last hour
  std::map<std::pair<int, int64_t>, int> same_;  // failures by code and step since the newest checkpoint
  int64_t saved_ = -1;
  double pause_s_ = 0;
};

}  // namespace trireme
