#include "forecast/schedule_idle.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {
namespace {

// Passes as whole parts, so that few cases are timed however many are asked for.
struct PassParts {
  int forward = 0, input = 0, weight = 0;
  int all() const { return forward + input + weight; }
  auto operator<=>(const PassParts&) const = default;
};
PassParts parts_of(const PassShares& s) {
  constexpr double kParts = 24;
  const double all = s.forward + s.input + s.weight;
  if (!(all > 0) || !std::isfinite(all)) return {8, 8, 8};
  const auto of = [&](double x) { return std::max(1, int(std::lround(kParts * x / all))); };
  return {of(s.forward), of(s.input), of(s.weight)};
}

// Ends of all passes of a schedule: what a rank does in its order, each as soon as what it needs is there.
class Clock {
 public:
  Clock(const Schedule& s, const PassParts& parts)
      : s_(s),
        parts_(parts),
        forward_(size_t(s.stages) * size_t(s.microbatches), kNever),
        input_(forward_),
        next_(s.ranks.size()),
        now_(s.ranks.size()) {}
  int64_t makespan() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < s_.ranks.size(); r++)
        while (next_[r] < s_.ranks[r].size() && issue(r)) moved = true;
    }
    return *std::max_element(now_.begin(), now_.end());
  }

 private:
  static constexpr int64_t kNever = -1;
  size_t at(int stage, int mb) const { return size_t(stage) * size_t(s_.microbatches) + size_t(mb); }
  // When what the action needs is there; kNever: not yet known.
  int64_t ready(const Action& a) const {
    if (a.kind == Act::F) return a.stage == 0 ? 0 : sent(forward_, a.stage - 1, a);
    if (a.kind == Act::I || a.kind == Act::B)
      return a.stage == s_.stages - 1 ? 0 : sent(input_, a.stage + 1, a);
    return 0;
  }
  int64_t sent(const std::vector<int64_t>& ends, int from, const Action& to) const {
    return ends[at(from, to.mb)];
  }
  int length(Act kind) const {
    if (kind == Act::F) return parts_.forward;
    if (kind == Act::I) return parts_.input;
    if (kind == Act::W) return parts_.weight;
    return kind == Act::B ? parts_.input + parts_.weight : 0;
  }
  // The next action, with those that are issued together with it. false: it has to wait for another rank.
  bool issue(size_t r) {
    const std::vector<Action>& all = s_.ranks[r];
    size_t end = next_[r] + 1;
    while (end < all.size() && all[end].overlap != 0 && all[end].overlap == all[next_[r]].overlap) end++;
    int64_t begin = now_[r];
    for (size_t i = next_[r]; i < end; i++) {
      const int64_t t = ready(all[i]);
      if (t == kNever) return false;
      begin = std::max(begin, t);
    }
    for (size_t i = next_[r]; i < end; i++) begin += length(all[i].kind);
    for (size_t i = next_[r]; i < end; i++) {
      if (all[i].kind == Act::F) forward_[at(all[i].stage, all[i].mb)] = begin;
      if (all[i].kind == Act::I || all[i].kind == Act::B) input_[at(all[i].stage, all[i].mb)] = begin;
    }
    now_[r] = begin, next_[r] = end;
    return true;
  }
  const Schedule& s_;
  PassParts parts_;
  std::vector<int64_t> forward_, input_;
  std::vector<size_t> next_;
  std::vector<int64_t> now_;
};

// In parts; of schedules with two chunks a rank a stage has half of them each.
double idle(std::string_view name, int64_t p, int64_t m, const PassParts& parts) {
  thread_local std::map<std::tuple<std::string, int64_t, int64_t, PassParts>, double> known;
  const auto [it, fresh] = known.try_emplace({std::string(name), p, m, parts}, 0.0);
  if (!fresh) return it->second;
  const int chunks = default_chunks(name);
  const Schedule s = make_schedule(name, int(p), chunks, int(m));
  return it->second = double(Clock(s, parts).makespan()) / chunks - double(m * parts.all());
}

}  // namespace

double idle_of_1f1b(std::string_view schedule, int64_t stages, int64_t microbatches,
                    const PassShares& shares) {
  if (stages <= 1) return 0;
  const PassParts parts = parts_of(shares);
  const int64_t p = std::min(stages, kExactStages), most = kExactTurns * p, before = most - 2 * p;
  const int64_t m = std::max<int64_t>(
      1, p == stages ? microbatches : std::llround(double(microbatches * p) / double(stages)));
  double all = idle(schedule, p, std::min(m, most), parts);
  if (m > most) all += (all - idle(schedule, p, before, parts)) / double(most - before) * double(m - most);
  return std::max(0.0, all) / double((p - 1) * parts.all());
}

}  // namespace trireme
