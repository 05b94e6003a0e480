#include "device/op_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace trireme {

void OpTimes::begin_step() {
  require(!on_, "a step that has begun");
  on_ = true;
}
void OpTimes::end_step(double wall_s) {
  require(on_, "a step that has not begun");
  on_ = false;
  steps_++, wall_s_ += wall_s;
}
void OpTimes::before(std::string_view) {
  if (on_) stamps_->put();
}
void OpTimes::after(std::string_view op, const Cost& c, const Outputs& o) {
  if (!on_) return;
  stamps_->put();
  const Kind kind{std::string(op), o.n > 0 ? to_string(o.t[0].shape) : "",
                  std::string(kernels_.last_kernel()), c.flops, c.bytes_read + c.bytes_written};
  ops_.push_back(kinds_.try_emplace(kind, kinds_.size()).first->second);
}

OpTable OpTimes::table() {
  const std::vector<double> at = stamps_->read();
  require(at.size() == 2 * ops_.size(), "an op without both of its places");
  std::vector<double> seconds(kinds_.size()), count(kinds_.size());
  for (size_t i = 0; i < ops_.size(); i++) seconds[ops_[i]] += at[2 * i + 1] - at[2 * i], count[ops_[i]]++;
  OpTable t;
  t.steps = steps_;
  const double n = std::max(1, steps_);
  t.wall_s = wall_s_ / n;
  for (const auto& [kind, i] : kinds_) {
    const double launches = count[i] / n;
    t.rows.push_back({kind.op, kind.shape, kind.kernel, launches, seconds[i] / n, kind.flops * launches,
                      double(kind.bytes) * launches});
    t.ops_s += seconds[i] / n;
  }
  std::sort(t.rows.begin(), t.rows.end(),
            [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  ops_.clear(), kinds_.clear(), steps_ = 0, wall_s_ = 0;
  return t;
}

// Only products and attention run on the units that the peak is of; other ops are bound by memory.
OfPeak of_peak(const OpRow& r, const OpPeaks& p) {
  if (r.seconds <= 0 || p.bytes_per_s <= 0) return {};
  const bool product = r.op.find("matmul") != r.op.npos || r.op.starts_with("attention");
  const bool in_8_bits = r.kernel.starts_with("8-bit") && p.fp8_flops > 0;
  const double peak = !product ? 0 : in_8_bits ? p.fp8_flops : p.flops;
  const double by_flops = peak > 0 ? r.flops / peak : 0, by_bytes = r.bytes / p.bytes_per_s;
  return {std::max(by_flops, by_bytes) / r.seconds, by_flops > by_bytes ? "flops" : "bytes"};
}

std::string to_text(const OpTable& t, const OpPeaks& p) {
  const double wall = t.wall_s > 0 ? t.wall_s : 1;
  std::string s = fmt::format("{:>8} {:>9} {:>7} {:>8} {:>8} {:>9}  op, shape, kernel\n", "count", "ms",
                              "step %", "TFLOP/s", "GB/s", "of peak");
  for (const OpRow& r : t.rows) {
    const OfPeak of = of_peak(r, p);
    s += fmt::format(
        "{:8.1f} {:9.3f} {:7.2f} {:8.2f} {:8.1f} {:>9}  {} {}{}{}\n", r.count, r.seconds * 1e3,
        100 * r.seconds / wall, r.tflops(), r.gb_per_s(),
        of.bound.empty() ? "-" : fmt::format("{:.0f}% {}", 100 * of.share, of.bound[0] == 'f' ? "F" : "B"),
        r.op, r.shape, r.kernel.empty() ? "" : " by ", r.kernel);
  }
  s += fmt::format(
      "{:>8} {:9.3f} {:7.2f}  all ops\n{:>8} {:9.3f} {:7.2f}  gap: copies, collectives, late launches, "
      "waits for the host\n{:>8} {:9.3f} {:7.2f}  step, mean of {}\n",
      "", t.ops_s * 1e3, 100 * t.ops_s / wall, "", t.gap_s() * 1e3, 100 * t.gap_s() / wall, "",
      t.wall_s * 1e3, 100.0, t.steps);
  if (p.bytes_per_s > 0)
    s += fmt::format("peaks: {:.1f} TFLOP/s, {:.0f} GB/s ({}); F: bound by FLOPs, B: by bytes\n",
                     p.flops * 1e-12, p.bytes_per_s * 1e-9, p.source);
  return s;
}

std::string to_json_lines(const OpTable& t, const OpPeaks& p, std::string_view device,
                          std::string_view attention) {
  nlohmann::ordered_json step = {{"kind", "step"},
                                 {"device", device},
                                 {"attention", attention},
                                 {"steps", t.steps},
                                 {"wall_ms", t.wall_s * 1e3},
                                 {"ops_ms", t.ops_s * 1e3},
                                 {"gap_ms", t.gap_s() * 1e3},
                                 {"peak_flops", p.flops},
                                 {"peak_bytes_per_s", p.bytes_per_s},
                                 {"peaks_from", p.source}};
  std::string lines = step.dump() + "\n";
  for (const OpRow& r : t.rows) {
    const OfPeak of = of_peak(r, p);
    nlohmann::ordered_json row = {{"kind", "op"},
                                  {"op", r.op},
                                  {"shape", r.shape},
                                  {"kernel", r.kernel},
                                  {"count", r.count},
                                  {"ms", r.seconds * 1e3},
                                  {"share", t.wall_s > 0 ? r.seconds / t.wall_s : 0},
                                  {"tflops", r.tflops()},
                                  {"gb_per_s", r.gb_per_s()},
                                  {"of_peak", of.share},
                                  {"bound", of.bound}};
    lines += row.dump() + "\n";
  }
  return lines;
}

}  // namespace trireme
