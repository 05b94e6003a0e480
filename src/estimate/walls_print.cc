// Walls in words and as JSON.
#include "estimate/walls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/progress.h"
#include "base/units.h"
#include "catalog/constants.h"
#include "cost/checkpoint_interval.h"
#include "cost/flops.h"
#include "cost/goodput.h"
#include "cost/step_memory.h"
#include "cost/walls.h"
#include "forecast/scaled_run.h"
#include "spec/size_rule.h"

namespace trireme {
namespace {

std::string heading(const WallsCase& c) {
  std::string s;
  if (c.parameters > 0) {
    s += fmt::format("{}: P = {} parameters", c.name, human_count(c.parameters));
    if (c.active < c.parameters)
      s += fmt::format(", N = {} of them visited by a token", human_count(c.active));
    s += "\n";
  }
  if (!c.device.empty())
    s += fmt::format("{} x {}: {} dense, {} at {}{}\n", grouped(double(c.gpus)), c.device,
                     decimal(c.figures.bf16, "FLOP/s"), decimal(c.figures.memory, "B"),
                     decimal(c.figures.bandwidth, "B/s"),
                     c.device_source.empty() ? "" : " (" + c.device_source + ")");
  return s;
}

// Numbers that decide, the first ones before others.
constexpr std::array<std::string_view, 22> kFirst = {"state",
                                                     "zero0",
                                                     "zero1",
                                                     "zero2",
                                                     "zero3",
                                                     "total",
                                                     "seconds",
                                                     "mfu",
                                                     "device_hours",
                                                     "cost",
                                                     "energy_kwh",
                                                     "gradients_sent",
                                                     "bubble",
                                                     "all_to_all_over_sums",
                                                     "save_every_s",
                                                     "mtbf_s",
                                                     "flops",
                                                     "activations",
                                                     "budget_hours",
                                                     "wasted_share",
                                                     "devices_at_least",
                                                     "state_and_activations"};

// Removes lines until the text fits a screen. Returns their number.
size_t fit_screen(std::vector<WorkedSection>& sections, size_t heading_lines, bool of_run) {
  constexpr size_t kScreen = 23;  // and a note and its blank line before it
  const auto rank = [&](const Worked& w) {
    const std::string_view key = of_run && w.key == "flops_exact" ? "flops" : std::string_view(w.key);
    return size_t(std::find(kFirst.begin(), kFirst.end(), key) - kFirst.begin());
  };
  size_t lines = heading_lines + 2 * sections.size();  // titles, with a blank line or the last one below
  std::vector<size_t> ranks;
  for (const WorkedSection& s : sections)
    for (const Worked& w : s.lines) ranks.push_back(rank(w));
  if (lines + ranks.size() <= kScreen) return 0;
  const size_t kept = kScreen - std::min(kScreen, lines);
  std::stable_sort(ranks.begin(), ranks.end());
  const size_t most = ranks.at(std::min(kept, ranks.size() - 1));  // lines of this rank and above may go
  size_t below = 0;
  for (const size_t r : ranks) below += r < most ? 1 : 0;
  size_t equal = kept - std::min(kept, below), removed = 0;
  for (WorkedSection& s : sections)
    removed += std::erase_if(s.lines, [&](const Worked& w) {
      if (rank(w) != most) return rank(w) > most;
      if (equal == 0) return true;
      --equal;
      return false;
    });
  std::erase_if(sections, [](const WorkedSection& s) { return s.lines.empty(); });
  return removed;
}
}  // namespace

std::string walls_text(const WallsCase& c, bool arithmetic, bool all) {
  std::string s = heading(c);
  std::vector<WorkedSection> sections = walls_of(c);
  const size_t left_out =
      all || arithmetic ? 0 : fit_screen(sections, size_t(std::count(s.begin(), s.end(), '\n')), c.of_run);
  for (const WorkedSection& section : sections) {
    s += fmt::format("{}{} wall\n", s.empty() ? "" : "\n", section.name);
    for (const Worked& w : section.lines) {
      s += fmt::format("  {:<46} {}\n", w.what, w.text);
      if (!arithmetic || w.formula.empty()) continue;
      s += w.numbers.empty() ? fmt::format("      = {}\n", w.formula)
                             : fmt::format("      = {}: {}\n", w.formula, w.numbers);
    }
  }
  if (left_out > 0)
    s += fmt::format("--all prints {} further numbers, --arithmetic their formulas too\n", left_out);
  return s;
}

std::string walls_json(const WallsCase& c) {
  nlohmann::ordered_json j;
  if (c.parameters > 0) j["model"] = {{"name", c.name}, {"parameters", c.parameters}, {"active", c.active}};
  if (!c.device.empty())
    j["device"] = {
        {"name", c.device}, {"flops", c.figures.bf16}, {"memory", c.figures.memory}, {"gpus", c.gpus}};
  for (const WorkedSection& section : walls_of(c))
    for (const Worked& w : section.lines) {
      auto& to = j[section.name][w.key];
      to = {{"value", w.value}, {"unit", w.unit}, {"formula", w.formula}, {"numbers", w.numbers}};
      for (const auto& [key, value] : w.also) to[key] = value;
    }
  return j.dump(2);
}

}  // namespace trireme
