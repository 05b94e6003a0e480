#include "sim/rank_program.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "program/lower.h"
#include "sim/op_pieces.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, kGroupKinds> kGroupNames = {"tp", "cp", "ep", "dp", "edp", "world"};

// The pieces of a rank's program as a tape, with their prices.
class TapeWriter {
 public:
  TapeWriter(const World& w, const RankShape& shape) : shape_(shape), message_bytes_(w.work.message_bytes) {
    out_.tape.streams = {"compute", "tp", "cp", "ep", "dp", "pp on", "pp back"};
    group_at_.fill(-1);
    for (size_t k = 0; k < kGroupKinds; k++) {
      if (w.mesh.size(axes_of(GroupKind(k))) == 1) continue;
      group_at_[k] = int(out_.kinds.size());
      out_.kinds.push_back(GroupKind(k));
      out_.tape.groups.push_back({std::string(kGroupNames[k]), {}});
    }
  }
  void action(std::string_view name, int mb) { action_ = name, mb_ = mb; }
  void op(int64_t time, std::string_view name, int32_t layer) { put({}, name, layer, time); }
  void call(int stream, GroupKind k, std::string_view name, int32_t layer, int64_t time) {
    put({.kind = PieceKind::call, .stream = stream, .group = group_at_[size_t(k)]}, name, layer, time);
  }
  void wait(int stream, int64_t mark) {
    put({.kind = PieceKind::wait, .on = stream, .mark = mark}, "wait", -1, 0);
  }
  int64_t issued(int stream) const { return issued_[size_t(stream)]; }
  void send(const Op& op, int stream, int64_t number, int64_t time) {
    put({.kind = PieceKind::send,
         .stream = stream,
         .peer = op.peer,
         .mark = number,
         .payload = message_bytes_,
         .wire = message_bytes_},
        action_, -1, time);
  }
  void receive(const Op& op, int64_t number) {
    put({.kind = PieceKind::recv, .peer = op.peer, .mark = number}, action_, -1, 0);
  }
  RankProgram end() {
    action_ = {};
    put({}, "end", -1, 0);
    return std::move(out_);
  }

 private:
  void put(Piece p, std::string_view name, int32_t layer, int64_t time) {
    p.name = out_.tape.keep(name), p.action = action_;
    if (layer >= 0) p.layer = out_.tape.keep(shape_.layers[size_t(layer)].name);
    p.microbatch = mb_;
    issued_[size_t(p.stream)]++;
    out_.tape.pieces.push_back(p);
    out_.prices.push_back({0, time});
  }

  const RankShape& shape_;
  int64_t message_bytes_;
  std::array<int, kGroupKinds> group_at_;  // in the tape's groups; -1 = one rank
  std::array<int64_t, kStreams> issued_{};
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

ShardPolicy policy_of(const World& w) {
  const auto grouped = [&](GroupKind k) { return w.mesh.size(axes_of(k)) > 1; };
  return {.zero = w.work.zero,
          .prefetch = w.work.prefetch,
          .reshard_last = w.work.reshard_last,
          .experts_in_weight = w.mesh.size(Axis::ep) > 1,
          .casts = w.work.cast,
          .bucket_bytes = w.work.bucket_bytes,
          .interleaves = w.work.interleave && (grouped(GroupKind::tp) || grouped(GroupKind::ep)),
          .by_stage = !w.work.by_layer};
}

RankProgram program_of(const World& w, int pp_rank) {
  const RankShape shape = shape_of(w, pp_rank);
  const Holders holders(w.schedule);
  const Program program =
      lower({.actions = w.schedule.ranks[size_t(pp_rank)], .holders = &holders}, shape, policy_of(w));
  TapeWriter out(w, shape);
  OpPieces<TapeWriter> pieces(w, pp_rank, shape, program, out);
  while (!pieces.ended()) pieces.next();
  return out.end();
}

}  // namespace trireme
