#include "sim/rank_program.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "program/lower.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, kGroupKinds> kGroupNames = {"tp", "cp", "ep", "dp", "edp", "world"};

// Streams of every program, in the order of Tape::streams.
enum : int { kCompute, kTp, kCp, kEp, kDp, kOn, kBack };

// Units of layer l of the rank: 2 l, and 2 l + 1 of its experts.
RankShape shape_of(const World& w, int pp_rank) {
  const WorldWork& work = w.work;
  const auto grouped = [&](GroupKind k) { return w.mesh.size(axes_of(k)) > 1; };
  const bool dp = grouped(GroupKind::dp), edp = grouped(GroupKind::edp);
  const std::vector<int> holder = rank_of_stages(w.schedule);
  RankShape shape;
  int64_t wire = 0;
  const auto unit = [&](size_t layer, bool experts, const LayerWork& of, bool shared) {
    const int64_t gather = experts ? of.gather_experts : of.gather;
    const int64_t reduce = experts ? of.reduce_experts : of.reduce;
    const int64_t begin = wire;
    wire += experts ? of.wire_experts : of.wire;
    const std::string& name = shape.layers[layer].name;
    shape.layers[layer].units.push_back(uint32_t(shape.units.size()));
    shape.units.push_back({.name = experts ? name + ".experts" : name,
                           .layer = layer,
                           .experts = experts,
                           .gathers = shared && work.zero == 3 && gather > 0,
                           .slots = shared && work.zero >= 2 && reduce > 0,
                           .reduces = shared && (reduce > 0 || gather > 0),
                           .begin = begin,
                           .end = wire});
  };
  for (int s = 0; s < w.schedule.stages; s++) {
    if (holder[size_t(s)] != pp_rank) continue;
    StageShape& stage = shape.stages.emplace_back();
    stage.stage = s;
    stage.first = shape.layers.size();
    for (const StageWork::Layer& l : work.stages[size_t(s)].layers) {
      const LayerWork& of = work.kinds[size_t(l.kind)];
      const size_t layer = shape.layers.size();
      shape.layers.push_back({.name = l.name, .units = {}, .recomputes = of.again.total() > 0});
      unit(layer, false, of, dp);
      if (of.gather_experts > 0 || of.reduce_experts > 0) unit(layer, true, of, edp);
    }
    stage.last = shape.layers.size();
  }
  return shape;
}

// A rank's program with the prices of its operations.
class TapeWriter {
 public:
  TapeWriter(const World& w, int pp_rank)
      : world_(w), work_(w.work), rank_(pp_rank), shape_(shape_of(w, pp_rank)) {
    out_.tape.streams = {"compute", "tp", "cp", "ep", "dp", "pp on", "pp back"};
    issued_.resize(out_.tape.streams.size());
    group_at_.fill(-1);
    for (size_t k = 0; k < kGroupKinds; k++) {
      if (w.mesh.size(axes_of(GroupKind(k))) == 1) continue;
      group_at_[k] = int(out_.kinds.size());
      out_.kinds.push_back(GroupKind(k));
      out_.tape.groups.push_back({std::string(kGroupNames[k]), {}});
    }
    for (const StageShape& s : shape_.stages)
      for (const StageWork::Layer& l : work_.stages[size_t(s.stage)].layers) layers_.push_back(&l);
  }

