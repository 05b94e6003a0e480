#include "program/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace trireme {
namespace {

bool passes(Act a) {
  return a == Act::F || a == Act::B || a == Act::I || a == Act::W;
}
bool adds_gradients(Act a) {
  return a == Act::B || a == Act::W;
}
bool begins_backward(Act a) {
  return a == Act::B || a == Act::I;
}

std::vector<std::string> names_of(const auto& all) {
  std::vector<std::string> names;
  for (const auto& one : all) names.push_back(one.name);
  return names;
}

// Weights of ZeRO 3 by stage (ShardPolicy::by_stage): the first action of a stage that finds them missing
// gathers layer by layer, one layer ahead, whatever else has the same weights.
class StageGathers {
 public:
  StageGathers(const RankShape& shape, std::vector<Op>& out) : shape_(shape), out_(out) {}
  void add(size_t layer, bool dense) { uses_.push_back({layer, dense}); }
  void need() {
    issue(used_), issue(used_ + 1);
    const Use& u = uses_[used_++];
    if (u.op >= 0)
      out_.push_back({.kind = OpKind::arrive,
                      .layer = int32_t(u.layer),
                      .unit = out_[size_t(u.op)].unit,
                      .after = u.op});
  }

 private:
  struct Use {
    size_t layer;
    bool dense;  // else the experts' weights alone
    bool issued = false;
    int32_t op = -1;  // the last gather; -1: nothing to wait for
  };
  void issue(size_t n) {
    if (n >= uses_.size() || uses_[n].issued) return;
    Use& use = uses_[n];
    use.issued = true;
    for (const uint32_t u : shape_.layers[use.layer].units) {
      const UnitShape& unit = shape_.units[u];
      if (!unit.gathers || !(use.dense || unit.experts)) continue;
      use.op = int32_t(out_.size());
      out_.push_back({.kind = OpKind::gather, .layer = int32_t(use.layer), .unit = int32_t(u)});
    }
  }
  const RankShape& shape_;
  std::vector<Op>& out_;
  std::vector<Use> uses_;
  size_t used_ = 0;
};

class Lowering {
 public:
  Lowering(const LowerInput& in, const RankShape& shape, const ShardPolicy& policy)
      : in_(in),
        actions_(in.actions),
        shape_(shape),
        policy_(policy),
        gathers_(shape, policy, out_.ops),
        stage_gathers_(shape, out_.ops),
        reduces_(shape, policy, out_.ops),
        posted_(in.actions.size(), -1),
        weights_left_(shape.stages.size()) {
    find_groups();
    for (const Action& a : actions_)
      if (adds_gradients(a.kind)) weights_left_[chunk_number(a.stage)]++, batch_uses_[a.mb]++;
  }

  Program run() {
    bool interleaved = false;
    for (size_t i = 0; i < actions_.size(); i++) interleaved = interleaved || alternating_with(i) > 0;
    if (interleaved) gathers_.interleave();
    policy_.by_stage ? list_stage_uses() : list_uses();
    for (at_ = 0; at_ < actions_.size(); at_++) {
      out_.actions.push_back({actions_[at_], int32_t(out_.ops.size())});
      if (const size_t other = alternating_with(at_); other > 0)
        interleave(other);
      else if (actions_[at_].kind != Act::Step)
        action(actions_[at_]);
      out_.actions.back().end = int32_t(out_.ops.size());
    }
    end();
    out_.layers = names_of(shape_.layers);
    out_.units = names_of(shape_.units);
    return std::move(out_);
  }

 private:
  // ---- actions that are issued together ----

  void find_groups() {
    group_.resize(actions_.size());
    for (size_t begin = 0, end; begin < actions_.size(); begin = end) {
      end = begin + 1;
      while (end < actions_.size() && actions_[begin].overlap &&
             actions_[end].overlap == actions_[begin].overlap)
        end++;
      for (size_t i = begin; i < end; i++) group_[i] = {begin, end};
    }
  }
  template <class Is>
  bool any_with(size_t i, const Is& is) const {
    const auto [begin, end] = group_[i];
    for (size_t j = begin; j < end; j++)
      if (is(actions_[j])) return true;
    return false;
  }
  bool together(size_t i, Act kind) const {
    return actions_[i].overlap != 0 && any_with(i, [&](const Action& a) { return a.kind == kind; });
  }
  // An R issued with its backward pass is done there, layer by layer.
  bool in_backward(size_t i) const {
    const Action& r = actions_[i];
    return !policy_.by_stage && r.overlap != 0 && any_with(i, [&](const Action& a) {
      return begins_backward(a.kind) && a.stage == r.stage && a.mb == r.mb;
    });
  }
  // Is a backward pass of the same stage the next of all that use weights?
  bool turns_back(size_t i) const {
    const int stage = actions_[i].stage;
    while (++i < actions_.size()) {
      const Act kind = actions_[i].kind;
      if (begins_backward(kind)) return actions_[i].stage == stage;
      if (kind == Act::F || (kind == Act::R && !in_backward(i))) return false;
    }
    return false;
  }

