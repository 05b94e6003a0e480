#include "spec/cluster_spec.h"

#include <fmt/format.h>

#include "spec/reader.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {

double ClusterSpec::peak_flops(std::string_view dtype) const {
  return dtype == "f32" || dtype == "f16" ? peak.f32 : dtype == "bf16" ? peak.bf16 : 0;
}

namespace {

// Of each list of tables the first line that is none.
void check_tables(Reader& reader, const std::string& section, const Calibration& c) {
  for (const auto& [name, lines] : {std::pair("ops", &c.ops), {"calls", &c.calls}})
    for (const std::string& line : *lines) {
      std::string wrong;
      const SpeedTable t = speed_table_of(line, wrong);
      if (wrong.empty()) continue;
      reader.problem(section + "." + name, t.of.empty() ? wrong : fmt::format("{}: {}", shown(t.of), wrong));
      break;
    }
}

// A list of many texts, one a line.
std::string lines_of(const std::string& list) {
  constexpr std::string_view kBetween = "\", \"";
  std::string out;
  for (size_t at = 0;;) {
    const size_t end = list.find(kBetween, at);
    if (end == std::string::npos) return out + list.substr(at);
    out += list.substr(at, end - at) + "\",\n  \"";
    at = end + kBetween.size();
  }
}

}  // namespace

ClusterSpec parse_cluster(std::string_view toml, std::string_view file) {
  Reader reader(parse_toml(toml, file), std::string(file));
  ClusterSpec cluster;
  reader.read(cluster);
  for (const auto& [name, c] : {std::pair("alone", &cluster.alone), {"together", &cluster.together}})
    check_tables(reader, name, *c);
  reader.report_unknown();
  reader.raise();
  return cluster;
}
ClusterSpec load_cluster(const fs::path& path) {
  return parse_cluster(read_small(path, kMostTomlBytes), path.string());
}

std::string save_cluster(const ClusterSpec& cluster) {
  std::string out;
  for (const FieldText& f : fields_of(cluster)) {
    if (f.key.starts_with("alone.") && !cluster.alone.known()) continue;
    if (f.key.starts_with("together.") && !cluster.together.known()) continue;
    out += fmt::format("{:<36} # {}{}\n", fmt::format("{} = {}", f.key, lines_of(f.value)),
                       f.unit.empty() ? "" : fmt::format("[{}] ", f.unit), f.help);
  }
  return out;
}
void save_cluster(const ClusterSpec& cluster, const fs::path& path) {
  write_text_atomic(path, save_cluster(cluster));
}

}  // namespace trireme