  RankProgram run() {
    const ShardPolicy policy{
        .zero = work_.zero,
        .prefetch = work_.prefetch,
        .reshard_last = work_.reshard_last,
        .experts_in_weight = world_.mesh.size(Axis::ep) > 1,
        .casts = work_.cast,
        .bucket_bytes = work_.bucket_bytes,
        .interleaves = work_.interleave && (grouped(GroupKind::tp) || grouped(GroupKind::ep)),
        .by_stage = !work_.own};
    const Holders holders(world_.schedule);
    const Program program =
        lower({.actions = world_.schedule.ranks[size_t(rank_)], .holders = &holders}, shape_, policy);
    marks_.resize(program.ops.size());
    size_t action = 0;
    for (size_t i = 0; i < program.ops.size(); i++) {
      while (action < program.actions.size() && int32_t(i) >= program.actions[action].end) action++;
      if (action < program.actions.size()) at(program.ops[i], program.actions, action);
      if (const auto beside = size_t(program.ops[i].by_turns); beside > 0) {  // passes alone: no marks
        by_turns(std::span(program.ops).subspan(i, 1 + beside), program.actions, action);
        i += beside;
        continue;
      }
      add(program.ops[i]);
      marks_[i] = issued_[kDp];
    }
    put({}, "end", {}, {}, 0);
    return std::move(out_);
  }

 private:
  const LayerWork& work(int32_t layer) const { return work_.kinds[size_t(layers_[size_t(layer)]->kind)]; }
  const std::string& layer_name(int32_t layer) const { return layers_[size_t(layer)]->name; }
  bool grouped(GroupKind k) const { return group_at_[size_t(k)] >= 0; }

  void put(Piece p, std::string_view name, std::string_view layer, std::string_view action, int64_t time) {
    p.name = out_.tape.keep(name), p.layer = out_.tape.keep(layer), p.action = action;
    p.microbatch = mb_;
    issued_[size_t(p.stream)]++;
    out_.tape.pieces.push_back(p);
    out_.prices.push_back({0, time});
  }
  void wait_for(int stream, int64_t mark) {
    put({.kind = PieceKind::wait, .on = stream, .mark = mark}, "wait", {}, action_, 0);
  }
  void call(int stream, GroupKind k, std::string_view name, std::string_view layer, int64_t time) {
    put({.kind = PieceKind::call, .stream = stream, .group = group_at_[size_t(k)]}, name, layer, action_,
        time);
  }

  // Sets the action and microbatch of an operation. Two interleaved actions share their operations; the
  // microbatch tells them apart.
  void at(const Op& op, std::span<const ActionOps> actions, size_t action) {
    const Action *a = &actions[action].action,
                 *other = &actions[action + size_t(actions[action].interleaved)].action;
    if (op.mb == other->mb) a = other;
    mb_ = a->mb;
    action_ = name_of(a->kind);
  }

