#include "plan/step_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "model/stages.h"
#include "plan/work_prices.h"
#include "program/lower.h"
#include "schedule/schedule.h"
#include "schedule/steady.h"
#include "sim/op_pieces.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace step_paths {

// ---- prices and paths ----

enum LayerPrice : size_t {
  kForward,
  kInput,
  kWeight,
  kAgain,
  kReduce,
  kGather,
  kReduceExperts,
  kGatherExperts,
  kUpdate,
  kPriceKinds
};
constexpr size_t kRankUpdate = size_t(kWorkLayers) * kPriceKinds;  // WorldWork::update
constexpr size_t kPrices = kRankUpdate + 1;
using Prices = std::array<double, kPrices>;
// The prices on a path, and how often it has each.
class Counts {
 public:
  Counts() = default;
  template <class All>
  explicit Counts(const All& all) {
    for (size_t i = 0; i < all.size(); i++)
      if (all[i] != 0) counts_.push_back({uint32_t(i), float(all[i])});
  }
  template <class All>
  double sum(const All& prices) const {
    double s = 0;
    for (const auto& [i, n] : counts_) s += double(n) * prices[i];
    return s;
  }
  double of(size_t price) const {
    for (const auto& [i, n] : counts_)
      if (i == price) return n;
    return 0;
  }
  bool operator==(const Counts&) const = default;

 private:
  std::vector<std::pair<uint32_t, float>> counts_;
};

Prices prices_of(const WorldWork& w) {
  Prices p{};
  for (size_t k = 0; k < std::min(size_t(kWorkLayers), w.kinds.size()); k++) {
    const LayerWork& l = w.kinds[k];
    const int64_t all[kPriceKinds] = {l.forward.total(), l.input.total(),  l.weight.total(),
                                      l.again.total(),   l.reduce,         l.gather,
                                      l.reduce_experts,  l.gather_experts, l.update};
    for (size_t i = 0; i < kPriceKinds; i++) p[k * kPriceKinds + i] = double(all[i]);
  }
  p[kRankUpdate] = w.update.empty() ? 0 : double(w.update[0]);
  return p;
}

// Rough proportions of prices, by which it is decided whether a path has to be searched again.
using Profile = uint64_t;
void mix(Profile& p, double value, double of) {
  // Octaves and halves of them, from the bits of the quotient.
  const uint64_t step = value <= 0 || of <= 0 ? 0 : std::bit_cast<uint64_t>(value / of) >> 51;
  p = (p ^ step) * 0x9e3779b97f4a7c15u;
  p ^= p >> 29;
}

// Longest paths at prices of some profiles. After a few searches that found nothing new there are no more.
template <class C>
struct Paths {
  static constexpr int kMostInVain = 2;
  static constexpr size_t kMostTried = 8;
  std::vector<C> all;
  std::vector<Profile> tried;
  int in_vain = 0;
  bool fresh(Profile p, bool exact) {
    if (exact) return true;
    if (in_vain >= kMostInVain || tried.size() == kMostTried ||
        std::find(tried.begin(), tried.end(), p) != tried.end())
      return false;
    tried.push_back(p);
    return true;
  }
  void add(C c) {
    if (std::find(all.begin(), all.end(), c) != all.end()) {
      in_vain++;
      return;
    }
    all.push_back(std::move(c));
    in_vain = 0;
  }
};

// ---- within a stage ----

// The layers of a stage, by kind of WorldWork::kinds.
using Layers = std::vector<int>;

// An action of a stage. turned: after a pass that used the same weights last; summed: the last of its stage,
// which reduces gradients with ZeRO 0 and 1.
enum ActionSpan : size_t {
  kF,
  kTurnedF,
  kB,
  kTurnedB,
  kI,
  kTurnedI,
  kW,
  kSummedB,
  kTurnedSummedB,
  kSummedW,
  kSpans
};
// A rank has two clocks: compute, and the stream of collectives among replicas (lane). An action moves both;
// it adds the longest path from one clock before it to one after it. before: compute before it waited for the
// action's messages, when the previous pass released weights and they were gathered again.
enum Way : size_t {
  kComputeToCompute,
  kLaneToCompute,
  kBeforeToCompute,
  kComputeToLane,
  kLaneToLane,
  kBeforeToLane,
  kWays
};
constexpr double kNoWay = -1e18;

// The structure of a stage's programs, whatever the prices.
struct Structure {
  int zero = 0;
  int64_t prefetch = 1, bucket_bytes = 0;
  bool cast = false, reshard_last = true, reshard_after_forward = true;
  bool replicas = false, expert_replicas = false, exchanges = false, recomputes = false;
  std::array<uint8_t, size_t(kWorkLayers)> collectives{};  // by kind: which of its prices are above 0
  std::array<int64_t, 2> wire{};                           // bytes of a block's gradients, for buckets
  auto key() const {
    return std::tie(zero, prefetch, bucket_bytes, cast, reshard_last, reshard_after_forward, replicas,
                    expert_replicas, exchanges, recomputes, collectives, wire);
  }
  bool operator<(const Structure& o) const { return key() < o.key(); }
};

