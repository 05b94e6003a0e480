// Holds a schedule against what its actions need. Everything is looked up in one table
// (places.h), filled once; then each action's needs are checked, and last the whole is run as a
// dataflow.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "schedule/faults.h"
#include "schedule/places.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

class Validator {
 public:
  explicit Validator(const Schedule& s) : s_(s), places_(s), holders_(size_t(s.stages)) {}

  std::vector<std::string> run() {
    place_all();
    check_complete();
    check_transfers();
    check_order();
    check_message_order();
    check_progress();
    check_recompute();
    check_replicas(s_);
    return warnings();
  }

 private:
  using Place = ActionPlace;
  template <class... A>
  [[noreturn]] void fail(Place here, fmt::format_string<A...> f, A&&... a) const {
    schedule_fault(s_, {&here, 1}, fmt::format(f, std::forward<A>(a)...));
  }
  template <class... A>
  [[noreturn]] void fail(const std::vector<Place>& here, fmt::format_string<A...> f, A&&... a) const {
    schedule_fault(s_, here, fmt::format(f, std::forward<A>(a)...));
  }

  Place place(Act kind, int stage, int mb) const { return places_.at(kind, stage, mb); }
  Place place(const Action& a) const { return places_.at(a); }
  bool has(Act kind, int stage, int mb) const { return place(kind, stage, mb).there(); }
  static Action action(Act kind, int stage, int mb) { return {kind, int16_t(stage), int16_t(mb)}; }
  // Of a microbatch that no rank takes through the stage: a rank that has the stage.
  int rank_of(int stage, int mb) const {
    if (s_.copies == 1) return holders_[size_t(stage)].front();
    const auto it = rank_of_.find(uint32_t(stage) << 16 | uint32_t(mb));
    return it == rank_of_.end() ? holders_[size_t(stage)].front() : it->second;
  }
  // Of a stage that nobody has: an action of the next stage that somebody has; of the last ones, an end.
  Place beside(int stage) const {
    for (int next = stage + 1; next < s_.stages; next++)
      if (!holders_[size_t(next)].empty()) {
        const int r = holders_[size_t(next)].front();
        const auto& actions = s_.ranks[size_t(r)];
        const auto a = std::find_if(actions.begin(), actions.end(),
                                    [&](const Action& one) { return one.stage == next; });
        return {r, int(a - actions.begin())};
      }
    return s_.ranks.empty() ? Place{} : end_of(int(s_.ranks.size()) - 1);
  }
  Place end_of(int rank) const { return {rank, rank < 0 ? -1 : int(s_.ranks[size_t(rank)].size()) - 1}; }

  void place_all() {
    for (int r = 0; r < int(s_.ranks.size()); r++) {
      for (int t = 0; t < int(s_.ranks[size_t(r)].size()); t++) {
        const Action& a = s_.ranks[size_t(r)][size_t(t)];
        if (a.stage < 0 || a.stage >= s_.stages) {
          fail({r, t}, "rank {}: {} names stage {} of {} (from 0)", r, to_text(a), a.stage, s_.stages);
        }
        if (has_microbatch(a.kind) ? a.mb < 0 || a.mb >= s_.microbatches : a.mb != -1) {
          fail({r, t}, "rank {}: {} names microbatch {} of {} (from 0)", r, to_text(a), a.mb,
               s_.microbatches);
        }
        hold(r, t, a);
        if (!has_microbatch(a.kind)) continue;
        const Place before = places_.put(a, {r, t});
        if (before.there()) {
          fail({{r, t}, before}, "rank {}: {} is there twice, at steps {} and {}", r, to_text(a), before.step,
               t);
        }
        again_ |= a.kind == Act::R;
        transfers_ |= a.kind >= Act::SendF;
      }
    }
  }

