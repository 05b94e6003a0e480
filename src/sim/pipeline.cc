#include "sim/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

class Writer {
 public:
  Writer(const Schedule& s, std::span<const StageTimes> times) : schedule_(s), times_(times) {
    if (times.size() != 1 && int(times.size()) != s.stages)
      bad_request("a schedule of {} stages with {} times of a stage; right are 1 or {}", s.stages,
                  times.size(), s.stages);
    owner_.assign(size_t(s.stages), -1);
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (const Action& a : s.ranks[r]) {
        transfers_ |= a.kind >= Act::SendF && a.kind <= Act::RecvB;
        int& owner = owner_.at(size_t(a.stage));
        if (owner >= 0 && owner != int(r) && has_microbatch(a.kind))
          bad_request("stage {} is on ranks {} and {}; a stage is on one", a.stage, owner, r);
        if (has_microbatch(a.kind)) owner = int(r);
      }
  }

  PipelineTapes run() {
    for (size_t r = 0; r < schedule_.ranks.size(); r++) {
      rank_ = int(r);
      tape_ = {}, prices_ = {};
      for (const Action& a : schedule_.ranks[r]) add(a);
      out_.tapes.push_back(std::move(tape_));
      out_.prices.push_back(std::move(prices_));
    }
    return std::move(out_);
  }

 private:
  const StageTimes& times(int stage) const { return times_[times_.size() == 1 ? 0 : size_t(stage)]; }
  bool elsewhere(int stage) const {
    return stage >= 0 && stage < schedule_.stages && owner_[size_t(stage)] != rank_;
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
    const int peer = owner_[size_t(to)];
    put({.kind = PieceKind::send,
         .stream = stream_to(peer, backward),
         .peer = peer,
         .mark = number(to, a.mb, backward)},
        {backward ? Act::SendB : Act::SendF, a.stage, a.mb}, times(a.stage).send);
  }
  void receive(const Action& a, int from, bool backward) {
    put({.kind = PieceKind::recv, .peer = owner_[size_t(from)], .mark = number(a.stage, a.mb, backward)},
        {backward ? Act::RecvB : Act::RecvF, a.stage, a.mb}, 0);
  }

  void add(const Action& a) {
    const StageTimes& t = times(a.stage);
    const bool own = !transfers_;  // the schedule leaves transfers to us
    switch (a.kind) {
      case Act::F:
        if (own && elsewhere(a.stage - 1)) receive(a, a.stage - 1, false);
        op(a, t.forward);
        if (own && elsewhere(a.stage + 1)) send(a, a.stage + 1, false);
        break;
      case Act::B:
      case Act::I:
        if (own && elsewhere(a.stage + 1)) receive(a, a.stage + 1, true);
        op(a, a.kind == Act::B ? t.input + t.weight : t.input);
        if (own && elsewhere(a.stage - 1)) send(a, a.stage - 1, true);
        break;
      case Act::W:
        op(a, t.weight);
        break;
      case Act::R:
        op(a, t.recompute);
        break;
      case Act::SendF:
        if (elsewhere(a.stage + 1)) send(a, a.stage + 1, false);
        break;
      case Act::SendB:
        if (elsewhere(a.stage - 1)) send(a, a.stage - 1, true);
        break;
      case Act::RecvF:
        if (elsewhere(a.stage - 1)) receive(a, a.stage - 1, false);
        break;
      case Act::RecvB:
        if (elsewhere(a.stage + 1)) receive(a, a.stage + 1, true);
        break;
      case Act::Step:
        op(a, t.step);
        break;
      default:
        break;
    }
  }

  const Schedule& schedule_;
  std::span<const StageTimes> times_;
  std::vector<int> owner_;  // by stage
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
    b.own = std::max(b.own, double(last - first - busy) / double(last - first));
    b.of_makespan = std::max(b.of_makespan, double(all.makespan - busy) / double(all.makespan));
  }
  return b;
}

}  // namespace trireme
