#include "base/own_cores.h"

#include <cstdint>

namespace trireme {

OwnCores::OwnCores(int part, int parts, int each) {
  CPU_ZERO(&before_);
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;  // more cores than the fixed-size mask has
  if (int64_t(parts) * each != CPU_COUNT(&before_)) return;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  int number = 0;
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &before_) && number++ / each == part) CPU_SET(core, &mine);
  kept_ = sched_setaffinity(0, sizeof mine, &mine) == 0;
}

OwnCores::~OwnCores() {
  if (kept_) sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace trireme
