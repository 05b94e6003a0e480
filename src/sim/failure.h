// What a run loses when a rank fails: the work since the last checkpoint, the time until the others have
// noticed, and the restart.
#pragma once
#include <cstdint>

namespace trireme {

struct FailurePlan {
  double step_s = 0;
  int64_t every = 0;       // steps between saves; 0 = none before the end
  double save_s = 0;       // that training stands still for one
  double notice_s = 10;    // until the rank is named (comm/watch: a dead or frozen one within 10 seconds)
  double restart_s = 600;  // from there to the first step after it
};
struct FailureLoss {
  int64_t step = 1;  // during which it fails, from 1
  double into_step_s = 0;
  bool in_save = false;    // behind that step, while it is being saved
  int64_t saved_step = 0;  // the last one that is saved whole; 0 = it starts anew
  double again_s = 0;      // work that is done again
  double waited_s = 0;     // notice and restart
  double lost_s() const { return again_s + waited_s; }
};
// at_s: seconds since the run began.
FailureLoss loss_of(const FailurePlan&, double at_s);

}  // namespace trireme
