// The table of axes in words and as JSON.
#include "forecast/axes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "comm/options.h"
#include "measure/price.h"
#include "runtime/recording.h"
#include "sim/replay.h"
#include "spec/complaint.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

std::string to_text(const AxisPair& p) {
  std::string s = fmt::format("{:>5} ranks  {:<12} against {:<12} ", p.ranks, p.first, p.second);
  if (p.changes.empty()) return s + "less at every length\n";
  s += fmt::format("less below {} tokens", p.changes[0]);
  for (size_t i = 1; i < p.changes.size(); i++)
    s += fmt::format("{} {}", i % 2 == 1 ? ", more until" : ", less until", p.changes[i]);
  return s + (p.changes.size() % 2 == 1 ? ", more from there on\n" : ", less from there on\n");
}

std::string in_ms(double s) {
  return fmt::format("{:.3f} ms", s * 1e3);
}
}  // namespace

std::string to_text(const AxisTable& table, const RunSpec& run, const ClusterSpec& cluster) {
  const ModelSpec& m = run.model;
  std::string s = fmt::format(
      "one block of {}: hidden {}, {} heads ({} for keys and values), {}; {}; machine: {}\n"
      "forward and backward of as many sequences as ranks; * = least time on the wire\n\n"
      "{:>5} {:>8}  {:<12} {:>12} {:>12} {:>12} {:>12}\n",
      m.arch, m.hidden, m.heads, m.kv_heads,
      m.experts > 0 ? fmt::format("{} of {} experts of {}", m.experts_per_token, m.experts, m.moe_ffn)
                    : fmt::format("ffn {}", m.ffn),
      run.precision.compute, cluster.name, "ranks", "seq_len", "way", "rank's wire", "on the wire", "exposed",
      "compute");
  std::vector<std::string> refusals;
  for (size_t i = 0; i < table.rows.size();) {
    size_t end = i;
    while (end < table.rows.size() && table.rows[end].ranks == table.rows[i].ranks &&
           table.rows[end].seq_len == table.rows[i].seq_len)
      end++;
    const AxisCost* best = cheapest(std::span(table.rows).subspan(i, end - i));
    for (; i < end; i++) {
      const AxisCost& r = table.rows[i];
      if (!r.refused.empty()) {
        const std::string line = fmt::format("{} on {} ranks: {}", r.way, r.ranks, r.refused);
        if (std::find(refusals.begin(), refusals.end(), line) == refusals.end()) refusals.push_back(line);
        continue;
      }
      s += fmt::format("{:>5} {:>8}{} {:<12} {:>12} {:>12} {:>12} {:>12}\n", r.ranks, r.seq_len,
                       &r == best ? " *" : "  ", r.way, human_bytes(r.wire_bytes), in_ms(r.comm_s),
                       in_ms(r.exposed_s), in_ms(r.compute_s));
    }
  }
  s += '\n';
  for (const Crossover& c : table.crossovers)
    s += fmt::format("{} ranks: from {} tokens a sequence on {} takes less of the wire's time than {}\n",
                     c.ranks, c.seq_len, c.to, c.from);
  if (table.crossovers.empty()) s += "no length changes which way is cheapest\n";
  s += "\ntime on the wire, way against way:\n";
  for (const AxisPair& p : table.pairs) s += to_text(p);
  if (table.pairs.empty()) s += "no two ways divide this model\n";
  for (const std::string& r : refusals) s += "left out: " + r + "\n";
  return s;
}

std::string to_json(const AxisTable& table) {
  nlohmann::ordered_json j;
  j["rows"] = j["crossovers"] = j["pairs"] = nlohmann::ordered_json::array();
  for (const AxisCost& r : table.rows) {
    nlohmann::ordered_json row = {{"way", r.way}, {"ranks", r.ranks}, {"seq_len", r.seq_len}};
    if (r.refused.empty()) {
      row["wire_bytes"] = r.wire_bytes, row["comm_s"] = r.comm_s;
      row["exposed_s"] = r.exposed_s, row["compute_s"] = r.compute_s;
    } else {
      row["refused"] = r.refused;
    }
    j["rows"].push_back(row);
  }
  for (const Crossover& c : table.crossovers)
    j["crossovers"].push_back({{"ranks", c.ranks}, {"seq_len", c.seq_len}, {"from", c.from}, {"to", c.to}});
  for (const AxisPair& p : table.pairs)
    j["pairs"].push_back(
        {{"ranks", p.ranks}, {"first", p.first}, {"second", p.second}, {"changes", p.changes}});
  return j.dump(2);
}

}  // namespace trireme