Structure structure_of(const BoundCase& c) {
  const WorldWork& w = *c.work;
  Structure s{.zero = w.zero,
              .prefetch = w.prefetch,
              .cast = w.cast,
              .reshard_last = w.reshard_last,
              .reshard_after_forward = c.reshard_after_forward,
              .replicas = c.replicas,
              .expert_replicas = c.expert_replicas,
              .exchanges = c.exchanges,
              .recomputes = c.recomputes};
  for (size_t k = 0; k < std::min(size_t(kWorkLayers), w.kinds.size()); k++) {
    const LayerWork& l = w.kinds[k];
    s.collectives[k] = uint8_t((l.reduce > 0) | (l.gather > 0) << 1 | (l.reduce_experts > 0) << 2 |
                               (l.gather_experts > 0) << 3 | (l.again.total() > 0) << 4);
  }
  if (w.zero == 0) {
    s.bucket_bytes = w.bucket_bytes;
    s.wire = {w.kinds[kDenseLayer].wire, w.kinds.size() > kExpertLayer ? w.kinds[kExpertLayer].wire : 0};
  }
  return s;
}

// The programs of one stage by itself: two microbatches, the gradients of both at once (F B) and one after
// the other (F I W).
class StagePaths {
 public:
  StagePaths(const Layers& layers, const Structure& s, const BoundCase& c) : layers_(layers) {
    Degrees d;
    d.ep = s.exchanges ? 2 : 1;
    (s.replicas ? d.dp : d.tp) = s.exchanges                       ? (s.expert_replicas ? 4 : 2)
                                 : s.replicas || s.expert_replicas ? 2
                                                                   : 1;
    mesh_ = Mesh(d), structure_ = s, work_ = work_of(*c.work);
    for (StageProgram* p : {&both_, &split_}) {
      make(*p, rank_schedule(p == &split_, 2));
      find_spans(*p, p == &split_);
      lane_[p == &split_] = count_lane(*p);
    }
  }

  // The least nanoseconds that the action adds that way at these prices; kNoWay: there is no path.
  double of(ActionSpan span, Way way, const Prices& prices, Profile profile, bool exact) {
    return longest_of(size_t(span), way, prices, profile, exact);
  }
  // All operations of a rank with all stages, up to the norm.
  double whole(int64_t microbatches, const Prices& prices, Profile profile, bool exact) {
    const int64_t run = std::min(microbatches, kWhole);
    Whole& w = whole_[size_t(run) - 1];
    if (w.program.program.ops.empty()) {
      make(w.program, rank_schedule(false, int(run)));
      const auto norm = size_t(w.program.program.norm);
      w.part = {&w.program, 0, 0, norm, norm, false, true, std::vector<char>(norm, 0)};
    }
    if (w.paths.fresh(profile, exact || w.paths.all.empty())) w.paths.add(whole_path(w, prices));
    double most = 0;
    for (const WholePath& p : w.paths.all)
      most = std::max(most, p.once.sum(prices) + double(microbatches - run) * p.again.sum(prices));
    return most;
  }
  // From when all ranks agree on the norm to the end of the step.
  double end(const Prices& prices, Profile profile, bool exact) {
    return std::max(longest_of(size_t(kSpans), kComputeToCompute, prices, profile, exact),
                    longest_of(size_t(kSpans), kComputeToLane, prices, profile, exact));
  }
  // Nanoseconds of collectives among replicas for a microbatch, which are one after another.
  double lane(bool split, const Prices& prices) const { return lane_[split].sum(prices) / 2; }
  // Passes alone, of one span and of all.
  double passes_of(ActionSpan span, const Prices& p) const {
    double s = 0;
    for (const int k : layers_) {
      const double* l = &p[size_t(k) * kPriceKinds];
      const double input = l[kAgain] + l[kInput];
      if (span == kF || span == kTurnedF) s += l[kForward];
      if (span == kI || span == kTurnedI) s += input;
      if (span == kW || span == kSummedW) s += l[kWeight];
      if (span == kB || span == kTurnedB || span == kSummedB || span == kTurnedSummedB)
        s += input + l[kWeight];
    }
    return s;
  }
  double passes(const Prices& p) const {
    double s = 0;
    for (const int k : layers_)
      for (const LayerPrice x : {kForward, kInput, kWeight, kAgain}) s += p[size_t(k) * kPriceKinds + x];
    return s;
  }
  double head(const Prices& p) const {
    double s = 0;
    for (const int k : layers_)
      if (k == kHeadLayer)
        for (const LayerPrice x : {kForward, kInput, kWeight}) s += p[size_t(k) * kPriceKinds + x];
    return s;
  }

