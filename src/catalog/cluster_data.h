// Texts of configs/cluster/*.toml, compiled in, so that verbs know them wherever they are called.
#pragma once
#include <span>
#include <string_view>

#include "spec/cluster_spec.h"

namespace trireme {
struct ShippedCluster {
  std::string_view name, toml;  // name: the file's, without .toml
};
extern const std::span<const ShippedCluster> kShippedClusters;
// Parsed; null: none of that name.
const ClusterSpec* shipped_cluster(std::string_view name);
}  // namespace trireme
