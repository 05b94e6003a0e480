// Where seconds go.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

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

// The middle one, of two the later; 0 of none.
inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + int64_t(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace trireme
