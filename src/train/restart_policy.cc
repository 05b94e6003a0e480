#include "train/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

RestartDecision RestartPolicy::failed(const RunFailure& f, const RunProgress& now, double now_s) {
  constexpr double kHour = 3600;
  if (now.saved > saved_) {
    saved_ = now.saved;
    pause_s_ = limits_.first_pause_s;
    same_.clear();
  }
  RestartDecision d;
  if (f.by_itself && ++same_[{f.code, now.step}] >= kSameFailures) {
    d.why_not =
        fmt::format("it failed {} times in this way after step {}, with no checkpoint newer than step {}",
                    kSameFailures, now.step, now.saved);
    return d;
  }
  while (!launched_s_.empty() && now_s - launched_s_.front() >= kHour) launched_s_.pop_front();
  if (int64_t(launched_s_.size()) >= limits_.per_hour) {
    d.why_not =
        fmt::format("that was relaunch {} of {} within an hour", launched_s_.size(), limits_.per_hour);
    return d;
  }
  launched_s_.push_back(now_s);
  d.again = true;
  d.within_hour = int64_t(launched_s_.size());
  d.pause_s = std::min(pause_s_, limits_.most_pause_s);
  pause_s_ = std::min(limits_.most_pause_s, std::max(2 * pause_s_, limits_.first_pause_s));
  return d;
}

}  // namespace trireme
