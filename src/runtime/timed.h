// Where a step's seconds go.
#pragma once
#include <chrono>

namespace trireme {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the life of the object to a number of seconds.
struct Timed {
  explicit Timed(double& s) : seconds(s), begin(now_s()) {}
  Timed(const Timed&) = delete;
  ~Timed() { seconds += now_s() - begin; }
  double& seconds;
  double begin;
};

}  // namespace trireme
