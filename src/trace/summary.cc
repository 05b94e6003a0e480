#include "trace/summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace trireme {
namespace {

using Rows = std::map<std::string, TimeRow, std::less<>>;

void add(Rows& rows, std::string_view name, const Span& s) {
  auto it = rows.find(name);
  if (it == rows.end()) it = rows.emplace(name, TimeRow{.name = std::string(name), .cost = {}}).first;
  it->second.calls++, it->second.seconds += s.seconds(), it->second.cost += s.cost;
}

std::vector<TimeRow> sorted(const Rows& rows) {
  std::vector<TimeRow> v;
  for (const auto& [name, row] : rows) v.push_back(row);
  std::stable_sort(v.begin(), v.end(),
                   [](const TimeRow& a, const TimeRow& b) { return a.seconds > b.seconds; });
  return v;
}

}  // namespace

std::string kind_of_layer(std::string_view layer) {
  std::string out;
  for (size_t i = 0; i < layer.size(); i++) {
    bool digit = layer[i] >= '0' && layer[i] <= '9';
    bool begins = i > 0 && layer[i - 1] == '.';
    if (digit && (begins || (!out.empty() && out.back() == '*'))) {
      if (begins) out += '*';
    } else {
      out += layer[i];
    }
  }
  return out.empty() ? "(no layer)" : out;
}

TraceSummary summarize(std::span<const Span> spans) {
  TraceSummary t;
  Rows ops, layers, both, actions, collectives;
  std::set<int32_t> ranks;
  for (const Span& s : spans) {
    int64_t total = std::accumulate(s.memory.begin(), s.memory.end(), int64_t(0));
    if (total > t.peak_total) t.peak_total = total, t.at_peak = s.memory;
    if (s.kind == SpanKind::step) t.steps++, t.step_s += s.seconds(), ranks.insert(s.rank);
    if (s.kind == SpanKind::wait) t.wait_s += s.seconds();
    if (s.kind == SpanKind::action) add(actions, s.action, s);
    if (s.kind == SpanKind::comm) {
      Span wire = s;
      wire.cost.bytes_read = s.wire_bytes;
      add(collectives, std::string(s.name) + " of " + std::string(s.group), wire);
    }
    if (s.kind != SpanKind::op) continue;
    t.op_s += s.seconds();
    std::string layer = kind_of_layer(s.layer);
    add(ops, s.name, s), add(layers, layer, s), add(both, std::string(s.name) + " in " + layer, s);
  }
  t.ranks = int64_t(ranks.size());
  t.by_op = sorted(ops), t.by_layer = sorted(layers), t.by_both = sorted(both), t.by_action = sorted(actions);
  t.by_collective = sorted(collectives);
  return t;
}

}  // namespace trireme
