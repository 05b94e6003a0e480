// For loops that look until something is so: pauses between looks, ever longer.
#pragma once
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/gate.h"

namespace trireme {

class Patience {
 public:
  void rest() {
    if (++looks_ <= 200) return pause_thread();
    std::this_thread::sleep_for(std::chrono::microseconds(sleep_us_));
    sleep_us_ = std::min(200, 2 * sleep_us_);
  }

 private:
  int looks_ = 0, sleep_us_ = 10;
};

}  // namespace trireme