  // The backward pass that the forward pass i is interleaved with; 0: none. Operations before the settle
  // point may be dropped, so none after it moves there.
  size_t alternating_with(size_t i) const {
    const Action& f = actions_[i];
    if (!policy_.interleaves || policy_.by_stage || f.overlap == 0 || f.kind != Act::F) return 0;
    size_t b = i + 1;
    while (b < group_[i].second && actions_[b].kind == Act::R && in_backward(b)) b++;
    if (b == group_[i].second || actions_[b].kind != Act::B || actions_[b].stage == f.stage) return 0;
    return in_.settle_at && *in_.settle_at > i && *in_.settle_at <= b ? 0 : b;
  }

  size_t chunk_number(int stage) const {
    for (size_t c = 0; c < shape_.stages.size(); c++)
      if (shape_.stages[c].stage == stage) return c;
    run_failed("the schedule has stage {} on a rank that does not hold it", stage);
  }
  const StageShape& chunk(int stage) const { return shape_.stages[chunk_number(stage)]; }
  const std::vector<uint32_t>& units(size_t layer) const { return shape_.layers[layer].units; }
  bool experts(uint32_t unit) const { return shape_.units[unit].experts; }

  // ---- uses of weights to come ----

  // Every use of weights in the step, so that each gather can be in flight before it is needed.
  void list_uses() {
    for (size_t i = 0; policy_.zero == 3 && i < actions_.size(); i++) {
      const size_t other = alternating_with(i);
      Uses own = uses_of(i), beside = other > 0 ? uses_of(other) : Uses();
      for (size_t n = 0; n < std::max(own.size(), beside.size()); n++)
        for (const Uses* all : {&own, &beside})
          if (n < all->size())
            for (const GatherPlan::Use& u : (*all)[n]) gathers_.add(u);
      i = std::max(i, other);
    }
  }
  using Uses = std::vector<std::vector<GatherPlan::Use>>;  // by layer, in the order of the pass
  Uses uses_of(size_t i) const {
    const Act kind = actions_[i].kind;
    const bool alone = kind == Act::R && !in_backward(i), release = together(i, Act::Reshard);
    const StageShape* c = passes(kind) || alone ? &chunk(actions_[i].stage) : nullptr;
    if (kind == Act::W && policy_.experts_in_weight) return uses_of_experts(*c, release);
    if (kind != Act::F && !begins_backward(kind) && !alone) return {};
    require(together(i, Act::Unshard), "ZeRO 3 needs an Unshard with every use of weights");
    const bool keep_last = !policy_.reshard_last && kind == Act::F && turns_back(i);
    return uses_of_pass(*c, kind == Act::F || alone, release, alone, keep_last);
  }
  Uses uses_of_experts(const StageShape& c, bool release) const {
    Uses uses;
    for (size_t l = c.last; l-- > c.first;) {
      uses.emplace_back();
      for (const uint32_t u : units(l))
        if (experts(u)) uses.back().push_back({u, release, int32_t(l)});
    }
    return uses;
  }
  // One pass over the layers. A unit that two layers use is kept from the first to the last; keep_last: so
  // are those of the last layer, with which the next pass begins.
  Uses uses_of_pass(const StageShape& c, bool forward, bool release, bool recomputed, bool keep_last) const {
    Uses uses;
    for (size_t i = 0; i < c.last - c.first; i++) {
      const size_t layer = forward ? c.first + i : c.last - 1 - i;
      uses.emplace_back();
      if (recomputed && !shape_.layers[layer].recomputes) continue;
      for (const uint32_t u : units(layer)) uses.back().push_back({u, false, int32_t(layer)});
    }
    if (!release) return uses;
    std::set<uint32_t> seen;
    if (keep_last) seen.insert(units(c.last - 1).begin(), units(c.last - 1).end());
    for (size_t i = uses.size(); i-- > 0;)
      for (size_t u = uses[i].size(); u-- > 0;) uses[i][u].release = seen.insert(uses[i][u].unit).second;
    return uses;
  }

