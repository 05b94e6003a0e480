// Diagnoses of how the work is divided: communication, microbatches, recompute, placement, slow ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/counted.h"
#include "base/progress.h"
#include "base/timed.h"
#include "report/diagnose.h"

namespace trireme {
namespace {

constexpr double kLeastExposed = 0.05;   // share of a step that waits for data in flight
constexpr double kLeastSlowness = 0.10;  // a rank compared with its peers
constexpr double kLeastLaunch = 0.10;    // share of a step between ops
constexpr double kLeastBubble = 0.10;    // share of a step
constexpr int64_t kShortOp = 200'000;    // ns: launches of ops that are longer do not matter

std::string percent_of_step(double share) {
  return fmt::format("{:.1f} % of each step", 100 * share);
}

// Keys that keep transfers from running during compute, with the value that lets them.
struct Serialising {
  std::string key, from, to, why;
  Use axis;
};

std::vector<Serialising> serialising_keys(const Symptoms& s) {
  const LayoutSpec& l = s.run.layout;
  std::vector<Serialising> out;
  // Gradients in one bucket are reduced when the whole backward pass is done.
  const nlohmann::json& forecast = s.in.record.forecast;
  const nlohmann::json::json_pointer at("/state/grads");
  const double grads = forecast.contains(at) && forecast[at].is_number() ? forecast[at].get<double>() : 0;
  if (l.dp * l.cp > 1 && l.zero == 0 && grads > 0 && l.bucket_mb * 1e6 > grads / 2)
    out.push_back({"layout.bucket_mb", fmt::format("{:g}", l.bucket_mb),
                   fmt::format("{:.3g}", std::max(0.1, grads / 8e6)),
                   "all gradients are in one or two buckets, which are reduced after the backward pass",
                   Use::dp});
  if (l.cp > 1 && l.cp_method == "ring" && !l.cp_overlap)
    out.push_back(
        {"layout.cp_overlap", "false", "true", "keys and values travel while nothing is computed", Use::cp});
  if (l.zero == 3 && l.prefetch == 0)
    out.push_back({"layout.prefetch", "0", "1", "weights are gathered when they are needed", Use::dp});
  if (l.tp > 1 && l.tp_chunks == 1 && s.run.train.device == "cuda")
    out.push_back({"layout.tp_chunks", "1", "2", "sums over tp are whole: compute waits for each", Use::tp});
  return out;
}

// Seconds of work that a rank did in each traced step.
std::vector<double> work_of(const TracedRank& r) {
  std::vector<double> out;
  for (const UseTimes& t : r.steps) {
    int64_t sum = 0;
    for (size_t u = 0; u < kWorks; u++) sum += t[u];
    out.push_back(double(sum) * 1e-9);
  }
  return out;
}

// The end of a number whose choices were planned without a gain, or not planned.
std::string not_faster(const Symptoms& s, std::string_view which) {
  return s.base.step_s > 0 ? fmt::format("; {} is planned to be faster", which)
                           : std::string("; not planned: the machine is not measured");
}

}  // namespace

Diagnosis serialised_communication(const Symptoms& s) {
  Diagnosis d{.id = "serialised_communication",
              .title = "Communication is not hidden behind compute",
              .evidence = {}};
  if (s.run.world() == 1) {
    d.number = "one rank";
    return d;
  }
  double exposed = 0;
  for (Use u : {Use::tp, Use::cp, Use::dp, Use::ep}) exposed += s.share(u);
  if (!s.in.trace.any()) {
    const double comm = s.median(&StepLine::comm_s);
    exposed = known(comm) ? comm / s.step_s : 0;
  }
  d.number = percent_of_step(exposed);
  if (exposed < kLeastExposed) return d;
  for (const Serialising& one : serialising_keys(s)) {
    const double waits = s.in.trace.any() ? s.share(one.axis) : exposed;
    if (waits < kLeastExposed) continue;
    // The plan says which share of the wait goes; links may be slower than it knows. Not planned: half of the
    // wait, for keys that serialise it whatever the machine is.
    const std::optional<double> hidden = s.priced_hiding({one.key + "=" + one.to});
    const double estimate = waits * (hidden ? *hidden : one.key == "layout.tp_chunks" ? 0 : 0.5);
    if (estimate < kLeastGain || estimate <= d.gain_share) continue;
    d.found = true;
    d.gain_share = std::min(estimate, waits);
    d.measured = false;
    d.key = one.key;
    d.from = one.from;
    d.to = one.to;
    d.evidence = {
        fmt::format("compute waits for {} data in flight in {}", name_of(one.axis), percent_of_step(waits)),
        one.why};
  }
  return d;
}

Diagnosis microbatch_too_small(const Symptoms& s) {
  Diagnosis d{.id = "microbatch_too_small",
              .title = "The microbatch is too small",
              .evidence = {},
              .measured = false};
  const int64_t micro = s.run.batch.micro, count = s.run.microbatches();
  d.number =
      fmt::format("{} of {}", counted(count, "microbatch", "microbatches"), counted(micro, "sequence"));
  // A pipeline needs microbatches to fill it.
  const int64_t least = s.run.layout.pp > 1 ? 2 * s.run.layout.pp : 1;
  double best = 0;
  int64_t to = micro;
  for (int64_t larger = micro * 2; count * micro / larger >= least && count * micro % larger == 0;
       larger *= 2) {
    const std::optional<double> gain = s.priced_gain({fmt::format("batch.micro={}", larger)});
    if (gain && *gain > best + 0.01) {
      best = *gain;
      to = larger;
    }
  }
  d.gain_share = best;
  d.found = best >= 2 * kLeastGain;
  if (to == micro) {
    d.number += not_faster(s, "no larger one");
    return d;
  }
  d.number += fmt::format("; the plan with {} is {:.1f} % faster", to, 100 * best);
  d.key = "batch.micro";
  d.from = std::to_string(micro);
  d.to = std::to_string(to);
  d.evidence.push_back(
      fmt::format("planned with micro = {}: {:.1f} % less time per step, and it fits", to, 100 * best));
  if (s.in.trace.any() && !s.in.trace.ops.empty()) {
    int64_t calls = 0;
    double seconds = 0;
    for (const TracedOp& o : s.in.trace.ops) {
      calls += o.calls;
      seconds += o.seconds;
    }
    d.evidence.push_back(fmt::format("an op takes {} on average",
                                     human_seconds(seconds / double(std::max<int64_t>(1, calls)))));
  }
  return d;
}

// Stages wait for one another: more microbatches, or another schedule, fill the pipeline.
Diagnosis pipeline_bubble(const Symptoms& s) {
  Diagnosis d{.id = "pipeline_bubble",
              .title = "Pipeline stages wait for one another",
              .evidence = {},
              .measured = false};
  if (s.run.layout.pp == 1) {
    d.number = "one pipeline stage";
    return d;
  }
  const double share = s.in.trace.any() ? s.share(Use::bubble) : s.in.record.forecast_number("bubble");
  if (!known(share)) {
    d.number = s.in.trace.why_not;
    return d;
  }
  d.number =
      fmt::format("{} is bubble{}; {}", percent_of_step(share), s.in.trace.any() ? "" : " by the forecast",
                  counted(s.run.microbatches(), "microbatch", "microbatches"));
  if (share < kLeastBubble) return d;
  std::vector<std::pair<std::string, std::string>> changes;
  for (int64_t micro = s.run.batch.micro / 2; micro >= 1; micro /= 2)
    if (s.run.batch.micro % micro == 0) changes.emplace_back("batch.micro", std::to_string(micro));
  for (const char* schedule : {"1f1b", "zb-h1"})
    if (s.run.layout.schedule != schedule)
      changes.emplace_back("layout.schedule", fmt::format("\"{}\"", schedule));
  for (const auto& [key, to] : changes) {
    const std::optional<double> gain = s.priced_gain({key + "=" + to});
    if (!gain || *gain <= d.gain_share + 0.01) continue;
    d.gain_share = std::min(*gain, share);
    d.key = key;
    d.from = key == "batch.micro" ? std::to_string(s.run.batch.micro)
                                  : fmt::format("\"{}\"", s.run.layout.schedule);
    d.to = to;
  }
  d.found = d.gain_share >= kLeastGain;
  if (d.key.empty())
    d.number += not_faster(s, "no other microbatch or schedule");
  else
    d.evidence.push_back(
        fmt::format("planned with {} = {}: {:.1f} % less time per step", d.key, d.to, 100 * d.gain_share));
  return d;
}

Diagnosis needless_recompute(const Symptoms& s) {
  Diagnosis d{.id = "needless_recompute",
              .title = "Activations are recomputed although they fit in memory",
              .evidence = {},
              .measured = false};
  const std::string& recompute = s.run.layout.recompute;
  d.number = "recompute = " + recompute;
  if (recompute == "none") return d;
  const double mfu = s.median(&StepLine::mfu), hfu = s.median(&StepLine::hfu);
  const double again = known(hfu) && hfu > 0 ? 1 - mfu / hfu : s.share(Use::again);
  d.number = percent_of_step(again) + " is recompute";
  if (!s.in.price) return d;
  // "auto" chose what memory asks for.
  for (const char* less : {"none", "selective"}) {
    if (recompute == less || (recompute == "auto")) continue;
    const std::vector<std::string> sets = {fmt::format("layout.recompute={}", less)};
    const std::optional<PricedRun> changed = s.in.price(sets);
    if (!changed || !changed->fits) continue;
    const std::optional<double> gain = s.priced_gain(sets);
    d.gain_share = gain ? std::max(0.0, *gain) : again;
    d.found = d.gain_share >= kLeastGain;
    d.key = "layout.recompute";
    d.from = fmt::format("\"{}\"", recompute);
    d.to = fmt::format("\"{}\"", less);
    d.evidence.push_back(fmt::format("with \"{}\" a device needs {}, and that fits", less,
                                     human_bytes(changed->device_bytes)));
    break;
  }
  return d;
}

// A rank that works longer than ranks of the same stage and keeps them waiting.
Diagnosis straggler(const Symptoms& s) {
  Diagnosis d{.id = "straggler", .title = "One rank is slower than its peers", .evidence = {}};
  if (s.run.world() < 2) {
    d.number = "one rank";
    return d;
  }
  if (!s.in.trace.any()) {
    d.number = s.in.trace.why_not;
    return d;
  }
  std::map<int, std::vector<size_t>> stages;  // indices of ranks
  const Mesh mesh = mesh_of(s.run.layout);
  for (size_t i = 0; i < s.in.trace.ranks.size(); i++)
    if (s.in.trace.ranks[i].rank < mesh.world())
      stages[mesh.coord(s.in.trace.ranks[i].rank, Axis::pp)].push_back(i);
  double worst = 0;
  for (const auto& [stage, members] : stages) {
    if (members.size() < 2) continue;
    for (size_t i : members) {
      const std::vector<double> mine = work_of(s.in.trace.ranks[i]);
      std::vector<double> others;
      int slower = 0;
      for (size_t step = 0; step < mine.size(); step++) {
        std::vector<double> peers;
        for (size_t k : members)
          if (k != i) peers.push_back(work_of(s.in.trace.ranks[k])[step]);
        others.push_back(median(peers));
        slower += mine[step] > others.back() * (1 + kLeastSlowness / 2);
      }
      const double slowness = median(others) > 0 ? median(mine) / median(others) - 1 : 0;
      if (slowness <= worst) continue;
      worst = slowness;
      const double gain = (median(mine) - median(others)) / s.in.trace.step_s();
      // In nearly every step, or chance held it up.
      d.found = slowness >= kLeastSlowness && mine.size() >= 3 && slower * 4 >= int(mine.size()) * 3;
      d.gain_share = std::clamp(gain, 0.0, 1.0);
      d.evidence = {fmt::format("rank {} works {} per step, its peers {} (median of {})",
                                s.in.trace.ranks[i].rank, human_seconds(median(mine)),
                                human_seconds(median(others)), counted(mine.size(), "traced step")),
                    fmt::format("ranks wait for slower ones in {}",
                                percent_of_step(s.share(Use::peers) + s.share(Use::agree)))};
      d.number = fmt::format("rank {} takes {:.0f} % longer", s.in.trace.ranks[i].rank, 100 * slowness);
    }
  }
  if (d.number.empty()) d.number = stages.empty() ? "no ranks were traced" : "no rank has peers in its stage";
  if (!d.found && worst > 0) d.number = fmt::format("the slowest rank takes {:.1f} % longer", 100 * worst);
  d.to = "the machine of that rank: other processes, clock, memory; or leave it out";
  return d;
}

// Another order of axes over the same machines.
Diagnosis wrong_placement(const Symptoms& s) {
  Diagnosis d{.id = "wrong_placement",
              .title = "Ranks that send the most are not the nearest",
              .evidence = {},
              .measured = false};
  d.number = s.in.cluster && s.in.cluster->nodes > 1 ? "order \"" + s.run.layout.order + "\""
                                                     : "one node: every rank is as near";
  if (!s.in.cluster || s.in.cluster->nodes < 2 || s.run.world() <= s.in.cluster->devices_per_node) return d;
  double best = 0;
  for (const char* order : {"pp dp cp tp", "dp pp cp tp", "pp cp dp tp", "dp cp pp tp", "cp dp pp tp"}) {
    if (s.run.layout.order == order) continue;
    const std::optional<double> gain = s.priced_gain({fmt::format("layout.order={}", order)});
    if (gain && *gain > best) {
      best = *gain;
      d.to = fmt::format("\"{}\"", order);
    }
  }
  d.gain_share = best;
  d.found = best >= kLeastGain;
  if (best == 0) {
    d.number += not_faster(s, "no other");
    return d;
  }
  d.number += fmt::format("; the best other order is {:.1f} % faster", 100 * best);
  d.key = "layout.order";
  d.from = fmt::format("\"{}\"", s.run.layout.order);
  d.evidence.push_back(fmt::format("planned with order = {}: {:.1f} % less time per step", d.to, 100 * best));
  for (const TracedGroup& g : s.in.trace.groups)
    if (g.wire_bytes > 0)
      d.evidence.push_back(fmt::format("{}: {} sent, {:.3g} GB/s after all ranks arrived", g.name,
                                       human_bytes(g.wire_bytes),
                                       g.moved_s > 0 ? double(g.wire_bytes) / g.moved_s * 1e-9 : 0.0));
  return d;
}

Diagnosis launch_overhead(const Symptoms& s) {
  Diagnosis d{.id = "launch_overhead", .title = "The host cannot launch ops fast enough", .evidence = {}};
  if (!s.in.trace.any()) {
    d.number = s.in.trace.why_not;
    return d;
  }
  const double share = s.share(Use::launch);
  int64_t calls = 0;
  double seconds = 0;
  for (const TracedOp& o : s.in.trace.ops) {
    calls += o.calls;
    seconds += o.seconds;
  }
  const double mean = seconds / double(std::max<int64_t>(1, calls));
  d.number = percent_of_step(share);
  d.found = share >= kLeastLaunch && mean * 1e9 < double(kShortOp);
  d.gain_share = share / 2;
  d.measured = false;
  d.evidence.push_back(fmt::format(
      "{} between {} per step, {} each; an op takes {}", human_seconds(s.in.trace.per_step(Use::launch)),
      counted(int64_t(double(calls) / std::max(1.0, s.in.trace.rank_steps())), "op"),
      human_seconds(s.in.trace.per_step(Use::launch) * std::max(1.0, s.in.trace.rank_steps()) /
                    double(std::max<int64_t>(1, calls))),
      human_seconds(mean)));
  if (s.run.train.device == "cuda" && s.run.train.graphs == "off") {
    d.key = "train.graphs";
    d.from = "\"off\"";
    d.to = "\"auto\"";
  } else if (s.run.microbatches() % 2 == 0 &&
             (!s.in.price || s.priced_gain({fmt::format("batch.micro={}", 2 * s.run.batch.micro)}))) {
    d.key = "batch.micro", d.from = std::to_string(s.run.batch.micro),
    d.to = std::to_string(2 * s.run.batch.micro);
  } else {
    d.to = "fewer threads per rank, or a larger batch";
  }
  return d;
}

}  // namespace trireme