  // Notes that rank r has the action's stage, and takes its microbatch there.
  void hold(int r, int t, const Action& a) {
    std::vector<int>& holders = holders_[size_t(a.stage)];
    if (holders.empty() || holders.back() != r) {
      if (s_.copies == 1 && !holders.empty())
        fail({r, t}, "stage {} is on rank {} and on rank {}", a.stage, holders[0], r);
      if (int(holders.size()) == s_.copies)
        fail({r, t}, "stage {} is on ranks {} and on rank {}; it has {} copies", a.stage,
             fmt::join(holders, ", "), r, s_.copies);
      holders.push_back(r);
    }
    if (s_.copies == 1 || !has_microbatch(a.kind)) return;
    const auto [it, fresh] = rank_of_.try_emplace(uint32_t(a.stage) << 16 | uint32_t(a.mb), r);
    if (!fresh && it->second != r)
      fail({r, t}, "microbatch {} is in stage {} on rank {} and on rank {}", a.mb, a.stage, it->second, r);
  }

  void check_complete() {
    for (int stage = 0; stage < s_.stages; stage++) {
      const std::vector<int>& holders = holders_[size_t(stage)];
      if (holders.empty()) fail(beside(stage), "no rank has stage {} of {}", stage, s_.stages);
      if (int(holders.size()) < s_.copies)
        fail(end_of(holders.back()), "stage {} is on rank {} alone; it has {} copies", stage,
             fmt::join(holders, ", "), s_.copies);
      for (int mb = 0; mb < s_.microbatches; mb++) check_complete(stage, mb);
    }
  }

  void check_complete(int stage, int mb) {
    const int rank = rank_of(stage, mb);
    const bool b = has(Act::B, stage, mb), i = has(Act::I, stage, mb), w = has(Act::W, stage, mb);
    if (!has(Act::F, stage, mb)) fail(end_of(rank), "rank {}: {}F{} is missing", rank, stage, mb);
    if (b && (i || w)) {
      const Act twice = i ? Act::I : Act::W;
      fail(place(twice, stage, mb), "rank {}: {}{}{} is done by {}B{} already", rank, stage, name_of(twice),
           mb, stage, mb);
    }
    if (!b && !i && !w) {
      fail(end_of(rank), "rank {}: {}B{} (or {}I{} and {}W{}) is missing", rank, stage, mb, stage, mb, stage,
           mb);
    }
    if (!b && i != w) fail(end_of(rank), "rank {}: {}{}{} is missing", rank, stage, i ? "W" : "I", mb);
  }

  // A stage computes again what it needs for all of its microbatches, or for none.
  void check_recompute() const {
    if (!again_) return;
    std::vector<bool> again(size_t(s_.stages), false);
    for (const auto& actions : s_.ranks)
      for (const Action& a : actions)
        if (a.kind == Act::R) again[size_t(a.stage)] = true;
    for (int stage = 0; stage < s_.stages; stage++)
      for (int mb = 0; again[size_t(stage)] && mb < s_.microbatches; mb++) {
        if (has(Act::R, stage, mb)) continue;
        const Place back = place(Act::B, stage, mb), input = place(Act::I, stage, mb);
        const Place here = back.rank < 0 ? input : back;
        fail(here, "rank {}: {}R{} is missing; other microbatches of stage {} have theirs", here.rank, stage,
             mb, stage);
      }
  }

  // In a schedule that has transfers, each one has its other half, and every border between ranks has its
  // pair.
  void check_transfers() {
    if (!transfers_) return;
    for (int r = 0; r < int(s_.ranks.size()); r++) {
      for (int t = 0; t < int(s_.ranks[size_t(r)].size()); t++) {
        const Action& a = s_.ranks[size_t(r)][size_t(t)];
        const std::optional<Action> half = other_half(a);
        if (!half) continue;
        if (half->stage < 0 || half->stage >= s_.stages || rank_of(half->stage, a.mb) == r) {
          fail({r, t}, "rank {}: {} has no other rank at its far end", r, to_text(a));
        }
        if (place(*half).rank < 0)
          fail({r, t}, "rank {}: {} has no {} at its far end", r, to_text(a), to_text(*half));
      }
    }
  }

