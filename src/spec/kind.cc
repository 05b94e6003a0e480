#include "spec/kind.h"

#include <algorithm>
#include <string_view>

namespace trireme {

SpecKind kind_of_spec(const std::vector<TomlEntry>& entries) {
  static constexpr std::string_view kOfRuns[] = {"model",     "data",      "batch", "layout", "moe",
                                                 "precision", "optimizer", "train", "cluster"};
  static constexpr std::string_view kOfClusters[] = {
      "devices_per_node", "memory_bandwidth", "memory_bytes", "peak", "intra_node", "inter_node", "tier"};
  const auto any_in = [&](const auto& sections) {
    return std::any_of(entries.begin(), entries.end(), [&](const TomlEntry& e) {
      return std::find(std::begin(sections), std::end(sections), e.key.substr(0, e.key.find('.'))) !=
             std::end(sections);
    });
  };
  const bool run = any_in(kOfRuns), cluster = any_in(kOfClusters);
  return run == cluster ? SpecKind::neither : run ? SpecKind::run : SpecKind::cluster;
}

}  // namespace trireme
