// A trace: where the time of its steps went. Times and counts are of one step of one rank, on average.
#include <algorithm>
#include <cstdlib>

#include "cli/describe.h"
#include "trace/chrome_trace.h"
#include "trace/summary.h"

namespace trireme::cli {
namespace {

constexpr size_t kMostRows = 25;

double rounded(double v, int decimals) {
  return std::strtod(fmt::format("{:.{}f}", v, decimals).c_str(), nullptr);
}

// Three digits, however small.
double to_digits(double v) {
  return std::strtod(fmt::format("{:.3g}", v).c_str(), nullptr);
}

Description rows(const std::vector<TimeRow>& all, const char* what, const TraceSummary& t, double peak) {
  Description out = Description::array();
  double steps = double(std::max<int64_t>(1, t.steps));
  const bool computes =
      std::any_of(all.begin(), all.end(), [](const TimeRow& r) { return r.cost.flops > 0; });
  for (const TimeRow& r : all) {
    if (out.size() == kMostRows) break;
    double bytes = double(r.cost.bytes_read + r.cost.bytes_written);
    Description row = {{what, r.name},
                       {"calls", rounded(double(r.calls) / steps, 1)},
                       {"ms", rounded(r.seconds * 1e3 / steps, 3)}};
    row["% of step"] = t.step_s > 0 ? rounded(100 * r.seconds / t.step_s, 1) : 0;
    if (r.cost.flops + bytes > 0 && r.seconds > 0) {
      if (computes) row["GFLOP/s"] = rounded(r.cost.flops / r.seconds * 1e-9, 1);
      row["GB/s"] = to_digits(bytes / r.seconds * 1e-9);
      if (peak > 0) row["% of peak"] = rounded(100 * r.cost.flops / r.seconds / peak, 1);
    }
    out.push_back(row);
  }
  return out;
}

}  // namespace

Description describe_trace(const fs::path& p) {
  Timeline trace = read_chrome_trace(p);
  TraceSummary t = summarize(trace.spans);
  double steps = double(std::max<int64_t>(1, t.steps)), peak = 0;
  if (auto it = trace.about.find("peak_flops"); it != trace.about.end())
    peak = std::strtod(it->second.c_str(), nullptr);
  Description d = {{"kind", "trace"}, {"path", p.string()}, {"bytes", int64_t(fs::file_size(p))}};
  for (const auto& [k, v] : trace.about)
    if (k != "made_by") d[k] = v;
  d["steps"] = t.steps / std::max<int64_t>(1, t.ranks);
  if (t.ranks > 1) d["ranks"] = t.ranks;
  d["spans"] = trace.spans.size();
  d["step_ms"] = rounded(t.step_s * 1e3 / steps, 3);
  double share = t.step_s > 0 ? 100 / t.step_s : 0;
  d["inside_ops_percent"] = rounded(t.op_s * share, 2);
  d["waiting_for_data_percent"] = rounded(t.wait_s * share, 4);
  d["outside_percent"] = rounded((t.step_s - t.op_s - t.wait_s) * share, 2);
  d["peak_bytes"] = t.peak_total;
  d["by_op"] = rows(t.by_op, "op", t, peak);
  d["by_layer"] = rows(t.by_layer, "layer", t, peak);
  d["by_op_and_layer"] = rows(t.by_both, "op in layer", t, peak);
  d["by_action"] = rows(t.by_action, "action", t, 0);
  if (!t.by_collective.empty()) d["by_collective"] = rows(t.by_collective, "collective", t, 0);
  return d;
}

}  // namespace trireme::cli