 private:
  struct StageProgram {
    RankShape shape;
    Program program;
  };
  size_t kind(size_t layer) const { return size_t(layers_[layer]); }
  // Operations [begin, end), less those of other actions; compute ends at compute_end.
  struct Part {
    const StageProgram* program = nullptr;
    size_t begin = 0, received = 0, compute_end = 0, end = 0;  // [begin, received): before its messages
    bool sums_before = false;                                  // in [begin, received)
    bool last_of_both = false;  // the end is that of compute, if it is later than the lane's
    std::vector<char> others;   // by operation: a gather for a later action, or sums of an earlier one
  };

  // A path of a rank with all stages; a further microbatch takes `again`.
  struct WholePath {
    Counts once, again;
    bool operator==(const WholePath&) const = default;
  };
  struct Whole {
    StageProgram program;
    Part part;
    Paths<WholePath> paths;
  };
  static constexpr int64_t kWhole = 4;  // microbatches that are run
  WholePath whole_path(const Whole& w, const Prices& prices) const {
    const std::vector<Taken> path = *longest(w.part, kComputeToLane, prices);
    WholePath out{.once = counts_of(path), .again = {}};
    // Between two operations that differ only in their microbatch, in the middle.
    const Program& program = w.program.program;
    const auto microbatch = [&](size_t op) {
      for (const ActionOps& a : program.actions)
        if (op < size_t(a.end) && a.action.mb >= 0) return int(a.action.mb);
      return -1;
    };
    for (size_t i = path.size(); i-- > 0;)
      for (size_t j = i; j-- > 0;) {
        const Op &a = program.ops[path[i].op], &b = program.ops[path[j].op];
        if (path[i].price != path[j].price || a.kind != b.kind || a.layer != b.layer || a.unit != b.unit)
          continue;
        const int first = microbatch(path[i].op);
        if (first != 1 || microbatch(path[j].op) != 2) break;
        out.again = counts_of(std::span(path).subspan(j, i - j));
        return out;
      }
    return out;
  }

