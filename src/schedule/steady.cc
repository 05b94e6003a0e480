#include "schedule/steady.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace trireme {
namespace {

// Issued together with the action before?
bool joined(const std::vector<Action>& a, size_t i) {
  return i > 0 && a[i].overlap != 0 && a[i - 1].overlap == a[i].overlap;
}

bool alike(const std::vector<Action>& x, size_t i, const std::vector<Action>& y, size_t j, int later) {
  const Action &a = x[i], &b = y[j];
  return a.kind == b.kind && a.stage == b.stage && (a.mb < 0 ? b.mb < 0 : b.mb == a.mb + later) &&
         (a.overlap == 0) == (b.overlap == 0) && joined(x, i) == joined(y, j);
}

// By microbatch, where the forward of the rank's first stage is.
std::vector<size_t> forwards_of(const std::vector<Action>& actions, int microbatches) {
  std::vector<size_t> at(size_t(microbatches), actions.size());
  int stage = -1;
  for (size_t i = 0; i < actions.size(); i++) {
    const Action& a = actions[i];
    if (a.kind != Act::F || (stage >= 0 && a.stage != stage)) continue;
    stage = a.stage;
    at[size_t(a.mb)] = i;
  }
  return at;
}

int oldest(const std::vector<Action>& actions, size_t begin, size_t end) {
  int mb = std::numeric_limits<int>::max();
  for (size_t i = begin; i < end; i++)
    if (actions[i].mb >= 0) mb = std::min(mb, int(actions[i].mb));
  return mb;
}

Repeats repeats_of(const std::vector<Action>& actions, const std::vector<size_t>& forwards, int period) {
  const size_t middle = forwards.size() / 2;
  const size_t at = forwards[middle], next = forwards[middle + size_t(period)];
  if (next <= at || next >= actions.size()) return {};
  const size_t step = next - at;
  const Repeats part = repeats_around(at, step, actions.size(),
                                      [&](size_t i) { return alike(actions, i, actions, i + step, period); });
  // What follows goes on with the part's microbatches; all forwards of gpipe come before any backward.
  const int last = oldest(actions, part.end - part.step, part.end);
  return part.step > 0 && last <= oldest(actions, part.end, actions.size()) ? part : Repeats{};
}

}  // namespace

int SteadyPart::removable(size_t steps) const {
  size_t least = ranks.empty() ? 0 : ranks[0].times();
  for (const Repeats& r : ranks) least = std::min(least, r.times());
  return least > steps ? int(least - steps) * period : 0;
}

std::optional<SteadyPart> steady_part(const Schedule& s) {
  if (s.copies != 1) return {};
  std::vector<std::vector<size_t>> forwards;
  for (const std::vector<Action>& actions : s.ranks) forwards.push_back(forwards_of(actions, s.microbatches));
  const int most = std::min(2 * int(s.ranks.size()), s.microbatches / 2 - 1);
  for (int period = 1; period <= most; period++) {
    SteadyPart part{.period = period, .ranks = {}};
    for (size_t r = 0; r < s.ranks.size(); r++) {
      part.ranks.push_back(repeats_of(s.ranks[r], forwards[r], period));
      if (part.ranks.back().step == 0) break;
    }
    if (part.ranks.size() == s.ranks.size() && part.ranks.back().step > 0) return part;
  }
  return {};
}

Schedule shortened(const Schedule& s, const SteadyPart& part, int fewer) {
  require(fewer >= 0 && fewer % part.period == 0 && fewer <= part.removable(1),
          "a schedule is shortened by whole periods that it has");
  Schedule out = s;
  out.microbatches -= fewer;
  for (size_t r = 0; r < s.ranks.size(); r++) {
    const std::vector<Action>& from = s.ranks[r];
    std::vector<Action>& to = out.ranks[r];
    const size_t gone = part.ranks[r].step * size_t(fewer / part.period), cut = part.ranks[r].begin;
    to.erase(to.begin() + std::ptrdiff_t(cut), to.begin() + std::ptrdiff_t(cut + gone));
    for (size_t i = cut; i < to.size(); i++)
      if (to[i].mb >= 0) to[i].mb = int16_t(to[i].mb - fewer);
    // Two ids take turns: groups that did not follow each other may do so now.
    uint16_t id = 2;
    for (size_t i = 0; i < to.size(); i++) {
      if (to[i].overlap == 0) continue;
      if (!joined(from, i < cut ? i : i + gone)) id = uint16_t(3 - id);
      to[i].overlap = id;
    }
  }
  return out;
}

bool same_actions(const Schedule& a, const Schedule& b) {
  if (a.stages != b.stages || a.microbatches != b.microbatches || a.copies != b.copies ||
      a.ranks.size() != b.ranks.size())
    return false;
  for (size_t r = 0; r < a.ranks.size(); r++) {
    if (a.ranks[r].size() != b.ranks[r].size()) return false;
    for (size_t i = 0; i < a.ranks[r].size(); i++)
      if (!alike(a.ranks[r], i, b.ranks[r], i, 0)) return false;
  }
  return true;
}

size_t longest_life(const std::vector<Action>& actions, const Repeats& part) {
  std::vector<size_t> first;
  size_t most = 0;
  for (size_t i = 0; i < part.end; i++) {
    if (actions[i].mb < 0) continue;
    const auto mb = size_t(actions[i].mb);
    if (mb >= first.size()) first.resize(mb + 1, part.end);
    first[mb] = std::min(first[mb], i);
    if (i >= part.begin) most = std::max(most, i - first[mb] + 1);
  }
  return most;
}

}  // namespace trireme