  // A forward pass and the backward passes that alternate with it. Half of a pass's collectives are amid its
  // compute, as rows that go to their experts, and half after it. Collectives of tp and ep travel while the
  // other pass computes its next half.
  void by_turns(std::span<const Op> ops, std::span<const ActionOps> actions, size_t action) {
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
      at(*sides[side][std::min(next[side], sides[side].size() - 1)].op, actions, action);
      for (const auto& [stream, mark] : issued[side]) wait_for(stream, mark);
      issued[side].clear();
      if (ends) continue;
      const Half h = sides[side][next[side]++];
      const auto& [name, t] = pass_of(*h.op);
      const std::string& layer = layer_name(h.op->layer);
      if (const int64_t c = part(t.compute, h.second); c > 0) put({}, name, layer, action_, c);
      if (const int64_t c = part(t.cp, h.second); c > 0 && grouped(GroupKind::cp)) {
        call(kCp, GroupKind::cp, "exchange", layer, c);
        wait_for(kCp, issued_[kCp]);
      }
      const auto start = [&](GroupKind k, int stream, std::string_view kind, int64_t all) {
        const int64_t c = part(all, h.second);
        if (c == 0 || !grouped(k)) return;
        call(stream, k, kind, layer, c);
        issued[side].push_back({stream, issued_[size_t(stream)]});
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
  void pass(const Op& op, const PassTimes& t, std::string_view name) {
    const std::string& layer = layer_name(op.layer);
    if (t.compute > 0) put({}, name, layer, action_, t.compute);
    const auto collective = [&](GroupKind k, int stream, std::string_view kind, int64_t time) {
      if (time == 0 || !grouped(k)) return;
      call(stream, k, kind, layer, time);
      wait_for(stream, issued_[size_t(stream)]);
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
    const auto layer = int32_t(shape_.units[size_t(op.unit)].layer);
    const bool one = op.last <= op.unit + 1;
    const std::string_view what = one ? std::string_view(layer_name(layer)) : std::string_view();
    if (times[0] > 0) call(kDp, GroupKind::dp, name, what, times[0]);
    if (times[1] > 0) call(kDp, GroupKind::edp, name, what, times[1]);
  }

  void add(const Op& op) {
    switch (op.kind) {
      case OpKind::forward:
      case OpKind::again:
      case OpKind::input:
      case OpKind::weight:
        return pass(op, pass_of(op).second, pass_of(op).first);
      case OpKind::gather:
      case OpKind::spread:
        return replicas(op, "all_gather", &LayerWork::gather, &LayerWork::gather_experts);
      case OpKind::reduce:
        return replicas(op, work_.zero == 0 ? "all_reduce" : "reduce_scatter", &LayerWork::reduce,
                        &LayerWork::reduce_experts);
      case OpKind::arrive:
      case OpKind::retire:
        return wait_for(kDp, marks_[size_t(op.after)]);
      case OpKind::send:
        return put({.kind = PieceKind::send,
                    .stream = op.back ? kBack : kOn,
                    .peer = op.peer,
                    .mark = number(op.stage + (op.back ? -1 : 1), op),
                    .payload = work_.message_bytes,
                    .wire = work_.message_bytes},
                   action_, {}, action_, work_.message);
      case OpKind::receive:
        return put({.kind = PieceKind::recv, .peer = op.peer, .mark = number(op.stage, op)}, action_, {},
                   action_, 0);
      case OpKind::norm:
        if (grouped(GroupKind::world)) call(kCompute, GroupKind::world, "norm", {}, 0);
        return put({}, "Step", {}, action_, work_.update[size_t(rank_)]);
      case OpKind::update:
        return update(op);
      case OpKind::settle:
        if (issued_[kDp] > 0) wait_for(kDp, issued_[kDp]);
        return;
      default:  // memory alone, and receives that are only posted
        return;
    }
  }
  // A layer's experts are updated with it.
  void update(const Op& op) {
    const UnitShape& unit = shape_.units[size_t(op.unit)];
    if (!work_.own || unit.experts) return;
    put({}, "Step", layer_name(int32_t(unit.layer)), action_, work(int32_t(unit.layer)).update);
  }
  // The number of the message that stage `to` reads.
  int64_t number(int to, const Op& op) const {
    return (int64_t(op.mb) * world_.schedule.stages + to) * 2 + op.back;
  }

  const World& world_;
  const WorldWork& work_;
  int rank_;
  RankShape shape_;
  std::vector<const StageWork::Layer*> layers_;  // as the shape's
  std::array<int, kGroupKinds> group_at_;        // in the tape's groups; -1 = one rank
  std::vector<int64_t> issued_;                  // by stream
  std::vector<int64_t> marks_;                   // by operation: issued on dp when it had been
  int32_t mb_ = -1;
  std::string_view action_;
  RankProgram out_;
};

}  // namespace

std::string_view name_of(GroupKind k) {
  return kGroupNames[size_t(k)];
}

std::vector<Axis> axes_of(GroupKind k) {
  switch (k) {
    case GroupKind::tp:
      return {Axis::tp};
    case GroupKind::cp:
      return {Axis::cp};
    case GroupKind::ep:
      return {Axis::ep};
    case GroupKind::dp:
      return {Axis::dp, Axis::cp};
    case GroupKind::edp:
      return {Axis::edp};
    default:
      return {Axis::pp, Axis::dp, Axis::cp, Axis::tp};
  }
}

RankProgram program_of(const World& w, int pp_rank) {
  return TapeWriter(w, pp_rank).run();
}

}  // namespace trireme
