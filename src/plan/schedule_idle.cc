#include "plan/schedule_idle.h"

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
  // message: from one rank to another, in parts.
  Clock(const Schedule& s, const PassParts& parts, int message = 0)
      : s_(s),
        parts_(parts),
        message_(message),
        holder_(rank_of_stages(s)),
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
    const int64_t end = ends[at(from, to.mb)];
    const bool travels = holder_[size_t(from)] != holder_[size_t(to.stage)];
    return end == kNever ? kNever : end + (travels ? message_ : 0);
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
  int message_;
  std::vector<int> holder_;
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

// ---- messages ----

// Finer parts, for messages are short.
constexpr int kFiner = 64;

bool in_two(std::string_view schedule) {
  return schedule != "1f1b" && schedule != "gpipe" && schedule != "interleaved";
}

// Of a schedule with messages of so many fine parts, by which it is longer than with none.
int64_t waits(std::string_view name, int chunks, int64_t p, int64_t m, const PassParts& parts, int message) {
  thread_local std::map<std::tuple<std::string, int, int64_t, int64_t, PassParts, int>, int64_t> known;
  const auto [it, fresh] = known.try_emplace({std::string(name), chunks, p, m, parts, message}, 0);
  if (!fresh) return it->second;
  const PassParts fine = {parts.forward * kFiner, parts.input * kFiner, parts.weight * kFiner};
  const Schedule s = make_schedule(name, int(p), chunks, int(m));
  return it->second = Clock(s, fine, message).makespan() - Clock(s, fine).makespan();
}

// Between lengths that are timed: a line; the waits are a convex function of the length, so a little too
// long.
double waits_between(std::string_view name, int chunks, int64_t p, int64_t m, const PassParts& parts,
                     double message) {
  constexpr int kShortest = 16;
  if (message <= 0) return 0;
  int low = 0, high = kShortest;
  while (high < message && high < 1 << 24) low = high, high *= 2;
  const double below = low == 0 ? 0 : double(waits(name, chunks, p, m, parts, low));
  const double above = double(waits(name, chunks, p, m, parts, high));
  return below + (above - below) * (message - low) / (high - low);
}

}  // namespace

double message_waits(std::string_view schedule, int64_t chunks, int64_t stages, int64_t microbatches,
                     const PassShares& shares, double message) {
  const double all = shares.forward + shares.input + shares.weight;
  if (stages <= 1 || !(all > 0) || !(message > 0)) return 0;
  PassParts parts = parts_of(shares);
  if (!in_two(schedule)) parts.input += parts.weight, parts.weight = 0;
  const bool interleaved = schedule == "interleaved";
  const int64_t p = std::min(stages, kExactStages), turns = interleaved ? 3 : kExactTurns;
  int64_t m = p == stages ? microbatches : std::llround(double(microbatches * p) / double(stages));
  if (interleaved) m = (m + p - 1) / p * p;
  m = std::max<int64_t>(interleaved ? p : 1, m);
  const double fine = double(kFiner * chunks * parts.all());
  // Beyond a step of its own a message is as long as that: who has such links is not among the best.
  const double length = std::min(message / all, 1.0) * fine;
  const int64_t most = turns * p, before = most - (interleaved ? 1 : 2) * p;
  const auto of = [&](int64_t n) { return waits_between(schedule, int(chunks), p, n, parts, length); };
  double w = of(std::min(m, most));
  if (m > most) w += (w - of(before)) / double(most - before) * double(m - most);
  // More stages have as many more to fill and drain.
  w *= double(stages - 1) / double(p - 1);
  return w / fine * all * std::max(1.0, message / all);
}

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