  WorldWork work_of(const WorldWork& w) const {
    WorldWork out = w;
    out.stages.assign(1, {});
    for (const int k : layers_) out.stages[0].layers.push_back({"", k});
    out.update.resize(1);
    return out;
  }
  Schedule rank_schedule(bool split, int microbatches) const {
    Schedule one{.stages = 1, .microbatches = microbatches, .ranks = {{}}};
    for (int16_t mb = 0; mb < microbatches; mb++) {
      one.ranks[0].push_back({Act::F, 0, mb});
      if (split) one.ranks[0].push_back({Act::I, 0, mb});
      one.ranks[0].push_back({split ? Act::W : Act::B, 0, mb});
    }
    return with_passes(std::move(one), {.recomputes = structure_.recomputes,
                                        .replicas = structure_.replicas,
                                        .zero = structure_.zero,
                                        .reshard_after_forward = structure_.reshard_after_forward,
                                        .exchanges = structure_.exchanges});
  }
  void make(StageProgram& p, Schedule schedule) const {
    const World w{.mesh = mesh_, .schedule = std::move(schedule), .work = work_};
    p.shape = shape_of(w, 0);
    p.program = lower({.actions = w.schedule.ranks[0], .holders = nullptr, .send_ends = {}, .settle_at = {}},
                      p.shape, policy_of(w));
  }
  static bool is_pass(const Op& op) {
    return op.kind == OpKind::forward || op.kind == OpKind::again || op.kind == OpKind::input ||
           op.kind == OpKind::weight;
  }
  // ZeRO 2 and 3: collectives of both microbatches before the norm.
  Counts count_lane(const StageProgram& p) const {
    Prices counts{};
    for (size_t i = 0; i < size_t(p.program.norm); i++) {
      const Op& op = p.program.ops[i];
      if (op.kind != OpKind::gather && op.kind != OpKind::reduce) continue;
      for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++) {
        const UnitShape& unit = p.shape.units[size_t(u)];
        const size_t dense = op.kind == OpKind::gather ? kGather : kReduce;
        if (unit.reduces)
          counts[kind(unit.layer) * kPriceKinds + dense + (unit.experts ? kReduceExperts - kReduce : 0)] += 1;
      }
    }
    return Counts(counts);
  }
  // Finds the operations of each span.
  void find_spans(const StageProgram& p, bool split) {
    const auto last_pass = [&](size_t end) {
      while (end > 0 && !is_pass(p.program.ops[end - 1])) end--;
      return end;
    };
    const auto action = [&](Act kind, int mb) -> const ActionOps& {
      for (const ActionOps& a : p.program.actions)
        if (a.action.kind == kind && a.action.mb == mb) return a;
      run_failed("the bound's own schedule lacks an action");
    };
    const auto set = [&](ActionSpan plain, ActionSpan turned, Act kind, int mb, bool last) {
      const ActionOps& a = action(kind, mb);
      const size_t end = last ? size_t(p.program.norm) : size_t(a.end);
      for (const auto& [span, begin] :
           {std::pair{turned, last_pass(size_t(a.begin))}, {plain, size_t(a.begin)}}) {
        Part& part = parts_[span];
        part = {&p,  begin, size_t(a.begin), last_pass(size_t(a.end)),
                end, false, false,           std::vector<char>(end - begin)};
        for (size_t i = begin; i < end; i++) {
          const Op& op = p.program.ops[i];
          part.sums_before |= i < size_t(a.begin) && op.kind == OpKind::reduce;
          if (op.kind == OpKind::gather || i < size_t(a.begin)) part.others[i - begin] = 1;
          if (op.kind == OpKind::arrive && op.after >= int32_t(begin))
            part.others[size_t(op.after) - begin] = 0;
        }
      }
    };
    if (split) {
      set(kI, kTurnedI, Act::I, 0, false);
      set(kW, kW, Act::W, 0, false);
      set(kSummedW, kSummedW, Act::W, 1, true);
      return;
    }
    set(kF, kTurnedF, Act::F, 1, false);
    set(kB, kTurnedB, Act::B, 0, false);
    set(kSummedB, kTurnedSummedB, Act::B, 1, true);
    const size_t all = p.program.ops.size();
    parts_[kSpans] = {&p,    size_t(p.program.norm),   size_t(p.program.norm), all, all, false,
                      false, std::vector<char>(all, 0)};
  }

  double longest_of(size_t span, Way way, const Prices& prices, Profile profile, bool exact) {
    Ways& w = ways_[span][way];
    if (w.none) return kNoWay;
    if (w.paths.fresh(profile, exact || w.paths.all.empty())) {
      const std::optional<std::vector<Taken>> path = longest(parts_[span], way, prices);
      if (!path) {
        w.none = true;
        return kNoWay;
      }
      w.paths.add(counts_of(*path));
    }
    double most = kNoWay;
    for (const Counts& c : w.paths.all) most = std::max(most, c.sum(prices));
    return most;
  }

  // A price on a path, and the operation that has it.
  struct Taken {
    size_t price = 0, op = 0;
  };
  // The longest path that way, the last one first; nothing: there is none. Operations before the part have
  // ended.
  std::optional<std::vector<Taken>> longest(const Part& part, Way way, const Prices& prices) const {
    const RankShape& shape = part.program->shape;
    const std::vector<Op>& ops = part.program->program.ops;
    struct Node {
      double end = 0;
      int before = -1;
      Taken taken;
    };
    struct Clock {
      double now = kNoWay;
      int node = -1;
    };
    std::vector<Node> nodes;
    Clock compute, lane, at_end;
    // Gathers that were issued before the sums of the action before do not wait for these.
    const bool from_lane = way == kLaneToCompute || way == kLaneToLane;
    const size_t lane_begin = part.sums_before ? part.received : part.begin;
    if (way == kBeforeToCompute || way == kBeforeToLane) compute.now = 0;
    std::vector<Clock> ends(part.end - part.begin);  // by operation, of its collectives
    size_t at_op = 0;
    const auto add = [&](Clock& to, const Clock& from, size_t price) {
      if (from.now < 0) return;
      nodes.push_back({from.now + prices[price], from.node, {price, at_op}});
      to = {nodes.back().end, int(nodes.size()) - 1};
    };
    const auto collective = [&](const Op& op, LayerPrice dense, LayerPrice experts) {
      const size_t at = size_t(&op - ops.data()) - part.begin;
      if (part.others[at]) return;
      for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++) {
        const UnitShape& unit = shape.units[size_t(u)];
        if (!unit.reduces) continue;
        const size_t price = kind(unit.layer) * kPriceKinds + (unit.experts ? experts : dense);
        if (prices[price] > 0) add(lane, lane.now >= compute.now ? lane : compute, price);
      }
      ends[at] = lane;
    };
    const auto pass = [&](const Op& op, LayerPrice x) {
      add(compute, compute, kind(size_t(op.layer)) * kPriceKinds + x);
    };
    for (size_t i = part.begin; i < part.end; i++) {
      if (i == lane_begin && from_lane) lane = {0, -1};
      if (i == part.received) compute = {way == kComputeToCompute || way == kComputeToLane ? 0 : kNoWay, -1};
      if (i == part.compute_end) at_end = compute;
      const Op& op = ops[i];
      at_op = i;
      switch (op.kind) {
        case OpKind::forward:
          pass(op, kForward);
          break;
        case OpKind::again:
          pass(op, kAgain);
          break;
        case OpKind::input:
          pass(op, kInput);
          break;
        case OpKind::weight:
          pass(op, kWeight);
          break;
        case OpKind::gather:
        case OpKind::spread:
          collective(op, kGather, kGatherExperts);
          break;
        case OpKind::reduce:
          collective(op, kReduce, kReduceExperts);
          break;
        case OpKind::arrive:
        case OpKind::retire:
          if (op.after >= int32_t(part.begin))
            if (const Clock& there = ends[size_t(op.after) - part.begin]; there.now > compute.now)
              compute = there;
          break;
        case OpKind::norm:
          add(compute, compute, kRankUpdate);
          break;
        case OpKind::update:
          if (const UnitShape& unit = shape.units[size_t(op.unit)]; !unit.experts)
            add(compute, compute, kind(unit.layer) * kPriceKinds + kUpdate);
          break;
        default:
          break;
      }
    }
    if (part.compute_end == part.end) at_end = compute;
    const Clock* end = way <= kBeforeToCompute ? &at_end : &lane;
    if (part.last_of_both && compute.now > end->now) end = &compute;
    if (end->now < 0) return {};
    std::vector<Taken> path;
    for (int n = end->node; n >= 0; n = nodes[size_t(n)].before) path.push_back(nodes[size_t(n)].taken);
    return path;
  }
  static Counts counts_of(std::span<const Taken> path) {
    Prices counts{};
    for (const Taken& t : path) counts[t.price] += 1;
    return Counts(counts);
  }

  Layers layers_;
  Mesh mesh_;
  Structure structure_;
  WorldWork work_;
  StageProgram both_, split_;
  std::array<Whole, size_t(kWhole)> whole_;  // by microbatches
  std::array<Part, kSpans + 1> parts_{};
  std::array<Counts, 2> lane_{};  // split or not
  struct Ways {
    bool none = false;
    Paths<Counts> paths;
  };
  std::array<std::array<Ways, kWays>, kSpans + 1> ways_;
};