  // By stage: actions that gather are those that find their stage's weights missing.
  bool uses_weights(Act a) const {
    return a == Act::F || a == Act::R || begins_backward(a) || (a == Act::W && policy_.experts_in_weight);
  }
  void list_stage_uses() {
    gathering_.assign(actions_.size(), 0);
    std::set<int> there;
    for (size_t begin = 0; policy_.zero == 3 && begin < actions_.size(); begin = group_[begin].second) {
      const size_t end = group_[begin].second;
      std::set<int> missing, dense;
      for (size_t i = begin; i < end; i++) {
        const Action& a = actions_[i];
        if (a.kind == Act::Unshard && there.insert(a.stage).second) missing.insert(a.stage);
        if (uses_weights(a.kind) && a.kind != Act::W) dense.insert(a.stage);
      }
      for (size_t i = begin; i < end; i++) {
        const Action& a = actions_[i];
        if (a.kind == Act::Reshard) there.erase(a.stage);
        if (!uses_weights(a.kind) || missing.erase(a.stage) == 0) continue;
        gathering_[i] = 1;
        for_layers(a, [&](size_t l) { stage_gathers_.add(l, dense.count(a.stage) > 0); });
      }
    }
  }
  template <class Each>
  void for_layers(const Action& a, const Each& each) const {
    const StageShape& c = chunk(a.stage);
    const bool up = a.kind == Act::F || a.kind == Act::R;
    for (size_t i = 0; i < c.last - c.first; i++) each(up ? c.first + i : c.last - 1 - i);
  }

  // ---- operations of the current action ----

  const Action& now() const { return actions_[at_]; }
  void put(OpKind kind, size_t layer) {
    out_.ops.push_back({.kind = kind, .mb = now().mb, .stage = now().stage, .layer = int32_t(layer)});
  }
  void put(OpKind kind) { out_.ops.push_back({.kind = kind, .mb = now().mb, .stage = now().stage}); }

  void action(const Action& a) {
    free_read(at_);
    if (passes(a.kind) || a.kind == Act::R) post_next();
    switch (a.kind) {
      case Act::F:
        return forward(chunk(a.stage));
      case Act::B:
      case Act::I:
      case Act::W:
        return backward(chunk(a.stage), a.kind != Act::W, a.kind != Act::I);
      case Act::R:
        if (!in_backward(at_)) recompute(chunk(a.stage));
        return;
      case Act::ReduceGrad:
        return reduce_stage(chunk(a.stage));
      case Act::Unshard:
        if (!policy_.by_stage) gathers_.ahead();
        return;
      case Act::RecvF:
      case Act::RecvB:
        return receive();
      case Act::SendF:
      case Act::SendB:
        return send();
      default:  // Reshard is done layer by layer in the pass it is issued with, Step at the end
        return;
    }
  }

  void use(size_t layer) {
    if (policy_.by_stage) {
      if (!gathering_.empty() && gathering_[at_]) stage_gathers_.need();
      return;
    }
    for (const uint32_t u : units(layer)) gathers_.need(u);
  }
  void done(size_t layer) {
    if (policy_.by_stage) return;
    for (const uint32_t u : units(layer)) gathers_.done(u);
  }

  void forward(const StageShape& c) {
    load();
    for (size_t l = c.first; l < c.last; l++) {
      use(l);
      put(OpKind::forward, l);
      after_forward(l);
    }
    end_forward(c);
  }
  void load() {
    if (loaded_.insert(now().mb).second) put(OpKind::load);
  }
  void after_forward(size_t l) {
    done(l);
    if (shape_.layers[l].recomputes) put(OpKind::drop, l);
  }
  void end_forward(const StageShape& c) {
    if (policy_.offloads_inputs) put(OpKind::left);
    if (c.head) put(OpKind::losses);
  }

  // All of a stage at once, ahead of its backward pass.
  void recompute(const StageShape& c) {
    for (size_t l = c.first; l < c.last; l++) {
      if (!shape_.layers[l].recomputes && !policy_.by_stage) continue;
      use(l);
      if (shape_.layers[l].recomputes) put(OpKind::again, l);
      done(l);
    }
    made_again_.insert({now().stage, now().mb});
  }
  void fetch(size_t layer) {
    if (policy_.offloads_inputs && shape_.layers[layer].recomputes) put(OpKind::fetch, layer);
  }