  static std::optional<Action> other_half(const Action& a) {
    switch (a.kind) {
      case Act::SendF:
        return action(Act::RecvF, a.stage + 1, a.mb);
      case Act::RecvF:
        return action(Act::SendF, a.stage - 1, a.mb);
      case Act::SendB:
        return action(Act::RecvB, a.stage - 1, a.mb);
      case Act::RecvB:
        return action(Act::SendB, a.stage + 1, a.mb);
      default:
        return std::nullopt;
    }
  }

  // The action that makes the gradient of a stage's input: I where the backward is split.
  Action input_grad(int stage, int mb) const {
    return action(has(Act::I, stage, mb) ? Act::I : Act::B, stage, mb);
  }

  // What must be done before `a` can run.
  class Needs {
   public:
    void push_back(Action a) { of_[n_++] = a; }
    const Action* begin() const { return of_.data(); }
    const Action* end() const { return of_.data() + n_; }

   private:
    std::array<Action, 3> of_;
    size_t n_ = 0;
  };
  Needs needs(const Action& a) const {
    const int s = a.stage, mb = a.mb;
    const auto crosses = [&](int other) { return transfers_ && rank_of(other, mb) != rank_of(s, mb); };
    Needs n;
    switch (a.kind) {
      case Act::F:
        if (s > 0) n.push_back(crosses(s - 1) ? action(Act::RecvF, s, mb) : action(Act::F, s - 1, mb));
        break;
      case Act::B:
      case Act::I:
        n.push_back(action(Act::F, s, mb));
        if (has(Act::R, s, mb)) n.push_back(action(Act::R, s, mb));
        if (s + 1 < s_.stages)
          n.push_back(crosses(s + 1) ? action(Act::RecvB, s, mb) : input_grad(s + 1, mb));
        break;
      case Act::W:
        n.push_back(action(Act::I, s, mb));
        break;
      case Act::R:
      case Act::SendF:
        n.push_back(action(Act::F, s, mb));
        break;
      case Act::SendB:
        n.push_back(input_grad(s, mb));
        break;
      case Act::RecvF:
      case Act::RecvB:
        n.push_back(*other_half(a));
        break;
      default:
        break;
    }
    return n;
  }

  void check_order() {
    for (int r = 0; r < int(s_.ranks.size()); r++) {
      for (int t = 0; t < int(s_.ranks[size_t(r)].size()); t++) {
        const Action& a = s_.ranks[size_t(r)][size_t(t)];
        for (const Action& need : needs(a)) {
          const Place p = place(need);
          if (p.rank < 0)
            fail({r, t}, "rank {}: {} needs {}, which is missing", r, to_text(a), to_text(need));
          if (p.rank == r && p.step > t) {
            fail({r, t}, "rank {}: {} comes before {}, which it needs", r, to_text(a), to_text(need));
          }
        }
      }
    }
  }

  // Messages carry no names: of those that go one way from one rank to another, the k-th sent is the k-th
  // received. Where the two sides say another order, a rank would take one microbatch's tensor for another's,
  // or wait for ever.
  void check_message_order() const {
    using Way = std::tuple<bool, int, int>;  // backward, from, to
    std::map<Way, std::vector<Place>> sent, received;
    for (int r = 0; r < int(s_.ranks.size()); r++)
      for (int t = 0; t < int(s_.ranks[size_t(r)].size()); t++) {
        const Action& a = s_.ranks[size_t(r)][size_t(t)];
        const std::optional<Action> half = other_half(a);
        if (!half) continue;
        const int other = place(*half).rank;
        const bool back = a.kind == Act::SendB || a.kind == Act::RecvB;
        const bool sends = a.kind == Act::SendF || a.kind == Act::SendB;
        (sends ? sent[{back, r, other}] : received[{back, other, r}]).push_back({r, t});
      }
    for (const auto& [way, sends] : sent) check_message_order(way, sends, received[way]);
  }
  void check_message_order(const std::tuple<bool, int, int>& way, const std::vector<Place>& sends,
                           const std::vector<Place>& receives) const {
    for (size_t k = 0; k < sends.size(); k++) {
      const Action &send = at(sends[k]), &receive = at(receives[k]);
      if (*other_half(send) == Action{receive.kind, receive.stage, receive.mb}) continue;
      fail({receives[k], sends[k]},
           "rank {} receives {} from rank {} as number {} of its {}, which sends {} then: both sides must "
           "have "
           "one order",
           std::get<2>(way), to_text(receive), std::get<1>(way), k,
           std::get<0>(way) ? "gradients" : "activations", to_text(send));
    }
  }
  const Action& at(Place p) const { return s_.ranks[size_t(p.rank)][size_t(p.step)]; }

