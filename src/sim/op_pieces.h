// The pieces that operations of a rank's Program issue on its streams, with their prices: one rule for tapes
// (rank_program.h) and for clocks (step_clock.h).
#pragma once
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "program/lower.h"
#include "sim/rank_program.h"

namespace trireme {

// Streams of every program, in the order of Tape::streams.
enum : int { kCompute, kTp, kCp, kEp, kDp, kOn, kBack };
inline constexpr size_t kStreams = 7;

// The rank's layers, units and stages.
RankShape shape_of(const World&, int pp_rank);
ShardPolicy policy_of(const World&);

// Out has these functions. Times are in nanoseconds; layer -1: none.
//   void action(std::string_view name, int mb): applies to what follows
//   void op(int64_t time, std::string_view name, int32_t layer): on compute
//   void call(int stream, GroupKind, std::string_view name, int32_t layer, int64_t time)
//   void wait(int stream, int64_t mark): for all that was issued there before the mark
//   int64_t issued(int stream) const
//   void send(const Op&, int stream, int64_t number, int64_t time)
//   void receive(const Op&, int64_t number)
template <class Out>
class OpPieces {
 public:
  // All outlive it.
  OpPieces(const World& w, int pp_rank, const RankShape& shape, const Program& program, Out& out)
      : work_(w.work),
        stages_(w.schedule.stages),
        rank_(pp_rank),
        shape_(shape),
        program_(program),
        out_(out) {
    for (size_t k = 0; k < kGroupKinds; k++) grouped_[k] = w.mesh.size(axes_of(GroupKind(k))) > 1;
    for (const StageShape& s : shape_.stages)
      for (const StageWork::Layer& l : work_.stages[size_t(s.stage)].layers)
        layers_.push_back(&work_.kinds[size_t(l.kind)]);
    marks_.resize(program_.ops.size());
  }

  size_t at() const { return at_; }
  bool ended() const { return at_ == program_.ops.size(); }
  const Op& op() const { return program_.ops[at_]; }
  // The number of the message that this operation receives.
  int64_t number(const Op& receive) const { return number(receive.stage, receive); }
  // The next operation; passes by turns are one.
  void next() {
    const Op& op = program_.ops[at_];
    while (action_ < program_.actions.size() && int32_t(at_) >= program_.actions[action_].end) action_++;
    if (action_ < program_.actions.size()) context(op);
    if (const auto beside = size_t(op.by_turns); beside > 0) {  // passes alone: no marks
      by_turns(std::span(program_.ops).subspan(at_, 1 + beside));
      at_ += beside + 1;
      return;
    }
    add(op);
    marks_[at_++] = out_.issued(kDp);
  }

 private:
  const LayerWork& work(int32_t layer) const { return *layers_[size_t(layer)]; }
  bool grouped(GroupKind k) const { return grouped_[size_t(k)]; }

  // Two interleaved actions share their operations; the microbatch tells them apart.
  void context(const Op& op) {
    const Action *a = &program_.actions[action_].action,
                 *other = &program_.actions[action_ + size_t(program_.actions[action_].interleaved)].action;
    if (op.mb == other->mb) a = other;
    out_.action(name_of(a->kind), a->mb);
  }

  // A forward pass and the backward passes that alternate with it. Half of a pass's collectives are amid its
  // compute, as rows that go to their experts, and half after it. Collectives of tp and ep travel while the
  // other pass computes its next half.
  void by_turns(std::span<const Op> ops) {
    struct Half {
      const Op* op;
      bool second;
    };
    std::array<std::vector<Half>, 2> sides;
    for (const Op& op : ops)
      for (const bool second : {false, true}) sides[size_t(&op != ops.data())].push_back({&op, second});
    std::array<size_t, 2> next = {0, 0};
    std::array<std::vector<std::pair<int, int64_t>>, 2> issued;  // that a side waits for: stream, mark
    const auto part = [](int64_t all, bool second) { return second ? all - all / 2 : all / 2; };
    for (size_t side = 0;
         next[0] < sides[0].size() || next[1] < sides[1].size() || !issued[0].empty() || !issued[1].empty();
         side = 1 - side) {
      const bool ends = next[side] == sides[side].size();
      context(*sides[side][std::min(next[side], sides[side].size() - 1)].op);
      for (const auto& [stream, mark] : issued[side]) out_.wait(stream, mark);
      issued[side].clear();
      if (ends) continue;
      const Half h = sides[side][next[side]++];
      const auto& [name, t] = pass_of(*h.op);
      const int32_t layer = h.op->layer;
      if (const int64_t c = part(t.compute, h.second); c > 0) out_.op(c, name, layer);
      if (const int64_t c = part(t.cp, h.second); c > 0 && grouped(GroupKind::cp)) {
        out_.call(kCp, GroupKind::cp, "exchange", layer, c);
        out_.wait(kCp, out_.issued(kCp));
      }
      const auto start = [&](GroupKind k, int stream, std::string_view kind, int64_t all) {
        const int64_t c = part(all, h.second);
        if (c == 0 || !grouped(k)) return;
        out_.call(stream, k, kind, layer, c);
        issued[side].push_back({stream, out_.issued(stream)});
      };
      start(GroupKind::tp, kTp, "all_reduce", t.tp);
      start(GroupKind::ep, kEp, "all_to_all", t.ep);
    }
  }
  std::pair<std::string_view, const PassTimes&> pass_of(const Op& op) const {
    const LayerWork& w = work(op.layer);
    if (op.kind == OpKind::forward) return {"F", w.forward};
    if (op.kind == OpKind::again) return {"R", w.again};
    if (op.kind == OpKind::input) return {"I", w.input};
    return {"W", w.weight};
  }

