// Python's random.Random: the few-shot examples of lm-evaluation-harness are drawn with it.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace trireme {

// The numbers of random.Random(seed), for a seed below 2^32 (CPython's Modules/_randommodule.c).
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);
  uint64_t below(uint64_t n);                      // _randbelow(n), 1 <= n < 2^32
  std::vector<size_t> sample(size_t n, size_t k);  // sample(range(n), k), k <= n

 private:
  std::mt19937 engine_;
};

}  // namespace trireme