  // Behind the last of the actions that are issued together with that at step t.
  int end_of_group(int r, int t) const {
    const auto& actions = s_.ranks[size_t(r)];
    const uint16_t id = actions[size_t(t)].overlap;
    for (t++; id != 0 && t < int(actions.size()) && actions[size_t(t)].overlap == id;) t++;
    return t;
  }

  // Runs all ranks until nothing moves. What then remains waits in a circle: each blocked rank waits for
  // another. Actions that are issued together wait for what any of them needs.
  void check_progress() {
    std::vector<int> next(s_.ranks.size(), 0);
    const auto waits_for = [&](int r) -> std::optional<Action> {
      const int begin = next[size_t(r)], end = end_of_group(r, begin);
      for (int t = begin; t < end; t++)
        for (const Action& need : needs(s_.ranks[size_t(r)][size_t(t)])) {
          const Place p = place(need);
          if (p.rank == r ? p.step >= end : p.step >= next[size_t(p.rank)]) return need;
        }
      return std::nullopt;
    };
    const auto blocked = [&](int r) { return next[size_t(r)] < int(s_.ranks[size_t(r)].size()); };
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < int(s_.ranks.size()); r++) {
        for (; blocked(r) && !waits_for(r); moved = true) next[size_t(r)] = end_of_group(r, next[size_t(r)]);
      }
    }
    int r = 0;
    while (r < int(s_.ranks.size()) && !blocked(r)) r++;
    if (r == int(s_.ranks.size())) return;
    for (size_t i = 0; i < s_.ranks.size(); i++)
      r = place(*waits_for(r)).rank;  // now surely inside the circle
    std::vector<std::string> circle;
    std::vector<Place> places;
    const int first = r;
    do {
      const Action need = *waits_for(r);
      circle.push_back(fmt::format("rank {} at {} waits for {}", r,
                                   to_text(s_.ranks[size_t(r)][size_t(next[size_t(r)])]), to_text(need)));
      places.push_back({r, next[size_t(r)]});
      r = place(need).rank;
    } while (r != first);
    fail(places, "deadlock: {}", fmt::join(circle, ", "));
  }

  // At most one for each stage.
  std::vector<std::string> warnings() const {
    std::vector<std::string> by_stage(size_t(s_.stages), std::string()), out;
    for (const auto& actions : s_.ranks) {
      std::vector<int> before(size_t(s_.stages), -1);
      for (const Action& a : actions) {
        if (a.kind != Act::B && a.kind != Act::W) continue;
        int& last = before[size_t(a.stage)];
        std::string& said = by_stage[size_t(a.stage)];
        if (a.mb < last && said.empty())
          said = fmt::format(
              "schedule: stage {} adds the weight gradient of microbatch {} after that of {}: "
              "results are not bit-identical to those of schedules in ascending order",
              a.stage, a.mb, last);
        last = a.mb;
      }
    }
    for (std::string& said : by_stage)
      if (!said.empty()) out.push_back(std::move(said));
    return out;
  }

  const Schedule& s_;
  ActionPlaces places_;
  std::vector<std::vector<int>> holders_;      // by stage
  std::unordered_map<uint32_t, int> rank_of_;  // of a microbatch in a stage, where stages have copies
  bool transfers_ = false, again_ = false;     // are there messages; is anything computed again
};

}  // namespace

std::vector<std::string> validate(const Schedule& s) {
  if (s.stages < 1 || s.microbatches < 1) {
    bad_request("schedule: {} stages and {} microbatches; right is at least one of each", s.stages,
                s.microbatches);
  }
  return Validator(s).run();
}

}  // namespace trireme
