// Diagnoses of waiting: for input, checkpoints, storage, and the processor's clock.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/progress.h"
#include "base/timed.h"
#include "cost/checkpoint_interval.h"
#include "report/diagnose.h"

namespace trireme {
namespace {

constexpr double kLeastStall = 0.02;          // share of steps that waits for data
constexpr double kLeastClockLoss = 0.08;      // share of the clock
constexpr double kLeastDiskSpeed = 50e6;      // bytes/s of a checkpoint's write
constexpr int64_t kLeastDiskBytes = 4 << 20;  // smaller checkpoints measure the latency of a flush
constexpr double kLeastOthers = 0.10;         // share of all processors that other programs use

std::string percent_of(double share, std::string_view what) {
  return fmt::format("{:.1f} % of {}", 100 * share, what);
}

std::string cadence_text(const CountOrAuto& every) {
  return every.automatic ? "\"auto\"" : std::to_string(every.count);
}

}  // namespace

Diagnosis input_stall(const Symptoms& s) {
  Diagnosis d{.id = "input_stall", .title = "The run waits for input data", .evidence = {}};
  double waited = 0, all = 0;
  for (const StepLine* line : s.steps)
    if (known(line->data_s)) {
      waited += line->data_s;
      all += line->step_s;
    }
  const double share = all > 0 ? waited / all : 0, middle = s.median(&StepLine::data_s);
  d.number = percent_of(share, "each step");
  d.found = share >= kLeastStall && known(middle) && middle >= 0.5 * kLeastStall * s.step_s;
  d.gain_share = share;
  d.evidence.push_back(fmt::format("data_s is {} of {} (median of {})",
                                   human_seconds(known(middle) ? middle : 0), human_seconds(s.step_s),
                                   counted(s.steps.size(), "step")));
  if (s.share(Use::data) > 0)
    d.evidence.push_back(
        fmt::format("traced steps: {}", percent_of(s.share(Use::data), "the step waits for data")));
  const int64_t ahead = s.run.data.prefetch;
  d.key = ahead < 4 ? "data.prefetch" : "data.train";
  d.from = ahead < 4 ? std::to_string(ahead) : "the present storage";
  d.to = ahead < 4 ? "4" : "a faster disk, or a copy in memory";
  return d;
}

Diagnosis checkpoints_too_frequent(const Symptoms& s) {
  Diagnosis d{.id = "checkpoints_too_frequent", .title = "Checkpoints are too frequent", .evidence = {}};
  const SaveCosts c = save_costs(s.in.record);
  d.number = percent_of(c.share(), "the training time");
  const CountOrAuto& every = s.run.train.checkpoint_every;
  if (c.saves < 3 || every.automatic) return d;
  const double mtbf = (s.in.cluster ? *s.in.cluster : ClusterSpec()).mtbf_s(s.run.world());
  const double best_s = daly_interval(c.stall_median, mtbf);
  const int64_t best = std::max<int64_t>(1, int64_t(best_s / s.step_s));
  const double left = c.stall_median / std::max(best_s, c.stall_median);
  d.gain_share = std::max(0.0, c.share() - left);
  d.found = c.share() >= kLeastGain && best > every.count && d.gain_share >= 0.5 * c.share();
  d.evidence.push_back(fmt::format("{} held training up for {} of {}", counted(c.saves, "save"),
                                   human_seconds(c.stall_s), human_seconds(c.stall_s + c.steps_s)));
  d.evidence.push_back(fmt::format("a save costs {} (median); the best interval is {}, {} steps",
                                   human_seconds(c.stall_median), human_seconds(best_s), best));
  d.key = "train.checkpoint_every";
  d.from = cadence_text(every);
  d.to = "\"auto\"";
  return d;
}

Diagnosis slow_storage(const Symptoms& s) {
  Diagnosis d{.id = "slow_storage", .title = "The storage of checkpoints is slow", .evidence = {}};
  const SaveCosts c = save_costs(s.in.record);
  const int64_t bytes = s.in.record.checkpoint_bytes;
  const double speed = c.bytes_per_s(bytes);
  d.number = speed > 0 ? fmt::format("{}/s", human_bytes(int64_t(speed))) : "no save was measured";
  if (c.written == 0 || bytes < kLeastDiskBytes) return d;
  d.gain_share = c.share();
  // An asynchronous write delays training only if the next save waits for it.
  const double between = c.steps_s / double(std::max<int64_t>(1, c.saves));
  const bool in_the_way = !s.run.train.async_save || c.write_s / double(c.written) > 0.5 * between;
  // Saves that are too frequent cost the same stalls, and fewer of them cost less on any storage.
  d.found = speed < kLeastDiskSpeed && c.share() >= 0.01 && in_the_way && !checkpoints_too_frequent(s).found;
  d.evidence.push_back(fmt::format("a checkpoint of {} takes {} to write", human_bytes(bytes),
                                   human_seconds(c.write_s / double(c.written))));
  d.evidence.push_back(
      fmt::format("saves hold training up for {}", percent_of(c.share(), "the training time")));
  d.key = s.run.train.async_save ? "train.dir" : "train.async_save";
  d.from = s.run.train.async_save ? "the present disk" : "false";
  d.to = s.run.train.async_save ? "a faster disk" : "true";
  return d;
}

// The clock itself is measured (train/event_file.h); steps that became slower as much confirm it.
Diagnosis clock_throttling(const Symptoms& s) {
  Diagnosis d{.id = "clock_throttling", .title = "The processor's clock fell", .evidence = {}};
  std::vector<std::pair<int64_t, double>> clocks;
  for (const RunEvent& e : s.in.record.events)
    if (const auto it = e.all.find("clock"); it != e.all.end() && it->is_number())
      clocks.emplace_back(e.step, it->get<double>());
  if (clocks.size() < 3) {
    d.number = "fewer than three measurements of the clock";
    return d;
  }
  double first = 0;
  const size_t early = std::max<size_t>(1, clocks.size() / 4);
  for (size_t i = 0; i < early; i++) first = std::max(first, clocks[i].second);
  std::vector<double> late;
  for (size_t i = clocks.size() - std::max<size_t>(1, clocks.size() / 3); i < clocks.size(); i++)
    late.push_back(clocks[i].second);
  const double best_late = *std::max_element(late.begin(), late.end());
  const double loss = first > 0 ? 1 - best_late / first : 0;
  d.number = fmt::format("the clock changed by {:+.1f} %", -100 * loss);
  // Seconds of compute before and after.
  std::vector<double> before, after;
  const int64_t border = clocks[clocks.size() - late.size()].first;
  for (const StepLine* line : s.steps) {
    const double t = line->forward_s + line->backward_s;
    if (known(t)) (line->step < border ? before : after).push_back(t);
  }
  if (before.empty() || after.empty()) return d;
  before.resize(std::max<size_t>(1, before.size() / 3));
  const double a = median(before), b = median(after);
  d.gain_share = loss;
  d.found = loss >= kLeastClockLoss && b > a * (1 + loss / 2);
  d.evidence.push_back(fmt::format("{} measurements under load: {:.3f} at first, {:.3f} at last",
                                   clocks.size(), first, best_late));
  d.evidence.push_back(fmt::format("forward and backward took {} at first and {} at last", human_seconds(a),
                                   human_seconds(b)));
  d.key = "";
  d.from = "";
  d.to = "cooling, power limits and the governor of the machine";
  return d;
}

// Between two measurements of the clock a run counts how much of the processors others used
// (train/event_file.h).
Diagnosis busy_machine(const Symptoms& s) {
  Diagnosis d{
      .id = "busy_machine",
      .title = "Other programs use the processors",
      .evidence = {},
      .to = "the other programs on this machine, or its neighbours if it is virtual; or fewer threads",
      .measured = false};
  if (s.run.world() > 1 && s.run.train.comm != "thread") {
    d.number = "not told apart from the run's other processes";
    return d;
  }
  std::vector<double> shares;
  for (const RunEvent& e : s.in.record.events)
    if (const auto it = e.all.find("others_cpu"); it != e.all.end() && it->is_number())
      shares.push_back(std::clamp(it->get<double>(), 0.0, 1.0));
  if (shares.empty()) {
    d.number = "not measured";
    return d;
  }
  double others = 0;
  for (double share : shares) others += share / double(shares.size());
  d.number = percent_of(others, "the processors");
  if (s.run.train.device != "cpu" || others < kLeastOthers) return d;
  // Cores that the run wants. It loses those of them that others use.
  double cores = 0, threads = 0;
  if (const RunEvent* start = s.in.record.last_start()) {
    const auto number = [start](const char* at) {
      const nlohmann::json::json_pointer p(at);
      return start->all.contains(p) && start->all[p].is_number() ? start->all[p].get<double>() : 0.0;
    };
    cores = number("/machine/cores");
    threads = number("/launch/threads") * double(s.run.world());
  }
  const double wanted = cores > 0 && threads > 0 ? std::min(1.0, threads / cores) : 1;
  d.gain_share = std::clamp((wanted - (1 - others)) / wanted, 0.0, 1.0);
  // A step without the others takes as long as the plan says, or what was measured is something else.
  if (s.base.step_s > 0) d.gain_share = std::min(d.gain_share, std::max(0.0, 1 - s.base.step_s / s.step_s));
  d.found = d.gain_share >= kLeastGain;
  d.evidence.push_back(fmt::format("{}: {:.0f} to {:.0f} % of all cores",
                                   counted(shares.size(), "measurement"),
                                   100 * *std::min_element(shares.begin(), shares.end()),
                                   100 * *std::max_element(shares.begin(), shares.end())));
  if (cores > 0 && threads > 0)
    d.evidence.push_back(
        fmt::format("the run wants {:.0f} of {}", std::min(threads, cores), counted(int64_t(cores), "core")));
  return d;
}

}  // namespace trireme