  // A backward pass, of the gradient of the input, of the weights, or of both.
  struct Backward {
    bool input, weight;
    bool reduce;  // gradients leave as they come
    bool rows;    // the weight gradients use experts' weights
    bool again;   // dropped activations are recomputed in this pass
  };
  Backward begin_backward(const StageShape& c, bool input, bool weight) {
    if (weight) weights_left_[chunk_number(c.stage)]--;
    return {.input = input,
            .weight = weight,
            .reduce = weight && together(at_, Act::ReduceGrad),
            .rows = weight && policy_.experts_in_weight,
            .again = input && !policy_.by_stage && made_again_.count({now().stage, now().mb}) == 0};
  }
  void fetch_inputs(const Backward& b, const StageShape& c, size_t l) {
    if (b.again && l + 1 == c.last) fetch(l);
    if (b.again && l > c.first) fetch(l - 1);  // travels meanwhile
  }
  void input(const Backward& b, size_t l) {
    if (b.again && shape_.layers[l].recomputes) put(OpKind::again, l);
    put(OpKind::input, l);
  }
  void open(size_t l) {
    if (policy_.by_stage) return;
    for (const uint32_t u : units(l)) reduces_.open(u);
  }
  void after_weight(const Backward& b, size_t l) {
    if (b.reduce) reduce_layer(l);
    put(OpKind::clear, l);
  }
  void end_backward(const Backward& b) {
    if (b.weight && --batch_uses_[now().mb] == 0) put(OpKind::unload);
  }

  // I and W of each layer in turn if the action has both, so a layer's memory is free before the next begins.
  void backward(const StageShape& c, bool with_input, bool weight) {
    const Backward b = begin_backward(c, with_input, weight);
    const bool kept = b.input && b.rows;
    for (size_t l = c.last; l-- > c.first;) {
      if (b.input) {
        fetch_inputs(b, c, l);
        use(l);
        input(b, l);
        if (!kept) done(l);
      }
      if (!b.weight) continue;
      open(l);
      if (b.rows && !b.input) use_experts(l);
      put(OpKind::weight, l);
      if (kept) done(l);
      if (b.rows && !b.input) done_experts(l);
      after_weight(b, l);
    }
    end_backward(b);
  }

  // A forward pass and the backward pass `other`, paired layer by layer.
  void interleave(size_t other) {
    const size_t f = at_;
    out_.actions.back().interleaved = int32_t(other - f);
    for (const size_t i : {f, other}) {
      at_ = i;
      free_read(at_);
      post_next();
    }
    const StageShape &up = chunk(actions_[f].stage), &down = chunk(actions_[other].stage);
    const Backward b = begin_backward(down, true, true);
    at_ = f;
    load();
    const size_t layers_up = up.last - up.first, layers_down = down.last - down.first;
    for (size_t n = 0; n < std::max(layers_up, layers_down); n++) {
      const size_t l = up.first + n, back = down.last - 1 - n;
      if (n < layers_up) use(l);
      if (n < layers_down) {
        at_ = other;
        fetch_inputs(b, down, back);
        use(back);
        open(back);
      }
      const size_t first = out_.ops.size();
      at_ = f;
      if (n < layers_up) put(OpKind::forward, l);
      at_ = other;
      if (n < layers_down) input(b, back), put(OpKind::weight, back);
      if (n < layers_up) out_.ops[first].by_turns = int32_t(out_.ops.size() - first) - 1;
      at_ = f;
      if (n < layers_up) after_forward(l);
      at_ = other;
      if (n < layers_down) done(back), after_weight(b, back);
    }
    at_ = f;
    end_forward(up);
    at_ = other;
    end_backward(b);
    // The actions between and the backward pass have no operations.
    out_.actions.back().end = int32_t(out_.ops.size());
    for (size_t i = f + 1; i <= other; i++)
      out_.actions.push_back({actions_[i], int32_t(out_.ops.size()), int32_t(out_.ops.size())});
  }
  void use_experts(size_t layer) {
    if (policy_.by_stage) return use(layer);
    for (const uint32_t u : units(layer))
      if (experts(u)) gathers_.need(u);
  }
  void done_experts(size_t layer) {
    if (policy_.by_stage) return;
    for (const uint32_t u : units(layer))
      if (experts(u)) gathers_.done(u);
  }

  // ---- gradients ----

