// Why two clusters whose listings look alike train differently: their keys beside each other, and what
// follows.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "spec/cluster_spec.h"

namespace trireme {

struct KeyDifference {
  std::string key, unit, a, b;  // values as a cluster file has them; "" where there is no such tier
  std::optional<double> ratio;  // b / a, of numbers that are both known
};

// A number that follows from the keys, such as seconds of a collective; nothing where a file does not say
// enough.
struct Consequence {
  std::string what, unit;
  std::optional<double> a, b;
  std::string how_a, how_b;  // of a collective: "ring, 64 devices"
  std::optional<double> ratio() const;
};

struct ClusterComparison {
  std::vector<KeyDifference> differences;
  std::vector<Consequence> consequences;
};

// What the consequences are reckoned with.
inline constexpr double kGradientParameters = 6738415616;          // Llama 2 7B
inline constexpr double kGradientBytes = 2 * kGradientParameters;  // bf16
inline constexpr int64_t kGradientNodes = 8;
inline constexpr double kStepTokens = 4096;  // of a device and step
inline constexpr double kReach = 0.5;        // share of the peak while a device computes

ClusterComparison compare_clusters(const ClusterSpec& a, const ClusterSpec& b);

}  // namespace trireme
