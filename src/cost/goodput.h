// How much of the time that a cluster is paid for goes into steps that stay: what failures, saves, restarts
// and waiting for a repaired machine leave.
#pragma once
#include <cstdint>

namespace trireme {

struct Reliability {
  double mtbf_device_s = 50000 * 3600.0;  // device-seconds between failures that end a run
  double restart_s = 600;                 // from a failure to the first step after it
  double repair_s = 24 * 3600.0;          // of a machine that failed
  // Seconds until a copy in the hosts' memory is written to storage. A failed machine loses its copy, so a
  // failure goes back to the last one that is written (cost/checkpoint_plan.h).
  double write_s = 0;
  int64_t devices_per_machine = 8;
  int64_t spares = -1;  // machines that stand by; -1 = as many as make a step cheapest
};

struct Goodput {
  double share = 1;       // of wall time in steps that stay
  double mtbf_s = 0;      // of the whole cluster
  double interval_s = 0;  // between saves (Daly 2006)
  int64_t spares = 0;
  double waits = 0;  // share of failures that find no spare, and wait for the repair
  // Devices paid for: those that train, and those that stand by.
  int64_t paid = 0;
};

// Failures come at random, n devices fail n times as often. A failure loses on average half an interval and
// `restart_s` (cost/checkpoint_interval.h); with s spares it waits `repair_s` besides where s or more
// machines are under repair, whose number is Poisson's of mean repair_s / mtbf_s (machines fail one by one
// and are repaired each by itself).
Goodput goodput(const Reliability&, int64_t devices, double save_s);

}  // namespace trireme