  // A layer completes its own units. A table that two of the rank's stages use is completed by the stage
  // whose weight gradients end last. With ZeRO 2 and 3 every backward pass reduces, so either stage completes
  // it.
  bool completes(size_t layer, uint32_t unit) const {
    const bool own = shape_.units[unit].layer == layer;
    const StageShape &first = shape_.stages.front(), &last = shape_.stages.back();
    if (!shape_.tied || !first.embedding || !last.head || shape_.stages.size() == 1) return own;
    if (!own) return weights_left_.front() == 0;
    return layer != first.first || policy_.zero >= 2 || weights_left_.back() == 0;
  }
  // The last unit first: as units lie. By stage and below ZeRO 3, reduce_stage() does it.
  void reduce_layer(size_t layer) {
    const std::vector<uint32_t>& all = units(layer);
    if (policy_.by_stage) {
      for (const uint32_t u : all)
        if (policy_.zero == 3 && shape_.units[u].reduces) reduces_.stage(u, u + 1);
      return;
    }
    for (size_t i = all.size(); i-- > 0;)
      if (completes(layer, all[i])) reduces_.ready(all[i]);
  }
  // Issued with a backward pass the layers' gradients were reduced as they came; alone, all of them here.
  void reduce_stage(const StageShape& c) {
    if (policy_.by_stage) {
      if (policy_.zero < 3 && c.first < c.last)
        reduces_.stage(units(c.first).front(), units(c.last - 1).back() + 1);
      return;
    }
    if (now().overlap != 0) return;
    require(policy_.zero < 2, "ZeRO 2 and 3 need a ReduceGrad with every weight gradient");
    for (size_t l = c.last; l-- > c.first;) reduce_layer(l);
  }

  // ---- messages ----

  int rank_of(int stage, int mb) const { return in_.holders ? in_.holders->rank_of(stage, mb) : 0; }
  static bool is_receive(Act a) { return a == Act::RecvF || a == Act::RecvB; }

  int32_t post(size_t i) {
    const Action& a = actions_[i];
    if (posted_[i] >= 0) return posted_[i];
    const bool back = a.kind == Act::RecvB;
    posted_[i] = int32_t(out_.ops.size());
    out_.ops.push_back({.kind = OpKind::post,
                        .back = back,
                        .mb = a.mb,
                        .stage = a.stage,
                        .peer = int16_t(rank_of(a.stage + (back ? 1 : -1), a.mb))});
    return posted_[i];
  }
  // Messages that the next pass needs are posted before this one, so that they travel meanwhile. Beyond the
  // settle point none is posted, because operations before it may be dropped.
  void post_next() {
    const size_t end =
        in_.settle_at && at_ < *in_.settle_at ? std::min(*in_.settle_at, actions_.size()) : actions_.size();
    for (size_t i = at_ + 1; i < end; i++) {
      if (is_receive(actions_[i].kind)) post(i);
      if (passes(actions_[i].kind)) return;
    }
  }
  void receive() {
    Op op = out_.ops[size_t(post(at_))];
    op.kind = OpKind::receive;
    op.after = posted_[at_];
    out_.ops.push_back(op);
  }
  void send() {
    const bool back = now().kind == Act::SendB;
    const int read_at = in_.send_ends.empty() ? -1 : in_.send_ends[at_];
    sent_.insert({read_at < 0 ? kNoRead : size_t(read_at), int32_t(out_.ops.size())});
    out_.ops.push_back({.kind = OpKind::send,
                        .back = back,
                        .mb = now().mb,
                        .stage = now().stage,
                        .peer = int16_t(rank_of(now().stage + (back ? -1 : 1), now().mb))});
  }
  // The sends that are read before the action or at it, in the order in which they were sent.
  void free_read(size_t action) {
    read_.clear();
    while (!sent_.empty() && sent_.begin()->first <= action)
      read_.push_back(sent_.extract(sent_.begin()).value().second);
    std::sort(read_.begin(), read_.end());
    for (const int32_t send : read_) {
      Op op = out_.ops[size_t(send)];
      op.kind = OpKind::free;
      op.after = send;
      out_.ops.push_back(op);
    }
  }

  // ---- after the actions ----

