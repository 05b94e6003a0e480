#include "forecast/slowed.h"

#include <fmt/format.h>

#include "forecast/booked_step.h"
#include "forecast/searched_step.h"

namespace trireme {
namespace {

double booked_seconds(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                      const Disturbance& d) {
  return double(booked_step(run, schedule, cluster, threads, d).replay.makespan);
}

double world_seconds(World w, const Disturbance& d) {
  w.disturbed = d;
  return double(replay_world(w).replay.makespan);
}

std::string words_of(const Disturbance& d) {
  std::string s;
  for (const auto& [rank, by] : d.slow_ranks)
    s += fmt::format("{}rank {} computing {:g} times as long", s.empty() ? "" : ", ", rank, by);
  for (const auto& [node, share] : d.slow_links)
    s += fmt::format("{}node {}'s link at {:g} of its bandwidth", s.empty() ? "" : ", ", node, share);
  return s;
}

}  // namespace

void slow_down(Forecast& f, Slowed s) {
  f.step_s *= s.times, f.time.step_s *= s.times, f.run_s *= s.times, f.cost *= s.times;
  f.low_s *= s.times;
  f.high_s *= s.times;
  for (Alternative& a : f.alternatives) a.step_s *= s.times;
  for (StageForecast& stage : f.stages) stage.step_s *= s.times;
  if (f.remedies)
    for (Remedy& r : f.remedies->found) r.step_s *= s.times;
  f.tokens_per_s /= s.times, f.mfu /= s.times, f.hfu /= s.times;
  f.slowed.push_back(std::move(s));
}

Slowed by_stragglers(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                     const Forecast& f, const Disturbance& d, const DeviceFigures& device) {
  Slowed s{.by = words_of(d)};
  if (f.closed_form && f.without.empty()) {
    if (const std::optional<ScaledRun> searched = searched_run(run, cluster, f.by)) {
      const World w = world_of(*searched);
      s.times = world_seconds(w, d) / world_seconds(w, {});
      return s;
    }
  }
  if (run.world() <= kMostBookedRanks) {
    const ClusterSpec priced = f.expected ? cluster : at_the_roof(cluster);
    s.times = booked_seconds(run, schedule, priced, threads, d) /
              booked_seconds(run, schedule, priced, threads, {});
    return s;
  }
  const World w = world_of({.run = run, .figures = device, .by = {}});
  s.times = world_seconds(w, d) / world_seconds(w, {});
  s.by += ", in closed form";
  return s;
}

}  // namespace trireme