// ---- between stages ----

// The actions and messages of a schedule; paths through the clocks of its ranks count what actions add.
class PipelinePaths {
 public:
  // classes: by stage.
  PipelinePaths(std::string_view name, int64_t pp, int64_t chunks, int64_t microbatches,
                const std::vector<int>& classes) {
    const int64_t run = exact(name, pp, microbatches);
    Schedule s = make_schedule(name, int(pp), int(chunks), int(run));
    if (run < microbatches) {
      part_ = steady_part(s);
      if (part_ && (microbatches - run) % part_->period == 0)
        fewer_ = microbatches - run;
      else
        s = make_schedule(name, int(pp), int(chunks), int(microbatches));
    }
    s = add_step(add_transfers(std::move(s)));
    stages_ = s.stages, microbatches_ = s.microbatches;
    ranks_.resize(s.ranks.size());
    const std::vector<int> holder = rank_of_stages(s);
    for (size_t r = 0; r < s.ranks.size(); r++) {
      std::map<int, size_t> last;  // by stage: its last weight gradient
      const Action* before = nullptr;
      size_t passes = 0;
      for (const Action& a : s.ranks[r]) {
        if (!has_microbatch(a.kind)) continue;
        Step step{.kind = a.kind, .stage = a.stage, .mb = a.mb};
        if (fewer_ > 0) step.steady = passes >= part_->ranks[r].begin && passes < part_->ranks[r].end;
        if (a.kind == Act::RecvF || a.kind == Act::RecvB) {
          step.message = number(a.stage, a.mb, a.kind == Act::RecvB);
        } else if (a.kind == Act::SendF || a.kind == Act::SendB) {
          const bool back = a.kind == Act::SendB;
          step.message = number(a.stage + (back ? -1 : 1), a.mb, back);
          step.to = holder[size_t(a.stage + (back ? -1 : 1))];
        } else {
          split_ |= a.kind == Act::W;
          step.span = span_of(a, before);
          passes++;
          if (a.kind == Act::B || a.kind == Act::W) last[a.stage] = ranks_[r].size();
          before = &a;
        }
        ranks_[r].push_back(step);
      }
      for (const auto& [stage, at] : last) {
        ActionSpan& span = ranks_[r][at].span;
        span = span == kB ? kSummedB : span == kTurnedB ? kTurnedSummedB : kSummedW;
      }
      for (Step& step : ranks_[r])
        if (step.to < 0 && step.message < 0) step.price = price_of({classes[size_t(step.stage)], step.span});
    }
    for (std::vector<Step>& rank : ranks_)
      for (Step& step : rank)
        if (step.to >= 0) step.price = message();
  }

