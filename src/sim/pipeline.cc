#include "sim/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace trireme {
namespace {

class Writer {
 public:
  Writer(const Schedule& s, std::span<const StageTimes> times) : schedule_(s), times_(times) {
    if (times.size() != 1 && int(times.size()) != s.stages)
      bad_request("a schedule of {} stages with {} times of a stage; right are 1 or {}", s.stages,
                  times.size(), s.stages);
    holder_.assign(size_t(s.stages), -1);
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (const Action& a : s.ranks[r]) {
        transfers_ |= a.kind >= Act::SendF && a.kind <= Act::RecvB;
        if (has_microbatch(a.kind)) hold(a, int(r));
      }
  }

  PipelineTapes run() {
    for (size_t r = 0; r < schedule_.ranks.size(); r++) {
      rank_ = int(r);
      tape_ = {}, prices_ = {};
      const std::vector<Action>& actions = schedule_.ranks[r];
      for (size_t begin = 0, end; begin < actions.size(); begin = end) {
        for (end = begin + 1; end < actions.size(); end++)
          if (actions[begin].overlap == 0 || actions[end].overlap != actions[begin].overlap) break;
        together({actions.data() + begin, end - begin});
      }
      out_.tapes.push_back(std::move(tape_));
      out_.prices.push_back(std::move(prices_));
    }
    return std::move(out_);
  }

 private:
  const StageTimes& times(int stage) const { return times_[times_.size() == 1 ? 0 : size_t(stage)]; }
  void hold(const Action& a, int rank) {
    int& holder = holder_.at(size_t(a.stage));
    if (schedule_.copies == 1 && holder >= 0 && holder != rank)
      bad_request("stage {} is on ranks {} and {}; a stage is on one", a.stage, holder, rank);
    holder = rank;
    if (schedule_.copies > 1) of_copy_[{a.stage, a.mb}] = rank;
  }
  int owner(int stage, int mb) const {
    if (schedule_.copies == 1) return holder_[size_t(stage)];
    const auto it = of_copy_.find({stage, mb});
    return it == of_copy_.end() ? -1 : it->second;
  }
  bool elsewhere(int stage, int mb) const {
    return stage >= 0 && stage < schedule_.stages && owner(stage, mb) != rank_;
  }
  // Messages by what they are of: the activations that stage `to` reads, the gradient that it reads.
  int64_t number(int to, int mb, bool backward) const {
    return (int64_t(mb) * schedule_.stages + to) * 2 + backward;
  }

  void put(Piece p, const Action& a, int64_t time) {
    p.name = p.action = name_of(a.kind);
    p.microbatch = a.mb;
    tape_.pieces.push_back(p);
    prices_.push_back({0, time});
  }
  void op(const Action& a, int64_t time) { put({}, a, time); }

  int stream_to(int peer, bool backward) {
    const std::string name = fmt::format("p2p {} {}", backward ? "back to" : "on to", peer);
    auto it = std::find(tape_.streams.begin(), tape_.streams.end(), name);
    if (it == tape_.streams.end()) it = tape_.streams.insert(it, name);
    return int(it - tape_.streams.begin());
  }
  void send(const Action& a, int to, bool backward) {
    const int peer = owner(to, a.mb);
    put({.kind = PieceKind::send,
         .stream = stream_to(peer, backward),
         .peer = peer,
         .mark = number(to, a.mb, backward)},
        {backward ? Act::SendB : Act::SendF, a.stage, a.mb}, times(a.stage).send);
  }
  void receive(const Action& a, int from, bool backward) {
    put({.kind = PieceKind::recv, .peer = owner(from, a.mb), .mark = number(a.stage, a.mb, backward)},
        {backward ? Act::RecvB : Act::RecvF, a.stage, a.mb}, 0);
  }

