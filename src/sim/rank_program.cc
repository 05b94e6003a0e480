#include "sim/rank_program.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, kGroupKinds> kGroupNames = {"tp", "cp", "ep", "dp", "edp", "world"};

// Streams of every program, in the order of Tape::streams.
enum : int { kCompute, kTp, kCp, kEp, kDp, kOn, kBack };

class ProgramWriter {
 public:
  ProgramWriter(const World& w, int pp_rank)
      : world_(w), work_(w.work), schedule_(w.schedule), rank_(pp_rank) {
    out_.tape.streams = {"compute", "tp", "cp", "ep", "dp", "pp on", "pp back"};
    issued_.resize(out_.tape.streams.size());
    group_at_.fill(-1);
    for (size_t k = 0; k < kGroupKinds; k++) {
      if (w.mesh.size(axes_of(GroupKind(k))) == 1) continue;
      group_at_[k] = int(out_.kinds.size());
      out_.kinds.push_back(GroupKind(k));
      out_.tape.groups.push_back({std::string(kGroupNames[k]), {}});
    }
    holder_ = rank_of_stages(schedule_);
  }

  RankProgram run() {
    const std::vector<Action>& actions = schedule_.ranks[size_t(rank_)];
    if (work_.zero == 3) list_gathers(actions);
    for (size_t begin = 0, end; begin < actions.size(); begin = end) {
      end = end_of_group(actions, begin);
      unshards_ = reduces_ = {};
      unshards_ = unshard(actions, begin, end, gathered_), reduces_ = {};
      beside_ = beside_backward(actions, begin, end);
      for (size_t i = begin; i < end; i++)
        if (actions[i].kind == Act::ReduceGrad) reduces_.insert(actions[i].stage);
      for (size_t i = begin; i < end; i++) add(actions[i]);
    }
    put({}, "end", {}, {}, 0);
    return std::move(out_);
  }

 private:
  static size_t end_of_group(const std::vector<Action>& actions, size_t begin) {
    size_t end = begin + 1;
    while (end < actions.size() && actions[begin].overlap && actions[end].overlap == actions[begin].overlap)
      end++;
    return end;
  }
  const std::vector<StageWork::Layer>& layers(int stage) const { return work_.stages[size_t(stage)].layers; }
  const LayerWork& work(const StageWork::Layer& l) const { return work_.kinds[size_t(l.kind)]; }
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

  // One pass over one layer, compute first.
  void pass(const StageWork::Layer& l, const PassTimes& t, std::string_view op) {
    if (t.compute > 0) put({}, op, l.name, action_, t.compute);
    const auto collective = [&](GroupKind k, int stream, std::string_view name, int64_t time) {
      if (time == 0 || !grouped(k)) return;
      call(stream, k, name, l.name, time);
      wait_for(stream, issued_[size_t(stream)]);
    };
    collective(GroupKind::tp, kTp, "all_reduce", t.tp);
    collective(GroupKind::cp, kCp, "exchange", t.cp);
    collective(GroupKind::ep, kEp, "all_to_all", t.ep);
  }

  // ---- weights of ZeRO 3: gathered one layer ahead of the one that runs ----