  struct Added {
    int stage_class = 0;
    ActionSpan span = kF;
    bool operator==(const Added&) const = default;
  };
  // kWays prices for each of these, then the message's.
  const std::vector<Added>& added() const { return added_; }
  uint32_t message() const { return uint32_t(added_.size() * kWays); }
  bool split() const { return split_; }

  struct Path {
    double total = 0;
    const Counts* counts = nullptr;
  };
  Path longest(const std::vector<double>& prices, Profile profile, bool exact) {
    if (paths_.fresh(profile, exact || paths_.all.empty())) search(prices);
    Path most;
    for (const Counts& c : paths_.all)
      if (const double s = c.sum(prices); !most.counts || s > most.total) most = {s, &c};
    return most;
  }

 private:
  struct Step {
    Act kind = Act::F;
    int16_t stage = 0, mb = 0;
    int32_t message = -1, to = -1;
    ActionSpan span = kF;
    uint32_t price = 0;   // that of the first way
    bool steady = false;  // in the part of the rank's actions that repeats
  };
  struct Node {
    double end = 0;
    int32_t before = -1;
    uint32_t price = 0;
    int32_t rank = 0, step = 0;
  };
  // Microbatches of the schedule that is run. Further ones repeat its middle.
  static int64_t exact(std::string_view name, int64_t pp, int64_t m) {
    constexpr int64_t kTurns = 6;
    const int64_t most = kTurns * pp;
    return name == "gpipe" || m <= most + pp ? m : most + m % pp;
  }
  static ActionSpan span_of(const Action& a, const Action* before) {
    const bool same = before && before->stage == a.stage;
    switch (a.kind) {
      case Act::F:
        return same && before->kind == Act::B ? kTurnedF : kF;
      case Act::B:
        return same && before->kind == Act::F ? kTurnedB : kB;
      case Act::I:
        return same && before->kind == Act::F ? kTurnedI : kI;
      default:
        return kW;
    }
  }
  int32_t number(int to, int mb, bool back) const { return (int32_t(mb) * stages_ + to) * 2 + back; }
  uint32_t price_of(const Added& a) {
    const auto known = std::find(added_.begin(), added_.end(), a);
    if (known == added_.end()) added_.push_back(a);
    return uint32_t(size_t(std::find(added_.begin(), added_.end(), a) - added_.begin()) * kWays);
  }

