#include "spec/cluster_spec.h"

#include <fmt/format.h>

#include "spec/reader.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {

double ClusterSpec::peak_flops(std::string_view dtype) const {
  return dtype == "f32" || dtype == "f16" ? peak.f32 : dtype == "bf16" ? peak.bf16 : 0;
}

ClusterSpec parse_cluster(std::string_view toml, std::string_view file) {
  Reader reader(parse_toml(toml, file), std::string(file));
  ClusterSpec cluster;
  reader.read(cluster);
  reader.report_unknown();
  reader.raise();
  return cluster;
}
ClusterSpec load_cluster(const fs::path& path) {
  return parse_cluster(read_small(path, kMostTomlBytes), path.string());
}

std::string save_cluster(const ClusterSpec& cluster) {
  std::string out;
  for (const FieldText& f : fields_of(cluster))
    out += fmt::format("{:<36} # {}{}\n", fmt::format("{} = {}", f.key, f.value),
                       f.unit.empty() ? "" : fmt::format("[{}] ", f.unit), f.help);
  return out;
}
void save_cluster(const ClusterSpec& cluster, const fs::path& path) {
  write_text_atomic(path, save_cluster(cluster));
}

}  // namespace trireme