  struct Gather {
    const StageWork::Layer* layer;
    bool dense;  // else experts' weights alone
    bool issued = false, issued_experts = false;
    int64_t dp_mark = 0;  // behind it on stream dp; 0: nothing travels
  };
  // Stages whose weights these actions gather: they are not there from before. Then `there` is as behind
  // them.
  static std::set<int> unshard(const std::vector<Action>& actions, size_t begin, size_t end,
                               std::set<int>& there) {
    std::set<int> stages;
    for (size_t i = begin; i < end; i++)
      if (actions[i].kind == Act::Unshard && there.insert(actions[i].stage).second)
        stages.insert(actions[i].stage);
    for (size_t i = begin; i < end; i++)
      if (actions[i].kind == Act::Reshard) there.erase(actions[i].stage);
    return stages;
  }
  // Stages whose recomputation is done in their backward pass, layer by layer.
  std::set<int> beside_backward(const std::vector<Action>& actions, size_t begin, size_t end) const {
    std::set<int> again, beside;
    for (size_t i = begin; work_.own && i < end; i++)
      if (actions[i].kind == Act::R) again.insert(actions[i].stage);
    for (size_t i = begin; i < end; i++)
      if ((actions[i].kind == Act::B || actions[i].kind == Act::I) && again.count(actions[i].stage))
        beside.insert(actions[i].stage);
    return beside;
  }
  // In the order of use; compute() walks the same way.
  void list_gathers(const std::vector<Action>& actions) {
    std::set<int> there;
    for (size_t begin = 0, end; begin < actions.size(); begin = end) {
      end = end_of_group(actions, begin);
      std::set<int> stages = unshard(actions, begin, end, there), dense;
      const std::set<int> beside = beside_backward(actions, begin, end);
      for (size_t i = begin; i < end; i++)
        if (uses_weights(actions[i].kind) && actions[i].kind != Act::W) dense.insert(actions[i].stage);
      for (size_t i = begin; i < end; i++) {
        const Action& a = actions[i];
        if (a.kind == Act::R && beside.count(a.stage)) continue;
        if (!uses_weights(a.kind) || !stages.erase(a.stage)) continue;
        walk(a, [&](const StageWork::Layer& l) { gathers_.push_back({&l, dense.count(a.stage) > 0}); });
      }
    }
  }
  // W alone uses experts' weights, if they are divided: rows that came may be computed again (add_zero).
  bool uses_weights(Act a) const {
    return a == Act::F || a == Act::B || a == Act::I || a == Act::R ||
           (a == Act::W && world_.mesh.size(Axis::ep) > 1);
  }
  void walk(const Action& a, const std::function<void(const StageWork::Layer&)>& each) const {
    const auto& all = layers(a.stage);
    if (a.kind == Act::F || a.kind == Act::R)
      std::for_each(all.begin(), all.end(), each);
    else
      std::for_each(all.rbegin(), all.rend(), each);
  }
  // experts: their weights too. trireme gathers one unit ahead, and a layer of experts has two.
  void issue_gather(size_t n, bool experts) {
    if (n >= gathers_.size()) return;
    Gather& g = gathers_[n];
    const LayerWork& w = work(*g.layer);
    const int64_t before = issued_[kDp];
    if (!g.issued && g.dense && w.gather > 0 && grouped(GroupKind::dp))
      call(kDp, GroupKind::dp, "all_gather", g.layer->name, w.gather);
    g.issued = true;
    if (experts && !g.issued_experts && w.gather_experts > 0 && grouped(GroupKind::edp))
      call(kDp, GroupKind::edp, "all_gather", g.layer->name, w.gather_experts);
    g.issued_experts |= experts;
    if (issued_[kDp] > before) g.dp_mark = issued_[kDp];
  }
  bool again(size_t n) const {
    return work_.own && n > 0 && n < gathers_.size() && gathers_[n].layer == gathers_[n - 1].layer;
  }
  void weights_of_next_layer() {
    issue_gather(used_, true);
    issue_gather(again(used_ + 1) ? used_ + 2 : used_ + 1, !work_.own);
    if (gathers_[used_].dp_mark > 0) wait_for(kDp, gathers_[used_].dp_mark);
    used_++;
  }
  void layer_done() {
    if (again(used_)) issue_gather(used_, !work_.own);
  }

  // ---- actions ----

  void add(const Action& a) {
    mb_ = a.mb;
    action_ = name_of(a.kind);
    switch (a.kind) {
      case Act::F:
      case Act::B:
      case Act::I:
      case Act::W:
      case Act::R:
        return compute(a);
      case Act::SendF:
        return send(a, a.stage + 1, false);
      case Act::SendB:
        return send(a, a.stage - 1, true);
      case Act::RecvF:
        return receive(a, a.stage - 1, false);
      case Act::RecvB:
        return receive(a, a.stage + 1, true);
      case Act::ReduceGrad:
        return reduce(a.stage);
      case Act::Step:
        return step();
      default:
        return;
    }
  }

  void compute(const Action& a) {
    const bool beside = beside_.count(a.stage) > 0;
    if (a.kind == Act::R && beside) return;
    const bool gathers = work_.zero == 3 && uses_weights(a.kind) && unshards_.erase(a.stage) > 0;
    const bool adds = a.kind == Act::B || a.kind == Act::W;
    const bool reduces = adds && (work_.zero == 3 || work_.own) && reduces_.count(a.stage);
    walk(a, [&](const StageWork::Layer& l) {
      if (reduces && work_.own && work_.zero >= 2) wait_for_sums();
      if (gathers) weights_of_next_layer();
      const LayerWork& w = work(l);
      if (a.kind == Act::F) pass(l, w.forward, "F");
      if (a.kind == Act::R) pass(l, w.again, "R");
      if (beside && (a.kind == Act::B || a.kind == Act::I)) pass(l, w.again, "R");
      if (a.kind == Act::B || a.kind == Act::I) pass(l, w.input, "I");
      if (a.kind == Act::B || a.kind == Act::W) pass(l, w.weight, "W");
      if (gathers) layer_done();
      if (reduces) reduce_layer(l);
    });
  }
  // Two at most have memory of their own.
  void wait_for_sums() {
    for (; sums_.size() - summed_ >= 2; summed_++) wait_for(kDp, sums_[summed_]);
  }
  void reduce_layer(const StageWork::Layer& l) {
    const LayerWork& w = work(l);
    if (work_.own && (work_.cast || work_.zero >= 2)) wait_for_sums();
    const int64_t before = issued_[kDp];
    reduce_calls(l.name, w.reduce, w.reduce_experts);
    if (issued_[kDp] > before) sums_.push_back(issued_[kDp]);
  }
  void reduce_calls(std::string_view layer, int64_t dense, int64_t experts) {
    const std::string_view name = work_.zero == 0 ? "all_reduce" : "reduce_scatter";
    if (dense > 0 && grouped(GroupKind::dp)) call(kDp, GroupKind::dp, name, layer, dense);
    if (experts > 0 && grouped(GroupKind::edp)) call(kDp, GroupKind::edp, name, layer, experts);
  }
  // Of a whole stage, behind its weight gradients; with ZeRO 3 each layer's has gone already.
  void reduce(int stage) {
    if (work_.zero == 3 || work_.own) return;
    int64_t dense = 0, experts = 0;
    for (const StageWork::Layer& l : layers(stage))
      dense += work(l).reduce, experts += work(l).reduce_experts;
    reduce_calls(fmt::format("stage {}", stage), dense, experts);
  }