  // One pass over one layer, compute first.
  void pass(const Op& op) {
    const auto& [name, t] = pass_of(op);
    if (t.compute > 0) out_.op(t.compute, name, op.layer);
    const auto collective = [&](GroupKind k, int stream, std::string_view kind, int64_t time) {
      if (time == 0 || !grouped(k)) return;
      out_.call(stream, k, kind, op.layer, time);
      out_.wait(stream, out_.issued(stream));
    };
    collective(GroupKind::tp, kTp, "all_reduce", t.tp);
    collective(GroupKind::cp, kCp, "exchange", t.cp);
    collective(GroupKind::ep, kEp, "all_to_all", t.ep);
  }

  // The collectives of units [op.unit, op.last) among replicas: one for the experts, one for the rest.
  void replicas(const Op& op, std::string_view name, int64_t LayerWork::*dense, int64_t LayerWork::*experts) {
    int64_t times[2] = {0, 0};
    for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++) {
      const UnitShape& unit = shape_.units[size_t(u)];
      if (unit.reduces) times[unit.experts] += work(int32_t(unit.layer)).*(unit.experts ? experts : dense);
    }
    const int32_t layer = op.last <= op.unit + 1 ? int32_t(shape_.units[size_t(op.unit)].layer) : -1;
    if (times[0] > 0) out_.call(kDp, GroupKind::dp, name, layer, times[0]);
    if (times[1] > 0) out_.call(kDp, GroupKind::edp, name, layer, times[1]);
  }

  void add(const Op& op) {
    switch (op.kind) {
      case OpKind::forward:
      case OpKind::again:
      case OpKind::input:
      case OpKind::weight:
        return pass(op);
      case OpKind::gather:
      case OpKind::spread:
        return replicas(op, "all_gather", &LayerWork::gather, &LayerWork::gather_experts);
      case OpKind::reduce:
        return replicas(op, work_.zero == 0 ? "all_reduce" : "reduce_scatter", &LayerWork::reduce,
                        &LayerWork::reduce_experts);
      case OpKind::arrive:
      case OpKind::retire:
        return out_.wait(kDp, marks_[size_t(op.after)]);
      case OpKind::send:
        return out_.send(op, op.back ? kBack : kOn, number(op.stage + (op.back ? -1 : 1), op), work_.message);
      case OpKind::receive:
        return out_.receive(op, number(op.stage, op));
      case OpKind::norm:
        if (grouped(GroupKind::world)) out_.call(kCompute, GroupKind::world, "norm", -1, 0);
        return out_.op(work_.update[size_t(rank_)], "Step", -1);
      case OpKind::update:
        return update(op);
      case OpKind::settle:
        if (out_.issued(kDp) > 0) out_.wait(kDp, out_.issued(kDp));
        return;
      default:  // memory alone, and receives that are only posted
        return;
    }
  }
  // A layer's experts are updated with it.
  void update(const Op& op) {
    const UnitShape& unit = shape_.units[size_t(op.unit)];
    if (!work_.by_layer || unit.experts) return;
    out_.op(work(int32_t(unit.layer)).update, "Step", int32_t(unit.layer));
  }
  // The number of the message that stage `to` reads.
  int64_t number(int to, const Op& op) const { return (int64_t(op.mb) * stages_ + to) * 2 + op.back; }

  const WorldWork& work_;
  int stages_, rank_;
  const RankShape& shape_;
  const Program& program_;
  Out& out_;
  std::array<bool, kGroupKinds> grouped_{};
  std::vector<const LayerWork*> layers_;  // as the shape's
  std::vector<int64_t> marks_;            // by operation: issued on dp when it had been
  size_t at_ = 0, action_ = 0;
};

}  // namespace trireme
