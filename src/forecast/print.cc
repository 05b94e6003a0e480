#include <fmt/ranges.h>

#include <set>

#include "base/counted.h"
#include "base/json.h"
#include "base/progress.h"
#include "catalog/call_price.h"
#include "catalog/catalog.h"
#include "catalog/price_list.h"
#include "comm/options.h"
#include "cost/flops.h"
#include "forecast/forecast.h"
#include "forecast/remedies.h"
#include "forecast/run_costs.h"
#include "forecast/scaled_run.h"
#include "mesh/mesh.h"
#include "spec/lr_rule.h"
#include "spec/run_schedule.h"
#include "spec/size_rule.h"

namespace trireme {
namespace {

std::string bar(double share, int width) {
  int n = int(share * width + 0.5);
  return std::string(size_t(n), '#') + std::string(size_t(width - n), '.');
}

std::string remedy_lines(const Forecast& f) {
  if (!f.remedies) return "";
  if (f.remedies->found.empty())
    return fmt::format("  none of {} single changes makes it fit{}\n", f.remedies->tried,
                       f.remedies->leanest ? ": " + to_text(*f.remedies->leanest) : "");
  std::string s = "  with one change it fits, the cheapest first:\n";
  for (const Remedy& r : f.remedies->found) s += "    " + to_text(r) + "\n";
  return s;
}

// The rank that the booking is of, where those of other stages take other bytes.
std::string whose(const RunSpec& run, const Forecast& f) {
  if (run.layout.pp == 1) return "each rank";
  const int rank = f.booking.tape.rank;
  return fmt::format("rank {} (of stage rank {}, the one whose peak is the largest)", rank,
                     mesh_of(run.layout).coord(rank, Axis::pp));
}

std::string beside_text(const RunSpec& run, const Forecast& f) {
  const auto beside = int64_t(beside_bytes(run));
  if (beside == 0 || !f.fits) return "";
  const int64_t left = f.allowed_bytes() - f.device_bytes() - beside;
  const std::string who =
      fmt::format("{} that drivers and libraries take (a mean of published runs)", human_bytes(beside));
  return left >= 0
             ? fmt::format(", with {} left beside some {}", human_bytes(left), who)
             : fmt::format(", but not with some {} beside it: {} are missing then", who, human_bytes(-left));
}

std::string memory_text(const RunSpec& run, const Forecast& f) {
  std::string s = fmt::format("memory of a step{} (exact bytes; what the peak of the total is made of)\n",
                              run.world() > 1 ? ", " + whose(run, f) : "");
  for (size_t i = 0; i < kBuckets; i++) {
    if (f.booking.peak[i] == 0) continue;
    double share = double(f.booking.at_peak[i]) / double(f.booking.peak_total);
    s += fmt::format("  {:<12} {:>15} {:>10}  {}  peak {}\n", kBucketNames[i], f.booking.at_peak[i],
                     human_bytes(f.booking.at_peak[i]), bar(share, 30), f.booking.peak[i]);
  }
  s += fmt::format("  {:<12} {:>15} {:>10}\n", "total", f.booking.peak_total,
                   human_bytes(f.booking.peak_total));
  if (f.booking.rollback_bytes > 0)
    s += fmt::format("  {:<12} {:>15} {:>10}  of optimizer: state before a step, for post-validation\n",
                     "rollback", f.booking.rollback_bytes, human_bytes(f.booking.rollback_bytes));
  int64_t holes = f.booking.arena_bytes - f.booking.peak_total;
  s += fmt::format("  {:<12} {:>15} {:>10}  with {} of alignment, holes and evaluation\n", "arena",
                   f.booking.arena_bytes, human_bytes(f.booking.arena_bytes), human_bytes(holes));
  if (f.booking.snapshot_bytes > 0)
    s += fmt::format(
        "  {:<12} {:>15} {:>10}  host memory that checkpoints are written from, beside training\n",
        "snapshot", f.booking.snapshot_bytes, human_bytes(f.booking.snapshot_bytes));
  if (f.memory_bytes > 0)
    s += fmt::format("  {} {} of the device's memory{}\n", f.fits ? "fits in" : "DOES NOT FIT in",
                     human_bytes(f.memory_bytes), beside_text(run, f)) +
         (f.ranks_on_device > 1 ? fmt::format("  ({} ranks share it)\n", f.ranks_on_device) : "");
  return s + remedy_lines(f);
}

// Attention's pairs of the busiest context rank over the mean; 1 where every rank has whole rows of heads.
double context_imbalance(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  if (l.cp == 1 || l.cp_method == "ulysses") return 1;
  return imbalance(placement_of(l), int(l.cp), run.data.seq_len);
}

// "dp 4, ZeRO 3 in shard groups of 2".
std::string layout_text(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  std::string s = fmt::format("{}, ZeRO {}", counted(l.dp, "data parallel rank"), effective_zero(l));
  if (effective_zero(l) > 0 && l.shard_group > 0 && l.shard_group < replicas_of(l))
    s += fmt::format(" in shard groups of {}", l.shard_group);
  if (l.cp > 1)
    s += l.cp_method == "ulysses"
             ? fmt::format("; sequences over {} ranks by Ulysses", l.cp)
             : fmt::format("; sequences over {} ranks in a ring, {}, busiest over mean {:.4f}", l.cp,
                           l.cp_placement, context_imbalance(run));
  return s;
}

std::string routed_text(const RoutedBytes& r) {
  return fmt::format(
      "  all_to_all is of balanced routers; of the rank that sends most it is {} to {} bytes ({} to {}) as "
      "they "
      "choose\n",
      r.least, r.most, human_bytes(r.least), human_bytes(r.most));
}

std::string wire_text(const RunSpec& run, const Forecast& f) {
  if (run.world() == 1) return "";
  const MostWire& w = f.wire;
  std::string s = fmt::format("on the wire in a step, {} ({}; gradients travel in {})\n",
                              w.alike ? "each rank" : "of each collective the rank that sends most of it",
                              layout_text(run), run.precision.reduce);
  for (size_t k = 0; k < kCollectives; k++)
    if (w.of[k].calls > 0)
      s += fmt::format("  {:<20} {:>8} calls {:>15} {:>10}  {}\n", name_of(Collective(k)), w.of[k].calls,
                       w.of[k].wire, human_bytes(w.of[k].wire), fmt::join(w.algorithms[k], ", "));
  s += fmt::format("  {:<20} {:>8}       {:>15} {:>10}\n", w.alike ? "all" : "the busiest rank's", "",
                   w.busiest, human_bytes(w.busiest));
  if (run.known_routing.rows)
    s += fmt::format(
        "  rows of experts are those of step {} of the recorded routing: {:.3f} means on the fullest rank\n",
        run.known_routing.step, f.known_load);
  if (f.untrained && run.layout.ep > 1)
    s += fmt::format(
        "  routers that are not trained are expected to give the fullest rank {:.2f} means of rows (four of "
        "five runs: "
        "{:.2f} to {:.2f})\n",
        f.untrained->mean, f.untrained->low, f.untrained->high);
  return s + (f.routed ? routed_text(*f.routed) : "") + "\n";
}

std::string disk_text(const RunSpec& run, const Forecast& f) {
  if (f.disk_read + f.disk_written == 0) return "";
  std::string s = fmt::format("to and from the disk in a step, {} (layout.offload = \"{}\")\n", whose(run, f),
                              run.layout.offload);
  for (const auto& [name, bytes] : {std::pair("read", f.disk_read), {"written", f.disk_written}})
    s += fmt::format("  {:<20} {:>15} {:>10}\n", name, bytes, human_bytes(bytes));
  return s + "\n";
}

std::string host_text(const RunSpec& run, const Forecast& f) {
  if (f.booking.waiting_bytes == 0) return "";
  std::string s = fmt::format("to and from the host's memory in a step, {} (layout.offload = \"{}\")\n",
                              whose(run, f), run.layout.offload);
  for (const auto& [name, bytes] : {std::pair("read", f.host_read),
                                    {"written", f.host_written},
                                    {"taken there", f.booking.waiting_bytes}})
    s += fmt::format("  {:<20} {:>15} {:>10}\n", name, bytes, human_bytes(bytes));
  return s + "\n";
}

std::string host_time_text(const Forecast& f) {
  if (!f.host_priced)
    return "  the host's memory: the bandwidth to it is not known, so it takes no time here (a cluster file "
           "states host_bandwidth)\n";
  if (f.time.host_s == 0) return "";
  return fmt::format(
      "  of a rank: {:.3f} ms to and from the host's memory, {:.3f} ms of it exposed (compute waits)\n",
      f.time.host_s * 1e3, f.time.exposed_host_s * 1e3);
}

std::string disk_time_text(const Forecast& f) {
  if (!f.disk_priced)
    return "  the disk: its bandwidth is not known, so it takes no time here (a cluster file states "
           "disk_bandwidth)\n";
  if (f.time.disk_s == 0) return "";
  return fmt::format("  of a rank: {:.3f} ms of the disk, {:.3f} ms of it exposed (compute waits)\n",
                     f.time.disk_s * 1e3, f.time.exposed_disk_s * 1e3);
}

std::string wire_time_text(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  if (run.world() == 1 || f.step_s == 0 || !f.replayed) return "";
  if (!f.wire_priced)
    return fmt::format(
        "  the wire: no alpha and beta of these links are known, so it takes no time here (it would take "
        "{})\n",
        links_wanted(run, cluster));
  const double compute = f.time.compute_s * 1e3, wire = f.time.comm_s * 1e3, waits = f.time.exposed_s * 1e3;
  if (waits > wire)  // most of it for ranks that have not come so far
    return fmt::format(
        "  of a rank: {:.3f} ms computing, {:.3f} ms on the wire; compute waits {:.3f} ms for it and for the "
        "ranks at its other end (the step replayed piece by piece)\n",
        compute, wire, waits);
  return fmt::format(
      "  of a rank: {:.3f} ms computing, {:.3f} ms on the wire, {:.3f} ms of it exposed (compute waits; the "
      "step replayed piece by piece)\n",
      compute, wire, waits);
}

std::string op_lines(const Forecast& f) {
  std::string s = fmt::format("  {:<20} {:>8} {:>12} {:>12} {:>10} {:>10}  bound by\n", "op", "calls",
                              "GFLOP", "MB moved", "ms", "roof ms");
  for (const OpForecast& o : f.ops)
    s += fmt::format("  {:<20} {:>8} {:>12.3f} {:>12.2f} {:>10.3f} {:>10.3f}  {}\n", o.total.op,
                     o.total.launches, o.total.cost.flops / 1e9,
                     double(o.total.cost.bytes_read + o.total.cost.bytes_written) / 1e6, o.seconds * 1e3,
                     o.roof_s * 1e3, o.compute_bound ? "compute" : "memory");
  s += fmt::format("  {:<20} {:>8} {:>12.3f}\n", "all", f.booking.launches, f.op_flops / 1e9);
  if (f.routed_flops)
    s += fmt::format("  GFLOP are of balanced routers; as they choose, all are {:.4g} to {:.4g}\n",
                     f.routed_flops->least / 1e9, f.routed_flops->most / 1e9);
  return s;
}

// "x 1.070 by site mine of mine.json"; "" where nothing is.
std::string slowed_text(const Forecast& f) {
  std::string s;
  for (const Slowed& by : f.slowed)
    s += fmt::format("{}x {:.3f} by {}", s.empty() ? "" : ", ", by.times, by.by);
  return s;
}

std::string step_line(const Forecast& f) {
  const std::string speed =
      fmt::format("{} tokens/s, MFU {:.1f} %", human_count(f.tokens_per_s), f.mfu * 100);
  const std::string step = fmt::format("{:.1f} ms a step, {}", f.step_s * 1e3, speed);
  const std::string slowed = slowed_text(f);
  if (!f.expected && slowed.empty()) return fmt::format("  at the roof: {} (a bound, not a promise)\n", step);
  if (!f.expected)
    return fmt::format("  at the roof {:.1f} ms (a bound); {}: {}\n", f.roof_s * 1e3, slowed, step);
  const std::string how =
      f.closed_form ? fmt::format(" (replayed, as in search; {:.1f} to {:.1f} ms in 80 of 100 runs)",
                                  f.low_s * 1e3, f.high_s * 1e3)
                    : "";
  return fmt::format("  {:.1f} ms a step expected{}{}: {}; at the roof {:.1f} ms (a bound)\n", f.step_s * 1e3,
                     how, slowed.empty() ? "" : " (" + slowed + ")", speed, f.roof_s * 1e3);
}

std::string unmeasured_text(const Forecast& f) {
  constexpr double kNoise = 1e-3;  // of the step: less changes nothing that is printed
  if (f.unmeasured_s <= kNoise * f.step_s) return "";
  std::vector<std::string> names;
  for (const OpForecast& o : f.ops)
    if (o.unmeasured_s > 0) names.push_back(o.total.op);
  return fmt::format("  {:.1f} ms of it are at the roof, of ops that were not measured here: {}\n",
                     f.unmeasured_s * 1e3, fmt::join(names, ", "));
}

std::string time_text(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  std::string s =
      f.expected && !f.closed_form
          ? "time of a step (as kernels were measured inside steps; roof: the larger of FLOPs / peak "
            "and bytes / bandwidth)\n"
          : "time of a step (roofline: the larger of FLOPs / peak and bytes / bandwidth)\n";
  s += op_lines(f) + wire_time_text(run, f, cluster) + disk_time_text(f) + host_time_text(f);
  if (f.step_s == 0 || f.mfu == 0) return s + "  not known: " + no_peak_text(run, cluster) + "\n";
  s += step_line(f) + unmeasured_text(f);
  if (!f.expected && !f.why_unexpected.empty())
    s += "  the expected time is not known: " + f.why_unexpected + "\n";
  else if (!f.expected)
    s += fmt::format(
        "  the expected time is not known: this cluster file has no kernels measured in {} with {} a "
        "machine{}\n",
        run.precision.compute, counted(run.world(), "rank"),
        run.train.device == "cuda" ? "; `trireme simulate --closed-form --own` of this run file forecasts it"
                                   : "");
  return s;
}

// A line for each batch, where there are several.
std::string stages_text(const Forecast& f) {
  std::string s;
  for (const auto& [stage, step_s] : f.stages) {
    if (f.stages.size() == 1) break;
    s += fmt::format("  steps {} to {}: {} sequences a step", stage.first, stage.last, stage.global);
    if (step_s > 0)
      s += fmt::format(", {:.1f} ms, {} in all", step_s * 1e3, human_seconds(step_s * double(stage.steps())));
    s += "\n";
  }
  return s;
}

std::string run_text(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  std::string s =
      fmt::format("the whole run: {}, {} tokens, {:.3g} model FLOPs", counted(run.train.steps, "step"),
                  human_count(double(f.run_tokens)), f.run_flops);
  if (f.run_s > 0)
    s += fmt::format("; {} {}, evaluations and checkpoints left out",
                     f.expected         ? "expected"
                     : f.slowed.empty() ? "at the roof"
                                        : "at the roof and slower as above",
                     human_seconds(f.run_s));
  if (f.cost > 0) s += "; " + money_text(fmt::format("{:.2f}", f.cost), cluster.currency);
  return s + "\n  " + size_text(run, double(f.run_tokens)) + "\n" + stages_text(f) + "  " + lr_text(run) +
         "\n";
}

nlohmann::ordered_json candidate(const RunSpec& run, const Forecast& f) {
  nlohmann::ordered_json j, ops = nlohmann::ordered_json::array();
  const LayoutSpec& l = run.layout;
  j["layout"] = {{"dp", l.dp},
                 {"tp", l.tp},
                 {"pp", l.pp},
                 {"cp", l.cp},
                 {"cp_method", l.cp_method},
                 {"cp_placement", l.cp_placement},
                 {"ep", l.ep},
                 {"zero", l.zero},
                 {"shard_group", l.shard_group},
                 {"schedule", l.schedule},
                 {"recompute", l.recompute},
                 {"offload", l.offload}};
  if (l.recompute == "selective") j["layout"]["recompute_tensors"] = l.recompute_tensors.list;
  if (l.recompute_blocks > 0) {
    j["layout"]["recompute_blocks"] = l.recompute_blocks;
    j["layout"]["recompute_rest"] = l.recompute_rest.list;
  }
  j["step_s"] = f.step_s;
  j["roof_s"] = f.roof_s;
  j["expected"] = f.expected;
  j["closed_form"] = f.closed_form;
  if (!f.without.empty()) j["priced_without"] = f.without;
  if (const std::string by = text_of(f.by); !by.empty()) j["constants"] = by;
  if (f.closed_form) j["step_low_s"] = f.low_s;
  if (f.closed_form) j["step_high_s"] = f.high_s;
  j["unmeasured_s"] = f.unmeasured_s;
  for (const Slowed& s : f.slowed) j["slowed"].push_back({{"by", s.by}, {"times", s.times}});
  j["compute_s"] = f.time.compute_s;
  if (!f.replayed) j["compute_s"] = nullptr;
  if (f.wire_priced && f.replayed) {
    j["comm_s"] = f.time.comm_s;
    j["exposed_comm_s"] = f.time.exposed_s;
  } else {
    j["comm_s"] = j["exposed_comm_s"] = nullptr;
  }
  j["tokens_per_s_per_gpu"] = f.tokens_per_s / double(run.world());
  j["mfu"] = f.mfu;
  j["hfu"] = f.hfu;
  j["bubble"] = f.time.bubble;
  if (!f.replayed || (run.layout.pp > 1 && f.step_s == 0)) j["bubble"] = nullptr;
  j["cp_imbalance"] = context_imbalance(run);
  for (size_t i = 0; i < kBuckets; i++) j["memory"][std::string(kBucketNames[i])] = f.booking.peak[i];
  j["memory"]["total"] = f.booking.peak_total;
  j["memory"]["arena"] = f.booking.arena_bytes;
  j["memory"]["snapshot"] = f.booking.snapshot_bytes;
  if (f.booking.rollback_bytes > 0) j["memory"]["rollback"] = f.booking.rollback_bytes;
  for (size_t i = 0; i < kBuckets; i++) j["at_peak"][std::string(kBucketNames[i])] = f.booking.at_peak[i];
  for (size_t i = 0; i < kBuckets; i++)
    if (f.booking.state[i] > 0) j["state"][std::string(kBucketNames[i])] = f.booking.state[i];
  j["wire"] = nlohmann::ordered_json::object();
  for (size_t k = 0; k < kCollectives; k++)
    if (const CommCount& c = f.wire.of[k]; c.calls > 0)
      j["wire"][std::string(name_of(Collective(k)))] = {
          {"calls", c.calls}, {"bytes", c.wire}, {"algorithms", f.wire.algorithms[k]}};
  if (f.routed)
    j["wire"]["all_to_all"]["least"] = f.routed->least, j["wire"]["all_to_all"]["most"] = f.routed->most;
  if (f.untrained)
    j["untrained"] = {{"ep_load", f.untrained->mean}, {"low", f.untrained->low}, {"high", f.untrained->high}};
  if (run.known_routing.rows) j["routing"] = {{"step", run.known_routing.step}, {"ep_load", f.known_load}};
  if (f.disk_read + f.disk_written > 0) {
    j["disk"] = {{"bytes_read", f.disk_read}, {"bytes_written", f.disk_written}};
    j["disk"]["seconds"] = j["disk"]["exposed_s"] = nullptr;
    if (f.disk_priced && f.replayed) {
      j["disk"]["seconds"] = f.time.disk_s;
      j["disk"]["exposed_s"] = f.time.exposed_disk_s;
    }
  }
  if (f.booking.waiting_bytes > 0) {
    j["host"] = {{"bytes_read", f.host_read},
                 {"bytes_written", f.host_written},
                 {"bytes_held", f.booking.waiting_bytes}};
    j["host"]["seconds"] = j["host"]["exposed_s"] = nullptr;
    if (f.host_priced && f.replayed) {
      j["host"]["seconds"] = f.time.host_s;
      j["host"]["exposed_s"] = f.time.exposed_host_s;
    }
  }
  j["fits"] = f.fits;
  if (f.memory_bytes > 0)
    j["device_bytes"] = f.device_bytes(), j["allowed_bytes"] = f.allowed_bytes(),
    j["over_bytes"] = std::max<int64_t>(0, f.device_bytes() - f.allowed_bytes());
  if (const double beside = beside_bytes(run); beside > 0) j["beside_bytes"] = int64_t(beside);
  j["cost"] = nullptr;
  if (f.cost > 0) j["cost"] = f.cost;
  j["checkpoint"] = json_of(f.checkpoint);
  if (f.watts > 0) {
    constexpr double kJoulesOfKwh = 3.6e6;
    j["watts"] = f.watts;
    j["energy_kwh"] = f.watts * f.run_s / kJoulesOfKwh;
  }
  for (const Alternative& a : f.alternatives)
    j["alternatives"].push_back({{"change", a.change}, {"step_s", a.step_s}, {"device_bytes", a.bytes}});
  j["run"] = {{"steps", run.train.steps},
              {"tokens", f.run_tokens},
              {"model_flops", f.run_flops},
              {"seconds", f.run_s}};
  for (const auto& [stage, step_s] : f.stages)
    if (f.stages.size() > 1)
      j["run"]["stages"].push_back(
          {{"first", stage.first}, {"last", stage.last}, {"global", stage.global}, {"step_s", step_s}});
  j["parameters"] = f.booking.parameters;
  if (run.lora.active()) j["trained_parameters"] = f.booking.trained;
  j["tokens"] = f.tokens;
  j["model_flops"] = f.model_flops;
  j["hardware_flops"] = f.hardware_flops;
  j["flops"] = f.op_flops;
  if (f.routed_flops) j["least_flops"] = f.routed_flops->least, j["most_flops"] = f.routed_flops->most;
  j["bytes_read"] = f.booking.total.bytes_read;
  j["bytes_written"] = f.booking.total.bytes_written;
  j["launches"] = f.booking.launches;
  for (const OpForecast& o : f.ops)
    ops.push_back({{"op", o.total.op},
                   {"calls", o.total.launches},
                   {"flops", o.total.cost.flops},
                   {"bytes_read", o.total.cost.bytes_read},
                   {"bytes_written", o.total.cost.bytes_written},
                   {"seconds", o.seconds},
                   {"roof_s", o.roof_s}});
  j["ops"] = ops;
  if (std::string why = why_not(run, f); !why.empty()) j["why_rejected"] = why;
  if (f.remedies) {
    j["remedies"] = nlohmann::ordered_json::array();
    for (const Remedy& r : f.remedies->found)
      j["remedies"].push_back({{"change", r.change},
                               {"saves_bytes", r.saves},
                               {"step_s", r.step_s},
                               {"costs", r.costs},
                               {"priced", r.priced},
                               {"estimated", r.about}});
  }
  return j;
}

}  // namespace

std::string recompute_text(const RunSpec& run, const Forecast& f) {
  const LayoutSpec& l = run.layout;
  if (l.recompute == "none") return "";
  const std::string blocks = l.recompute_blocks > 0
                                 ? fmt::format("the first {} blocks of each stage", l.recompute_blocks)
                                 : "each block";
  std::string s = fmt::format("computed again for the backward pass: of {} ", blocks);
  s += l.recompute == "full" ? std::string("all but its input")
                             : fmt::format("{}", fmt::join(l.recompute_tensors, ", "));
  if (l.recompute == "full" && l.recompute_shard) s += fmt::format(" (kept in {} parts)", l.tp);
  if (!l.recompute_rest.empty()) s += fmt::format("; of the others {}", fmt::join(l.recompute_rest, ", "));
  return s + fmt::format("; {:.4g} hardware FLOPs, {:.1f} % more\n", f.hardware_flops,
                         100 * (f.hardware_flops / f.model_flops - 1));
}

std::string time_line(const RunSpec& run, const Forecast& f, int64_t done) {
  const int64_t left = run.train.steps - done;
  if (f.run_s == 0 || left <= 0) return "";
  const std::string step = f.expected ? fmt::format("{:.1f} ms a step expected ({:.1f} ms at the roof)",
                                                    f.step_s * 1e3, f.roof_s * 1e3)
                                      : fmt::format("{:.1f} ms a step at the roof (a bound)", f.roof_s * 1e3);
  return fmt::format("{}{}, {}{} in {}", step, f.stages.size() > 1 ? " of the largest batch" : "",
                     done > 0 ? "the last " : "", counted(left, "step"),
                     human_seconds(f.seconds_after(done)));
}

std::string to_text(const RunSpec& run, const Forecast& f, const ClusterSpec& cluster) {
  const ModelSpec& m = run.model;
  std::string s = fmt::format(
      "{} of {} parameters: {} layers, hidden {}, {} heads ({} for keys and values), ffn {}, vocabulary {}\n"
      "a step: {} sequences of {} tokens = {} tokens in {} microbatch(es); {} compute, {} gradients\n",
      model_name(m), human_count(double(f.booking.parameters)), m.layers, m.hidden, m.heads, m.kv_heads,
      m.ffn, m.vocab, run.batch.global, run.data.seq_len, f.tokens, run.microbatches(), run.precision.compute,
      run.precision.grads);
  if (run.lora.active())
    s += fmt::format("adapters of rank {} are trained: {} parameters; all others are frozen\n", run.lora.rank,
                     human_count(double(f.booking.trained)));
  if (!run.batch.ramp.empty())
    s += fmt::format("its batch grows: {}; memory and time below belong to a step of {} sequences\n",
                     ramp_text(run.batch), run.batch.global);
  s += fmt::format("model FLOPs of a step: {:.4g} ({}); {} count {:.4g}\n", f.model_flops,
                   run.lora.active() ? "2 x forward, 3 x attention" : "3 x forward",
                   run.world() > 1 ? fmt::format("rank {}'s kernels", f.booking.tape.rank) : "kernels",
                   f.op_flops);
  s += recompute_text(run, f);
  if (!cluster.name.empty()) s += fmt::format("machine: {} ({})\n", cluster.name, cluster.source);
  if (const std::string few = too_few_devices(run, cluster, f.closed_form); !few.empty()) s += few + "\n";
  return s + "\n" + memory_text(run, f) + "\n" + wire_text(run, f) + disk_text(run, f) + host_text(run, f) +
         time_text(run, f, cluster) + "\n" + run_text(run, f, cluster);
}

std::string to_json(const RunSpec& run, const Forecast& f) {
  nlohmann::ordered_json j;
  j["best"] = f.fits ? candidate(run, f) : nlohmann::ordered_json(nullptr);
  j["candidates"] = nlohmann::ordered_json::array({candidate(run, f)});
  return j.dump(2);
}

}  // namespace trireme