  // Actions that are issued together begin when all that they read is there, and what they make leaves when
  // all are done.
  void together(std::span<const Action> group) {
    for (const Action& a : group)
      if (!transfers_) receive_for(a);  // else the schedule has its own
    const size_t begin = prices_.size();
    for (const Action& a : group) add(a);
    hide(group, begin);
    for (const Action& a : group)
      if (!transfers_) send_of(a);
  }
  // What a pair of forward and backward takes less than both; it comes off the later one.
  void hide(std::span<const Action> group, size_t begin) {
    const auto first = [&](auto is) { return std::find_if(group.begin(), group.end(), is); };
    const auto f = first(forward), b = first(backward);
    if (f == group.end() || b == group.end()) return;
    int64_t less = std::min(times(f->stage).hidden, times(b->stage).hidden);
    for (size_t i = prices_.size(); i-- > begin;) {
      const int64_t part = std::min(less, prices_[i].time);
      prices_[i].time -= part, less -= part;
    }
  }
  static bool forward(const Action& a) { return a.kind == Act::F; }
  static bool backward(const Action& a) { return a.kind == Act::B || a.kind == Act::I; }
  void receive_for(const Action& a) {
    if (a.kind == Act::F && elsewhere(a.stage - 1, a.mb)) receive(a, a.stage - 1, false);
    if (backward(a) && elsewhere(a.stage + 1, a.mb)) receive(a, a.stage + 1, true);
  }
  void send_of(const Action& a) {
    if (a.kind == Act::F && elsewhere(a.stage + 1, a.mb)) send(a, a.stage + 1, false);
    if (backward(a) && elsewhere(a.stage - 1, a.mb)) send(a, a.stage - 1, true);
  }

  void add(const Action& a) {
    const StageTimes& t = times(a.stage);
    switch (a.kind) {
      case Act::F:
        return op(a, t.forward);
      case Act::B:
        return op(a, t.input + t.weight);
      case Act::I:
        return op(a, t.input);
      case Act::W:
        return op(a, t.weight);
      case Act::R:
        return op(a, t.recompute);
      case Act::Step:
        return op(a, t.step);
      case Act::SendF:
        if (elsewhere(a.stage + 1, a.mb)) send(a, a.stage + 1, false);
        break;
      case Act::SendB:
        if (elsewhere(a.stage - 1, a.mb)) send(a, a.stage - 1, true);
        break;
      case Act::RecvF:
        if (elsewhere(a.stage - 1, a.mb)) receive(a, a.stage - 1, false);
        break;
      case Act::RecvB:
        if (elsewhere(a.stage + 1, a.mb)) receive(a, a.stage + 1, true);
        break;
      default:
        break;
    }
  }

  const Schedule& schedule_;
  std::span<const StageTimes> times_;
  std::vector<int> holder_;                     // by stage; of copies the last
  std::map<std::pair<int, int>, int> of_copy_;  // by stage and microbatch, where stages have copies
  bool transfers_ = false;
  int rank_ = 0;
  Tape tape_;
  std::vector<Price> prices_;
  PipelineTapes out_;
};

}  // namespace

std::vector<RankTape> PipelineTapes::ranks() const {
  std::vector<RankTape> list;
  for (size_t r = 0; r < tapes.size(); r++) list.push_back({int(r), &tapes[r], prices[r]});
  return list;
}

PipelineTapes tapes_of(const Schedule& s, std::span<const StageTimes> times) {
  return Writer(s, times).run();
}

Bubble bubble(std::span<const RankTape> ranks, const Replay& all) {
  Bubble b;
  for (size_t r = 0; r < ranks.size(); r++) {
    int64_t busy = 0, first = -1, last = 0;
    for (size_t i = 0; i < ranks[r].tape->pieces.size(); i++) {
      const Piece& p = ranks[r].tape->pieces[i];
      const PieceTime& t = all.ranks[r].pieces[i];
      if (p.kind != PieceKind::op || p.stream != 0 || t.end == t.begin) continue;
      if (first < 0) first = t.begin;
      last = t.end, busy += t.end - t.begin;
    }
    if (busy == 0) continue;
    b.span = std::max(b.span, last - first);
    b.idle = std::max(b.idle, last - first - busy);
    b.own = std::max(b.own, double(last - first - busy) / double(last - first));
    b.of_makespan = std::max(b.of_makespan, double(all.makespan - busy) / double(all.makespan));
  }
  return b;
}

std::vector<HeldPeak> held_peaks(const Schedule& s) {
  std::vector<HeldPeak> peaks;
  for (const std::vector<Action>& actions : s.ranks) {
    HeldPeak peak;
    int before_input = 0, before_weight = 0;
    for (const Action& a : actions) {
      if (a.kind == Act::F) before_input++;
      if (a.kind == Act::B || a.kind == Act::I) before_input--;
      if (a.kind == Act::I) before_weight++;
      if (a.kind == Act::W) before_weight--;
      if (before_input + before_weight > peak.all())
        peak.before_input = before_input, peak.before_weight = before_weight;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace trireme
