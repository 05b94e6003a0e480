#include "schedule/faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error_lines.h"

namespace trireme {
namespace {

std::string grid(const Schedule& s, std::span<const ActionPlace> places) {
  constexpr int kSteps = 12, kRanks = 8;  // shown on either side of the first place
  const ActionPlace here = places.empty() ? ActionPlace{} : places[0];
  int steps = 0;
  size_t width = 8;
  for (const auto& actions : s.ranks) {
    steps = std::max(steps, int(actions.size()));
    for (const Action& a : actions) width = std::max(width, to_text(a).size() + 2);
  }
  const auto marked = [&](int r, int t) {
    return std::any_of(places.begin(), places.end(),
                       [&](const ActionPlace& p) { return p.rank == r && p.step == t; });
  };
  const int ranks = int(s.ranks.size());
  const int r0 = std::max(0, here.rank - kRanks), r1 = std::min(ranks, std::max(here.rank, 0) + kRanks + 1);
  const int t0 = std::max(0, here.step - kSteps), t1 = std::min(steps, std::max(here.step, 0) + kSteps + 1);
  std::string out = fmt::format("{:>6}", "step");
  for (int r = r0; r < r1; r++) out += fmt::format(" {:<{}}", fmt::format(" rank {}", r), width);
  out.resize(out.find_last_not_of(' ') + 1);
  if (r1 < ranks) out += " ...";
  if (t0 > 0) out += "\n   ...";
  for (int t = t0; t < t1; t++) {
    out += fmt::format("\n{:>6}", t);
    for (int r = r0; r < r1; r++) {
      const auto& actions = s.ranks[size_t(r)];
      const std::string token = t < int(actions.size()) ? to_text(actions[size_t(t)]) : "";
      const bool mark = marked(r, t);
      out += fmt::format(" {:<{}}", (mark ? "[" : " ") + token + (mark ? "]" : " "), width);
    }
    out.resize(out.find_last_not_of(' ') + 1);
    if (t == here.step) out += "  <-- here";
  }
  if (t1 < steps) out += "\n   ...";
  return out;
}

}  // namespace

void schedule_fault(const Schedule& s, std::span<const ActionPlace> places, const std::string& what) {
  std::vector<std::string> lines = {"schedule: " + what};
  const std::string drawing = grid(s, places);
  for (size_t begin = 0; begin < drawing.size();) {
    const size_t end = std::min(drawing.find('\n', begin), drawing.size());
    lines.push_back(drawing.substr(begin, end - begin));
    begin = end + 1;
  }
  throw ErrorLines(std::move(lines));
}

}  // namespace trireme
