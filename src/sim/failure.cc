#include "sim/failure.h"

#include <algorithm>
#include <cmath>

namespace trireme {

FailureLoss loss_of(const FailurePlan& p, double at_s) {
  FailureLoss l;
  const double period = double(p.every) * p.step_s + p.save_s;
  const double periods = p.every > 0 ? std::floor(at_s / period) : 0;
  const double since = at_s - periods * period;  // the last save
  l.saved_step = int64_t(periods) * p.every;
  auto steps = int64_t(std::floor(since / p.step_s));  // whole ones
  if (p.every > 0 && steps >= p.every) {
    l.in_save = true, steps = p.every - 1;
    l.into_step_s = p.step_s;
  } else {
    l.into_step_s = since - double(steps) * p.step_s;
  }
  l.step = l.saved_step + steps + 1;
  l.again_s = since;
  l.waited_s = p.notice_s + p.restart_s;
  return l;
}

}  // namespace trireme
