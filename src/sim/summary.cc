#include "sim/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace trireme {
namespace {

std::string verdict(bool same) {
  return same ? "exactly so" : "NOT what came out";
}

bool holds_as_published(const ScheduleTimeline& t, const Published& paper) {
  for (size_t r = 0; r < paper.held.size(); r++)
    if (paper.held[r] != t.held[r].all()) return false;
  int most = 0;
  for (const HeldPeak& h : t.held) most = std::max(most, h.all());
  return !paper.most_held || *paper.most_held == most;
}

}  // namespace

std::vector<double> held_by_rank(const ScheduleTimeline& t) {
  std::vector<double> all;
  for (const HeldPeak& h : t.held) all.push_back(double(h.all()) / t.chunks);
  return all;
}

std::string summary_of(const ScheduleTimeline& t, const std::optional<Published>& paper, double unit) {
  const auto shown = [&](int64_t time) { return fmt::format("{:.6g}", double(time) / unit); };
  std::string out = fmt::format(
      "bubble    {:.2f} % of a rank's own span, {:.2f} % of the makespan {}; longest idle {}\n",
      100 * t.bubble.own, 100 * t.bubble.of_makespan, shown(t.replay.makespan), shown(t.bubble.idle));
  if (paper)
    out += fmt::format("published idle {}{}\n", paper->idle_formula,
                       paper->idle ? fmt::format(", here {}: {}", shown(*paper->idle),
                                                 verdict(*paper->idle == t.bubble.idle))
                                   : "; no number for these times and microbatches");
  out += fmt::format("held      {:.6g} microbatches by rank\n", fmt::join(held_by_rank(t), " "));
  if (paper)
    out += fmt::format(
        "published held {}{}\n", paper->held_formula,
        paper->held.empty() && !paper->most_held ? "" : ": " + verdict(holds_as_published(t, *paper)));
  return out;
}

}  // namespace trireme
