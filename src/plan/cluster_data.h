// Texts of configs/cluster/*.toml, compiled in, so that verbs know them wherever they are called.
#pragma once
#include <span>
#include <string_view>

namespace trireme {
struct ShippedCluster {
  std::string_view name, toml;  // name: the file's, without .toml
};
extern const std::span<const ShippedCluster> kShippedClusters;
}  // namespace trireme