  // The clocks of a rank, as the nodes that set them; -1: the step's begin.
  struct Clocks {
    int32_t compute = -1, before = -1, lane = -1, on = -1, back = -1;
  };
  void search(const std::vector<double>& prices) {
    std::vector<Node> nodes;
    size_t steps = 0;
    for (const std::vector<Step>& rank : ranks_) steps += rank.size();
    nodes.reserve(2 * steps);
    std::vector<int32_t> there(size_t(microbatches_) * size_t(stages_) * 2, -1);
    std::vector<size_t> at(ranks_.size());
    std::vector<Clocks> clocks(ranks_.size());
    const auto time = [&](int32_t n) { return n < 0 ? 0.0 : nodes[size_t(n)].end; };
    std::vector<size_t> awake;
    for (size_t r = ranks_.size(); r-- > 0;) awake.push_back(r);
    while (!awake.empty()) {
      const size_t r = awake.back();
      awake.pop_back();
      Clocks& c = clocks[r];
      for (; at[r] < ranks_[r].size(); at[r]++) {
        const Step& step = ranks_[r][at[r]];
        const auto add = [&](int32_t before, uint32_t price) {
          nodes.push_back({time(before) + prices[price], before, price, int32_t(r), int32_t(at[r])});
          return int32_t(nodes.size()) - 1;
        };
        if (step.to >= 0) {
          int32_t& stream = step.kind == Act::SendB ? c.back : c.on;
          stream = add(time(stream) > time(c.compute) ? stream : c.compute, step.price);
          there[size_t(step.message)] = stream, awake.push_back(size_t(step.to));
        } else if (step.message >= 0) {
          const int32_t m = there[size_t(step.message)];
          if (m < 0) break;
          if (time(m) > time(c.compute)) c.compute = m;
        } else {
          const double* way = &prices[step.price];
          const auto later = [&](Way first) {
            const int32_t from[] = {c.compute, c.lane, c.before};
            size_t most = 0;
            for (size_t i = 1; i < std::size(from); i++)
              if (time(from[i]) + way[first + i] > time(from[most]) + way[first + most]) most = i;
            return add(from[most], step.price + uint32_t(first + most));
          };
          const int32_t compute = later(kComputeToCompute);
          c.lane = later(kComputeToLane);
          c.before = c.compute = compute;
        }
      }
    }
    int32_t last = -1;
    for (size_t r = 0; r < ranks_.size(); r++) {
      require(at[r] == ranks_[r].size(), "a schedule stalls without a cause");
      for (const int32_t n : {clocks[r].compute, clocks[r].lane})
        if (last < 0 || time(n) > time(last)) last = n;
    }
    std::vector<int32_t> path;
    for (int32_t n = last; n >= 0; n = nodes[size_t(n)].before) path.push_back(n);
    std::vector<float> counts(message() + 1, 0);
    for (const int32_t n : path) counts[nodes[size_t(n)].price] += 1;
    if (fewer_ > 0) add_repeats(nodes, path, counts);
    paths_.add(Counts(counts));
  }
  // Between two actions of the path that differ only in their microbatch lies a cycle, which further
  // microbatches repeat. The longest cycles are taken first.
  void add_repeats(const std::vector<Node>& nodes, const std::vector<int32_t>& path,
                   std::vector<float>& counts) const {
    struct Cycle {
      double each = 0;  // nanoseconds of a microbatch
      int64_t microbatches = 0;
      size_t from = 0, to = 0;  // in `path`
    };
    std::vector<Cycle> best;  // by microbatches
    const auto step_of = [&](const Node& n) -> const Step& { return ranks_[size_t(n.rank)][size_t(n.step)]; };
    // Some begins of cycles, and cycles that are not long.
    constexpr size_t kBegins = 24;
    const int64_t longest = std::max<int64_t>(part_->period, 2 * int64_t(ranks_.size()));
    size_t steady = 0;
    for (const int32_t n : path) steady += step_of(nodes[size_t(n)]).steady;
    const size_t stride = std::max<size_t>(1, steady / kBegins);
    size_t met = 0;
    for (size_t i = 0; i < path.size(); i++) {
      const Node& a = nodes[size_t(path[i])];
      const Step& x = step_of(a);
      if (!x.steady || met++ % stride != 0) continue;
      for (size_t j = i; j-- > 0;) {
        const Node& b = nodes[size_t(path[j])];
        const Step& y = step_of(b);
        if (!y.steady || y.mb - x.mb > longest + int64_t(ranks_.size())) break;
        if (a.rank != b.rank || a.price != b.price) continue;
        const int64_t apart = y.mb - x.mb;
        if (x.kind != y.kind || x.stage != y.stage || apart <= 0 || apart > fewer_ ||
            apart % part_->period != 0)
          continue;
        if (apart > longest) break;
        const double each = (b.end - a.end) / double(apart);
        const auto known =
            std::find_if(best.begin(), best.end(), [&](const Cycle& c) { return c.microbatches == apart; });
        if (known == best.end())
          best.push_back({each, apart, j, i});
        else if (each > known->each)
          *known = {each, apart, j, i};
      }
    }
    std::sort(best.begin(), best.end(), [](const Cycle& a, const Cycle& b) { return a.each > b.each; });
    int64_t left = fewer_;
    for (const Cycle& c : best) {
      const int64_t times = left / c.microbatches;
      for (size_t k = c.from; k < c.to; k++) counts[nodes[size_t(path[k])].price] += float(times);
      left -= times * c.microbatches;
    }
  }

  int stages_ = 0, microbatches_ = 0;
  int64_t fewer_ = 0;  // microbatches that are not run
  std::optional<SteadyPart> part_;
  std::vector<std::vector<Step>> ranks_;
  std::vector<Added> added_;
  bool split_ = false;  // gradients of inputs and weights are separate actions
  Paths<Counts> paths_;
};

}  // namespace step_paths

using namespace step_paths;

struct StepBound::Impl {
  ModelSpec model;
  int64_t seq = 0;
  std::string cut;

  // The stages of a division: each stage's class and each rank's layers, as one class.
  struct Cut {
    std::vector<Layers> classes;  // stages' first
    std::vector<int> of_stage;
    std::vector<int> ranks;  // classes, each once
    size_t stage_classes = 0;
  };
  std::map<std::tuple<std::string_view, int64_t, int64_t>, Cut> cuts;  // schedule, pp, chunks
  std::map<std::tuple<std::string_view, int64_t, int64_t, int64_t>, std::unique_ptr<PipelinePaths>> pipelines;
  using Stages = std::vector<std::unique_ptr<StagePaths>>;  // by class of the cut
  std::map<std::pair<const Cut*, Structure>, Stages> stages;
  std::vector<double> prices;

