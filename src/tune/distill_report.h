// The result of self-distillation: pass@k over temperatures before and after, over seeds.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

// pass@k of one evaluation, share of tasks.
struct SweepPoint {
  double temperature = 0;
  uint64_t seed = 0;
  bool after = false;  // fine-tuning
  std::map<int64_t, double> pass;
};

// Mean over seeds with a 95 % interval of Student's t; with one seed low and high are NaN.
struct SeedMean {
  double mean = 0, low = 0, high = 0;
  int64_t seeds = 0;
};
SeedMean mean_over_seeds(const std::vector<double>&);

struct SweepGain {
  int64_t k = 1;
  std::vector<double> temperatures;
  std::vector<SeedMean> before, after;         // by temperature
  double best_before_t = 0, best_after_t = 0;  // the temperature of the largest mean
  SeedMean best_before, best_after, gain;      // gain: by seed, each side at its best temperature
  bool shown() const { return gain.low > 0; }  // the interval excludes 0
};
// One for each k that all points have. Requires: every seed has every temperature, before and after.
std::vector<SweepGain> gains_of(const std::vector<SweepPoint>&);

std::string gains_text(const std::vector<SweepGain>&);
nlohmann::ordered_json gains_json(const std::vector<SweepGain>&);

// Samples that fine-tuning leaves out (PAPERS 1.2): blank ones, and stubs. A stub is one line that does
// nothing: pass, ..., a bare return, raise NotImplementedError, a comment, or a function of such a line. Code
// fences do not count.
enum class SampleKind : uint8_t { kept, empty, stub };
SampleKind kind_of_sample(std::string_view sample);

}  // namespace trireme