  // All ranks agree on the gradient's norm before any weight moves.
  void step() {
    if (issued_[kDp] > 0) wait_for(kDp, issued_[kDp]);
    if (grouped(GroupKind::world)) call(kCompute, GroupKind::world, "norm", {}, 0);
    put({}, "Step", {}, action_, work_.update[size_t(rank_)]);
    if (work_.own) return update_layers();
    if (work_.zero != 1 && work_.zero != 2) return;
    int64_t dense = 0, experts = 0;
    for (int s = 0; s < schedule_.stages; s++)
      if (holder_[size_t(s)] == rank_)
        for (const StageWork::Layer& l : layers(s))
          dense += work(l).gather, experts += work(l).gather_experts;
    if (dense > 0 && grouped(GroupKind::dp)) call(kDp, GroupKind::dp, "all_gather", {}, dense);
    if (experts > 0 && grouped(GroupKind::edp)) call(kDp, GroupKind::edp, "all_gather", {}, experts);
    wait_for(kDp, issued_[kDp]);
  }

  // Weights of a layer are on their way while the next is updated.
  void update_layers() {
    for (int s = 0; s < schedule_.stages; s++) {
      if (holder_[size_t(s)] != rank_) continue;
      for (const StageWork::Layer& l : layers(s)) {
        const LayerWork& w = work(l);
        put({}, "Step", l.name, action_, w.update);
        if (work_.zero != 1 && work_.zero != 2) continue;
        if (w.gather > 0 && grouped(GroupKind::dp)) call(kDp, GroupKind::dp, "all_gather", l.name, w.gather);
        if (w.gather_experts > 0 && grouped(GroupKind::edp))
          call(kDp, GroupKind::edp, "all_gather", l.name, w.gather_experts);
      }
    }
    if (issued_[kDp] > 0) wait_for(kDp, issued_[kDp]);
  }

  bool elsewhere(int stage) const {
    return stage >= 0 && stage < schedule_.stages && holder_[size_t(stage)] != rank_;
  }
  int64_t number(int to, int mb, bool backward) const {
    return (int64_t(mb) * schedule_.stages + to) * 2 + backward;
  }
  void send(const Action& a, int to, bool backward) {
    if (!elsewhere(to)) return;
    put({.kind = PieceKind::send,
         .stream = backward ? kBack : kOn,
         .peer = holder_[size_t(to)],
         .mark = number(to, a.mb, backward),
         .payload = work_.message_bytes,
         .wire = work_.message_bytes},
        action_, {}, action_, work_.message);
  }
  void receive(const Action& a, int from, bool backward) {
    if (!elsewhere(from)) return;
    put({.kind = PieceKind::recv, .peer = holder_[size_t(from)], .mark = number(a.stage, a.mb, backward)},
        action_, {}, action_, 0);
  }

  const World& world_;
  const WorldWork& work_;
  const Schedule& schedule_;
  int rank_;
  std::vector<int> holder_;                // by stage
  std::array<int, kGroupKinds> group_at_;  // in the tape's groups; -1 = one rank
  std::vector<int64_t> issued_;            // by stream
  std::set<int> unshards_, reduces_;       // of the actions that are issued together
  std::set<int> beside_;                   // of them, those whose recomputation is in the backward pass
  std::set<int> gathered_;                 // stages whose weights are there
  std::vector<Gather> gathers_;
  size_t used_ = 0;
  std::vector<int64_t> sums_;  // marks of reductions behind stream dp, oldest first
  size_t summed_ = 0;          // of them, waited for
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
  return ProgramWriter(w, pp_rank).run();
}

}  // namespace trireme
