// The answer of `plan` on one screen.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/progress.h"
#include "base/units.h"
#include "catalog/call_price.h"
#include "catalog/catalog.h"
#include "catalog/cluster_device.h"
#include "catalog/price_list.h"
#include "comm/options.h"
#include "forecast/forecast.h"
#include "forecast/remedies.h"
#include "forecast/run_costs.h"
#include "forecast/scaled_run.h"
#include "forecast/search_layout.h"
#include "measure/speeds.h"
#include "spec/run_schedule.h"
#include "spec/size_rule.h"

namespace trireme {
namespace {

constexpr size_t kAnswerParts = 3;  // largest entries that a list shows

std::string layout_line(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  std::string s;
  for (const auto& [name, n] :
       {std::pair{"tp", l.tp}, {"pp", l.pp}, {"cp", l.cp}, {"dp", l.dp}, {"ep", l.ep}})
    if (n > 1) s += fmt::format("{}{} {}", s.empty() ? "" : " ", name, n);
  if (s.empty()) s = "one rank";
  if (const int zero = effective_zero(l); zero > 0) s += fmt::format(", zero {}", zero);
  if (l.pp > 1) s += fmt::format(", {}", l.schedule);
  if (l.pp > 1 && l.chunks > 1) s += fmt::format(" x{}", l.chunks);
  if (const auto& n = l.stage_layers; !n.empty())
    s += fmt::format(" with layers {}", layers_text({n.begin(), n.end()}));
  s += fmt::format(", micro {} x {}", run.batch.micro, run.microbatches());
  if (l.recompute != "none") s += fmt::format(", recompute {}", l.recompute);
  if (l.offload != "none") s += fmt::format(", offload {}", l.offload);
  s += fp8_text(run.precision);
  return answer_line("layout", s);
}

}  // namespace

std::string no_peak_text(const RunSpec& run, const ClusterSpec& cluster) {
  if (run.train.device != "cuda" && run.cluster.file.empty())
    return "no peaks of this machine; `trireme bench` measures them";
  return fmt::format("{} has no peak.{}; expected a cluster file with it, or another precision.compute",
                     cluster.name, run.precision.compute);
}

namespace {

std::string step_lines(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  if (f.step_s == 0 || f.mfu == 0) return answer_line("step", "not known: " + no_peak_text(run, cluster));
  std::string s;
  if (!f.expected) {
    s = fmt::format("[bound {}]", seconds_text(f.roof_s));
  } else {
    s = seconds_text(f.step_s) + " expected";
    if (f.closed_form)
      s += fmt::format(", {} to {} in 80 of 100 runs", seconds_text(f.low_s), seconds_text(f.high_s));
    s += fmt::format(" [bound {}]", seconds_text(f.roof_s));
  }
  if (!f.without.empty())
    s += fmt::format(" x {:.2f}, as without {}", f.step_s / f.roof_s, fmt::join(f.without, ", "));
  for (const Slowed& by : f.slowed) s += fmt::format(", x {:.3f} by {}", by.times, by.by);
  if (!f.expected && f.slowed.empty())
    s += "; expected is not known: " +
         (!f.why_unexpected.empty() ? f.why_unexpected
                                    : fmt::format("no kernels measured in {} with {} a machine",
                                                  run.precision.compute, counted(run.world(), "rank")));
  if (!f.expected && !f.slowed.empty()) s += ": " + seconds_text(f.step_s);
  return answer_line("step", s) +
         answer_line("speed", fmt::format("{}{} tokens/s, {} per rank, MFU {:.1f} %{}",
                                          f.expected ? "" : "at most ", three_digits(f.tokens_per_s),
                                          three_digits(f.tokens_per_s / double(run.world())), 100 * f.mfu,
                                          mfu_peak_text(run.precision)));
}

std::string memory_line(const RunSpec& run, const Forecast& f) {
  const bool gpu = run.train.device == "cuda";
  const double beside = gpu ? constants_of({})[size_t(Fit::base)] : 0;  // drivers and libraries, as in search
  std::string s = bytes_text(double(f.device_bytes()) + beside);
  if (f.memory_bytes > 0) {
    s += fmt::format(" of {}", capacity_text(double(f.memory_bytes)));
    if (f.ranks_on_device > 1) s += fmt::format(" that {} ranks share", f.ranks_on_device);
    const double left = double(f.allowed_bytes() - f.device_bytes()) - beside;
    s += f.fits ? ": fits" : fmt::format(": DOES NOT FIT, {} are missing", bytes_text(-left));
    if (f.fits && beside > 0)
      s += left >= 0 ? fmt::format(", {} left; drivers and libraries have {} of it", bytes_text(left),
                                   bytes_text(beside))
                     : fmt::format(" only without the {} of drivers and libraries", bytes_text(beside));
  }
  std::vector<std::pair<int64_t, std::string_view>> parts;
  for (size_t i = 0; i < kBuckets; i++)
    if (f.booking.at_peak[i] > 0) parts.emplace_back(f.booking.at_peak[i], kBucketNames[i]);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string of;
  for (size_t i = 0; i < std::min(parts.size(), kAnswerParts); i++)
    of += fmt::format("{}{} {}", i > 0 ? ", " : "", parts[i].second, bytes_text(double(parts[i].first)));
  return answer_line("memory", s) + answer_line("", fmt::format("of rank {}: {}", f.booking.tape.rank, of));
}

// The part of tolls_of() that an op of a tape belongs to.
std::string_view toll_of(std::string_view op) {
  if (op.starts_with("attention")) return "attention";
  if (is_product(op)) return "products";
  if (op.find("softmax_stats") != op.npos || op.find("cross_entropy") != op.npos) return "logits and loss";
  if (passes_through_state(op) || op == "muon") return "optimizer";
  return "norms and activations";
}

// Shares of the step, largest first: the closed form's, or the replay's ops and waits under the same names.
std::vector<std::pair<std::string, double>> step_shares(const Forecast& f) {
  if (!f.tolls.empty()) return f.tolls;
  std::vector<std::pair<std::string, double>> all;
  if (f.time.step_s <= 0) return all;
  std::map<std::string_view, double> seconds;
  for (const OpForecast& o : f.ops) seconds[toll_of(o.total.op)] += o.seconds;
  for (const auto& [name, of] : seconds) all.emplace_back(name, of / f.time.step_s);
  all.emplace_back("exposed communication", f.time.exposed_s / f.time.step_s);
  all.emplace_back("pipeline bubble", f.time.bubble);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

std::string binds_lines(const Forecast& f) {
  const auto all = step_shares(f);
  if (all.empty() || f.step_s == 0) return "";
  constexpr double kLeast = 0.005;
  std::string s;
  for (size_t i = 0; i < std::min(all.size(), kAnswerParts + 1) && all[i].second >= kLeast; i++)
    s += fmt::format("{}{} {:.0f} %", i > 0 ? ", " : "", all[i].first, 100 * all[i].second);
  // The step if one of the largest parts took half as long.
  std::string gains;
  for (size_t i = 0; i < std::min<size_t>(all.size(), 2) && all[i].second >= kLeast; i++)
    gains += fmt::format("{}{}: {}", i > 0 ? "; " : "", all[i].first,
                         seconds_text(f.step_s * (1 - all[i].second / 2)));
  return answer_line("binds", s) + answer_line("if halved", gains);
}

std::string other_lines(const RunSpec& run, const Forecast& f) {
  constexpr size_t kShown = 2;
  std::string s;
  if (!f.fits && f.remedies) {
    for (size_t i = 0; i < std::min(kShown, f.remedies->found.size()); i++)
      s += "  " + to_text(f.remedies->found[i]) + "\n";
    if (f.remedies->found.empty())
      s += fmt::format("  none of {} single changes makes it fit{}\n", f.remedies->tried,
                       f.remedies->leanest ? ": " + to_text(*f.remedies->leanest) : "");
    return "with one change it fits, the cheapest first\n" + s;
  }
  for (const Alternative& a : f.alternatives)
    s += fmt::format("  {}: about {} ({:+.1f} %), {}\n", a.change, seconds_text(a.step_s),
                     100 * (a.step_s / f.step_s - 1), bytes_text(a.bytes));
  if (s.empty())
    s = fmt::format("  `trireme search` of this run file looks at all layouts of {}\n",
                    counted(run.world(), "rank"));
  return "alternatives\n" + s;
}

std::string wire_line(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  if (run.world() == 1) return "";
  std::string s = fmt::format("{} sent per rank and step", bytes_text(double(f.wire.busiest)));
  if (f.replayed && f.step_s == 0) return answer_line("wire", s);
  s += f.replayed ? fmt::format(", {} exposed", seconds_text(f.time.exposed_s))
       : !cluster.kinds.empty()
           ? ""
           : fmt::format("; not replayed op by op, for that takes {} operations",
                         human_count(double(f.booking.tape.pieces.size()) * double(run.world())));
  if (!f.wire_priced)
    s = fmt::format("{} sent per rank and step take no time: no latency and bandwidth of {}",
                    bytes_text(double(f.wire.busiest)), links_wanted(run, cluster));
  return answer_line("wire", s);
}

std::string offload_line(const Forecast& f) {
  std::string s;
  if (f.disk_read + f.disk_written > 0)
    s += fmt::format("disk {} read and {} written, {}", bytes_text(double(f.disk_read)),
                     bytes_text(double(f.disk_written)),
                     !f.replayed     ? "not replayed"
                     : f.disk_priced ? seconds_text(f.time.exposed_disk_s) + " exposed"
                                     : "counted as 0 s: the cluster file states no disk_bandwidth");
  if (f.host_read + f.host_written > 0)
    s += fmt::format("{}host memory {} read and {} written, {}", s.empty() ? "" : "; ",
                     bytes_text(double(f.host_read)), bytes_text(double(f.host_written)),
                     !f.replayed     ? "not replayed"
                     : f.host_priced ? seconds_text(f.time.exposed_host_s) + " exposed"
                                     : "counted as 0 s: the cluster file states no host_bandwidth");
  return s.empty() ? "" : answer_line("offload", s);
}

std::string run_lines(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  std::string s = fmt::format("{}, {} tokens, {:.3g} model FLOPs", counted(run.train.steps, "step"),
                              human_count(double(f.run_tokens)), f.run_flops);
  if (f.run_s > 0) s += fmt::format(": {}{}", human_seconds(f.run_s), f.expected ? "" : " at the bound");
  if (f.cost > 0) s += ", " + money_text(three_digits(f.cost), cluster.currency);
  s = answer_line("run", s);
  if (f.watts > 0 && f.step_s > 0)
    s += answer_line("energy", energy_text(cluster, run.world(), f.step_s, double(f.tokens)) +
                                   (f.expected ? "" : " at the bound"));
  if (f.checkpoint.write_s > 0 || f.own_device) s += answer_line("checkpoint", checkpoint_text(f.checkpoint));
  return s;
}

}  // namespace

std::string answer_text(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  std::string s = fmt::format("{} of {} parameters on {}{}, {} sequences of {} tokens per step, {}\n",
                              model_name(run.model), human_count(double(f.booking.parameters)),
                              counted(run.world(), "rank"), cluster.name.empty() ? "" : " of " + cluster.name,
                              run.batch.global, run.data.seq_len, run.precision.compute);
  if (run.lora.active())
    s += answer_line("adapters", fmt::format("rank {}: {} parameters are trained, all others are frozen",
                                             run.lora.rank, human_count(double(f.booking.trained))));
  s += layout_line(run) + step_lines(run, f, cluster) + memory_line(run, f) + binds_lines(f) +
       other_lines(run, f);
  s += wire_line(run, f, cluster) + offload_line(f) + run_lines(run, f, cluster);
  if (!run.batch.ramp.empty())
    s += answer_line("batch", fmt::format("grows: {}; all but `run` is of {} sequences", ramp_text(run.batch),
                                          run.batch.global));
  s += answer_line("size", size_text(run, double(f.run_tokens)));
  if (!f.prices.empty()) s += answer_line("prices", f.prices);
  for (const std::string& note : {too_few_devices(run, cluster, f.closed_form),
                                  f.closed_form ? kinds_text(cluster, run.layout) : kinds_text(cluster),
                                  no_bf16_text(cluster.name, run.precision.compute)})
    if (!note.empty()) s += answer_line("note", note);
  return s + answer_line("more", "--all prints ops, memory by bucket and collectives; --json everything");
}

}  // namespace trireme