  void end() {
    out_.frees = int32_t(out_.ops.size());
    free_read(kNoRead);
    out_.sums = int32_t(out_.ops.size());
    reduces_.finish();
    out_.norm = int32_t(out_.ops.size());
    out_.ops.push_back({.kind = OpKind::norm});
    const auto all = int32_t(shape_.units.size());
    const bool spreads = policy_.zero == 1 || policy_.zero == 2;
    const auto update = [&](int32_t unit, int32_t last) {
      out_.ops.push_back({.kind = OpKind::update, .unit = unit, .last = last});
      if (spreads && (policy_.by_stage || shape_.units[size_t(unit)].reduces))
        out_.ops.push_back({.kind = OpKind::spread, .unit = unit, .last = last});
    };
    if (policy_.by_stage && all > 0) update(0, all);
    for (int32_t u = 0; !policy_.by_stage && u < all; u++)
      if (!shape_.units[size_t(u)].frozen) update(u, u + 1);
    out_.ops.push_back({.kind = OpKind::settle});
    for (ActionOps& a : out_.actions)
      if (a.action.kind == Act::Step) a = {a.action, out_.sums, int32_t(out_.ops.size())};
  }

  const LowerInput& in_;
  std::span<const Action> actions_;
  const RankShape& shape_;
  const ShardPolicy& policy_;
  Program out_;
  GatherPlan gathers_;
  StageGathers stage_gathers_;
  ReducePlan reduces_;
  size_t at_ = 0;
  std::vector<std::pair<size_t, size_t>> group_;  // by action: the actions issued with it
  std::vector<char> gathering_;                   // by action, by stage: it gathers
  std::vector<int32_t> posted_;                   // by action: its post; -1: none yet
  static constexpr size_t kNoRead = size_t(-1);   // the step's end
  // Sends that are not yet freed: the action before which one has surely been read, and its operation.
  std::set<std::pair<size_t, int32_t>> sent_;
  std::vector<int32_t> read_;          // in free_read()
  std::vector<int> weights_left_;      // by chunk: weight gradients to come
  std::map<int16_t, int> batch_uses_;  // by microbatch: weight gradients to come
  std::set<int16_t> loaded_;
  std::set<std::pair<int16_t, int16_t>> made_again_;  // by stage and microbatch, ahead of the backward pass
};

}  // namespace

Program lower(const LowerInput& in, const RankShape& shape, const ShardPolicy& policy) {
  return Lowering(in, shape, policy).run();
}

Program lower_forward(std::span<const int> stages, const Holders* holders, int rank, const RankShape& shape,
                      const ShardPolicy& policy) {
  Program p;
  GatherPlan gathers(shape, policy, p.ops);
  const auto chunk = [&](int stage) {
    return *std::find_if(shape.stages.begin(), shape.stages.end(),
                         [&](const StageShape& c) { return c.stage == stage; });
  };
  for (const int s : stages) {
    const StageShape c = chunk(s);
    const size_t begin = gathers.uses().size();
    for (size_t l = c.first; l < c.last; l++)
      for (const uint32_t u : shape.layers[l].units) gathers.add({u, false, int32_t(l)});
    std::set<uint32_t> seen;
    for (size_t i = gathers.uses().size(); i-- > begin;)
      gathers.uses()[i].release = seen.insert(gathers.uses()[i].unit).second;
  }
  std::vector<int32_t> sent;
  const auto message = [&](OpKind kind, int stage, int peer, int32_t after) {
    p.ops.push_back({.kind = kind, .mb = 0, .stage = int16_t(stage), .peer = int16_t(peer), .after = after});
    return int32_t(p.ops.size()) - 1;
  };
  for (const int s : stages) {
    const StageShape c = chunk(s);
    const auto elsewhere = [&](int stage) { return holders->rank_of(stage, 0) != rank; };
    if (!c.embedding && elsewhere(s - 1)) {
      const int from = holders->rank_of(s - 1, 0);
      message(OpKind::receive, s, from, message(OpKind::post, s, from, -1));
    }
    for (size_t l = c.first; l < c.last; l++) {
      const auto pass = [&](OpKind kind) {
        p.ops.push_back({.kind = kind, .mb = 0, .stage = int16_t(s), .layer = int32_t(l)});
      };
      for (const uint32_t u : shape.layers[l].units) gathers.need(u);
      pass(OpKind::forward);
      for (const uint32_t u : shape.layers[l].units) gathers.done(u);
      pass(OpKind::drop);
    }
    if (!c.head && elsewhere(s + 1)) sent.push_back(message(OpKind::send, s, holders->rank_of(s + 1, 0), -1));
  }
  for (const int32_t op : sent) message(OpKind::free, p.ops[size_t(op)].stage, p.ops[size_t(op)].peer, op);
  p.frees = p.sums = p.norm = int32_t(p.ops.size());
  p.layers = names_of(shape.layers);
  p.units = names_of(shape.units);
  return p;
}

}  // namespace trireme