  const Cut& cut_of(const BoundCase& c) {
    const auto [it, fresh] = cuts.try_emplace({c.schedule, c.pp, c.chunks});
    Cut& out = it->second;
    if (!fresh) return out;
    const int n = int(c.pp * c.chunks);
    const std::vector<StageRange> ranges =
        cut == "even" ? split_evenly(model, n) : split_layers(model, seq, n);
    const auto class_of = [&](const Layers& l) {
      const auto known = std::find(out.classes.begin(), out.classes.end(), l);
      if (known != out.classes.end()) return int(known - out.classes.begin());
      out.classes.push_back(l);
      return int(out.classes.size()) - 1;
    };
    std::vector<Layers> ranks(size_t(c.pp));
    const std::vector<int> holder =
        rank_of_stages(make_schedule(c.schedule, int(c.pp), int(c.chunks), int(c.pp)));
    for (int s = 0; s < n; s++) {
      const StageRange& range = ranges[size_t(s)];
      Layers layers;
      if (range.embedding) layers.push_back(kEmbeddingLayer);
      for (int64_t b = range.first; b < range.last; b++)
        layers.push_back(model.expert_block(b) ? kExpertLayer : kDenseLayer);
      if (range.head) layers.push_back(kHeadLayer);
      Layers& rank = ranks[size_t(holder[size_t(s)])];
      rank.insert(rank.end(), layers.begin(), layers.end());
      out.of_stage.push_back(class_of(layers));
    }
    out.stage_classes = out.classes.size();
    for (const Layers& l : ranks)
      if (const int k = class_of(l); std::find(out.ranks.begin(), out.ranks.end(), k) == out.ranks.end())
        out.ranks.push_back(k);
    return out;
  }

  BoundParts of(const BoundCase& c, bool exact) {
    const Cut& cut = cut_of(c);
    const Structure structure = structure_of(c);
    Stages& paths = stages[{&cut, structure}];
    if (paths.empty())
      for (const Layers& l : cut.classes) paths.push_back(std::make_unique<StagePaths>(l, structure, c));
    std::unique_ptr<PipelinePaths>& pipeline = pipelines[{c.schedule, c.pp, c.chunks, c.microbatches}];
    if (!pipeline)
      pipeline = std::make_unique<PipelinePaths>(c.schedule, c.pp, c.chunks, c.microbatches, cut.of_stage);
    const Prices at = prices_of(*c.work);
    Profile profile = 1;
    for (const WorkLayer k : {kDenseLayer, kExpertLayer, kHeadLayer}) {
      if (k == kExpertLayer && !model.moe()) continue;
      const double* p = &at[size_t(k) * kPriceKinds];
      const double one = at[kForward] + at[size_t(kExpertLayer) * kPriceKinds + kForward];
      mix(profile, p[kReduce] + p[kReduceExperts], one);
      mix(profile, p[kGather] + p[kGatherExperts], one);
      mix(profile, p[kInput] + p[kAgain] + p[kWeight], one);
    }
    prices.assign(pipeline->message() + 1, 0);
    Profile lengths = 1;
    const std::vector<PipelinePaths::Added>& added = pipeline->added();
    for (size_t i = 0; i < added.size(); i++)
      for (size_t way = 0; way < kWays; way++) {
        double& p = prices[i * kWays + way];
        p = paths[size_t(added[i].stage_class)]->of(added[i].span, Way(way), at, profile, exact);
        mix(lengths, p, prices[0]);
      }
    prices.back() = double(c.work->message);
    mix(lengths, prices.back(), prices[0]);
    const PipelinePaths::Path path = pipeline->longest(prices, lengths, exact);
    BoundParts out;
    for (const int k : cut.ranks) {
      const StagePaths& rank = *paths[size_t(k)];
      const double own = rank.passes(at) * double(c.microbatches);
      if (own > out.busiest) out.busiest = own, out.head = rank.head(at) * double(c.microbatches);
      out.update = std::max(out.update, paths[size_t(k)]->end(at, profile, exact));
    }
    out.messages = path.counts->of(pipeline->message()) * double(c.work->message);
    // The same path without collectives among replicas.
    double passes = 0;
    for (size_t i = 0; i < added.size(); i++)
      if (const double n = path.counts->of(i * kWays + kComputeToCompute); n > 0)
        passes += n * paths[size_t(added[i].stage_class)]->passes_of(added[i].span, at);
    double length = std::max(path.total, out.busiest);
    if (c.pp == 1 && c.work->zero >= 2)
      length = std::max(length, paths[size_t(cut.ranks[0])]->whole(c.microbatches, at, profile, exact));
    if (c.work->zero >= 2)
      for (const int k : cut.ranks)
        length = std::max(length, paths[size_t(k)]->lane(pipeline->split(), at) * double(c.microbatches));
    out.bubble = std::clamp(passes - out.busiest, 0.0, length - out.busiest);
    out.messages = std::min(out.messages, length - out.busiest - out.bubble);
    out.replicas = length - out.messages - out.busiest - out.bubble;
    out.total = length + out.update;
    return out;
  }
};

StepBound::StepBound(const ModelSpec& model, int64_t seq, std::string_view cut)
    : impl_(std::make_unique<Impl>(Impl{.model = model, .seq = seq, .cut = std::string(cut)})) {}
StepBound::~StepBound() = default;
BoundParts StepBound::of(const BoundCase& c, bool exact) {
  return impl_->of(c, exact);
}

}  // namespace trireme
