#include "forecast/stage_paths.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "program/lower.h"
#include "sim/op_pieces.h"
#include "spec/run_schedule.h"

namespace trireme::step_paths {
namespace {

bool is_pass(const Op& op) {
  return op.kind == OpKind::forward || op.kind == OpKind::again || op.kind == OpKind::input ||
         op.kind == OpKind::weight;
}

size_t after_last_pass(const Program& p, size_t end) {
  while (end > 0 && !is_pass(p.ops[end - 1])) end--;
  return end;
}

size_t after_last_sum(const Program& p, size_t end) {
  const size_t pass = after_last_pass(p, end);
  while (end > pass && p.ops[end - 1].kind != OpKind::reduce) end--;
  return end;
}

const ActionOps& action_of(const Program& p, Act kind, int stage, int mb) {
  for (const ActionOps& a : p.actions)
    if (a.action.kind == kind && a.action.stage == stage && a.action.mb == mb) return a;
  run_failed("the bound's own schedule lacks an action");
}

// The first gather of an action that was issued before its begin; none: its own first one.
std::optional<size_t> first_gather(const Program& p, const ActionOps& a) {
  for (int32_t i = a.begin; i < a.end; i++)
    if (const Op& op = p.ops[size_t(i)]; op.kind == OpKind::arrive && op.after >= 0) return size_t(op.after);
  return std::nullopt;
}

double longest_of(const Paths<Counts>& paths, const Prices& prices) {
  double most = kNoWay;
  for (const Counts& c : paths.all) most = std::max(most, c.sum(prices));
  return most;
}

Act kind_of(size_t span) {
  switch (span) {
    case kF:
    case kTurnedF:
    case kDelayedF:
      return Act::F;
    case kI:
    case kTurnedI:
    case kDelayedI:
      return Act::I;
    case kW:
    case kSummedW:
      return Act::W;
    default:
      return Act::B;
  }
}

}  // namespace

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

StagePaths::StagePaths(const Layers& layers, const Structure& s, const BoundCase& c) : layers_(layers) {
  for (const int k : layers_) of_kind_[size_t(k)] += 1;
  Degrees d;
  d.ep = s.exchanges ? 2 : 1;
  (s.replicas ? d.dp : d.tp) = s.exchanges                       ? (s.expert_replicas ? 4 : 2)
                               : s.replicas || s.expert_replicas ? 2
                                                                 : 1;
  mesh_ = Mesh(d);
  structure_ = s;
  work_ = work_of(*c.work);
}

Schedule StagePaths::order(int stages, bool split) const {
  // One stage has three: the middle one's action has sums before it, and is not the last.
  const int16_t microbatches = stages == 1 ? 3 : 2;
  Schedule one{.stages = stages, .microbatches = microbatches, .ranks = {{}}};
  std::vector<Action>& all = one.ranks[0];
  const auto backward = [&](int16_t stage, int16_t mb) {
    if (split) all.push_back({Act::I, stage, mb});
    all.push_back({split ? Act::W : Act::B, stage, mb});
  };
  for (int16_t mb = 0; mb < microbatches; mb++)
    for (int16_t s = 0; s < stages; s++) {
      all.push_back({Act::F, s, mb});
      if (stages == 1) backward(s, mb);
    }
  for (int16_t mb = 0; mb < 2 && stages > 1; mb++)
    for (int16_t s = 0; s < stages; s++) backward(s, mb);
  return with_all(std::move(one));
}

// The stage by itself.
void StagePaths::ensure_own(bool split) {
  if (std::exchange(own_made_[split], true)) return;
  make(programs_[split], order(1, split));
  find_spans(programs_[split], split);
  lane_[split] = count_lane(programs_[split]);
}

void StagePaths::ensure(bool split) {
  ensure_own(split);
  if (std::exchange(made_[split], true) || !gathers_in_passes()) return;
  make(between_[split], order(2, split));
  find_ahead(split);
  find_turned(split);
  if (!many_) find_repeated(split);
}

std::span<const StagePaths::Live> StagePaths::of(ActionSpan plain, NextAction next, const PricesAt& at) {
  ensure(plain == kDelayedF || kind_of(plain) == Act::I || kind_of(plain) == Act::W);
  const bool other = !gathers_in_passes() || (next == kNextRepeated && many_);
  const size_t span = before(other ? kNextOther : next, plain);
  Searched& k = searched(span);
  if (!at.exact && k.number == at.number && k.prices == at.prices) return k.live;
  k.number = at.exact ? 0 : at.number;
  k.prices = at.prices;
  k.live.clear();
  const bool look = at.exact || k.tried.add(at.profile);
  if (look || k.there.empty()) {
    for (size_t from = 0; from < kFroms; from++) search(span, ClockFrom(from), at, look);
    k.there.clear();
    for (size_t way = 0; way < kFetch; way++)
      if (!k.ways[way].paths.all.empty()) k.there.push_back(way);
  }
  for (const size_t way : k.there) k.live.push_back({way, longest_of(k.ways[way].paths, at.prices)});
  if (const double ns = fetch_[plain].sum(at.prices); ns > 0) {
    k.live.push_back({kFetch, ns});
    if (many_) k.live.push_back({kFetchAgain, ns});
  }
  return k.live;
}

double StagePaths::whole(int64_t microbatches, const PricesAt& at) {
  const int64_t run = std::min(microbatches, kWhole);
  Whole& w = whole_[size_t(run) - 1];
  if (w.program.program.ops.empty()) {
    Schedule one{.stages = 1, .microbatches = int(run), .ranks = {{}}};
    for (int16_t mb = 0; mb < run; mb++)
      for (const Act a : {Act::F, Act::B}) one.ranks[0].push_back({a, 0, mb});
    make(w.program, with_all(std::move(one)));
    const auto norm = size_t(w.program.program.norm);
    w.part = {.program = &w.program,
              .compute_end = norm,
              .end = norm,
              .last_of_both = true,
              .others = std::vector<char>(norm, 0)};
  }
  if (at.exact || w.paths.all.empty() || (!w.paths.settled() && w.tried.add(at.profile)))
    w.paths.add(whole_path(w, at.prices));
  double most = 0;
  for (const WholePath& p : w.paths.all)
    most = std::max(most, p.once.sum(at.prices) + double(microbatches - run) * p.again.sum(at.prices));
  return most;
}

double StagePaths::end(const PricesAt& at) {
  ensure_own(false);
  Searched& s = searched(kEnd);
  search(kEnd, kFromCompute, at, at.exact || s.tried.add(at.profile));
  return std::max(longest_of(s.ways[way_of(kFromCompute, kToCompute)].paths, at.prices),
                  longest_of(s.ways[way_of(kFromCompute, kToLane)].paths, at.prices));
}

double StagePaths::lane(bool split, const Prices& prices) {
  ensure_own(split);
  return lane_[split].sum(prices) / 3;
}

double StagePaths::passes_of(ActionSpan span, const Prices& p) const {
  const Act kind = kind_of(span);
  double s = 0;
  for (size_t k = 0; k < size_t(kWorkLayers); k++) {
    const double* l = &p[k * kPriceKinds];
    const double input = l[kAgain] + l[kInput];
    s += of_kind_[k] * (kind == Act::F   ? l[kForward]
                        : kind == Act::I ? input
                        : kind == Act::W ? l[kWeight]
                                         : input + l[kWeight]);
  }
  return s;
}

double StagePaths::passes(const Prices& p) const {
  return passes_of(kF, p) + passes_of(kB, p);
}

double StagePaths::head(const Prices& p) const {
  double s = 0;
  for (const LayerPrice x : {kForward, kInput, kWeight}) s += p[size_t(kHeadLayer) * kPriceKinds + x];
  return of_kind_[size_t(kHeadLayer)] * s;
}

Counts StagePaths::counts_of(std::span<const Taken> path) {
  Prices counts{};
  for (const Taken& t : path) counts[t.price] += 1;
  return Counts(counts);
}

StagePaths::WholePath StagePaths::whole_path(const Whole& w, const Prices& prices) const {
  const std::vector<Taken> path = *longest(w.part, kFromCompute, prices)[kToLane];
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

// Its own layers are the last stage's. The other stage has as many as are gathered ahead.
WorldWork StagePaths::work_of(const WorldWork& w) const {
  WorldWork out = w;
  out.stages.assign(2, {});
  int block = kDenseLayer;
  for (const int k : layers_) {
    out.stages[1].layers.push_back({"", k});
    if (k == kExpertLayer) block = k;
  }
  out.stages[0].layers.assign(size_t(std::max<int64_t>(2, w.prefetch)), {"", block});
  out.update.resize(1);
  return out;
}

Schedule StagePaths::with_all(Schedule s) const {
  return with_passes(std::move(s), {.recomputes = structure_.recomputes,
                                    .replicas = structure_.replicas,
                                    .zero = structure_.zero,
                                    .reshard_after_forward = structure_.reshard_after_forward,
                                    .exchanges = structure_.exchanges});
}

void StagePaths::make(StageProgram& p, Schedule schedule) const {
  World w{.mesh = mesh_, .schedule = std::move(schedule), .work = work_};
  if (w.schedule.stages == 1) w.work.stages.erase(w.work.stages.begin());
  p.shape = shape_of(w, 0);
  for (const StageWork& stage : w.work.stages)
    for (const StageWork::Layer& l : stage.layers) p.kinds.push_back(l.kind);
  p.program = lower({.actions = w.schedule.ranks[0], .holders = nullptr, .send_ends = {}, .settle_at = {}},
                    p.shape, policy_of(w));
}

// ZeRO 2 and 3: collectives of all three microbatches before the norm.
Counts StagePaths::count_lane(const StageProgram& p) const {
  Prices counts{};
  for (size_t i = 0; i < size_t(p.program.norm); i++) {
    const Op& op = p.program.ops[i];
    if (op.kind != OpKind::gather && op.kind != OpKind::reduce) continue;
    for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++) {
      const UnitShape& unit = p.shape.units[size_t(u)];
      const size_t dense = op.kind == OpKind::gather ? kGather : kReduce;
      if (unit.reduces)
        counts[size_t(p.kinds[unit.layer]) * kPriceKinds + dense +
               (unit.experts ? kReduceExperts - kReduce : 0)] += 1;
    }
  }
  return Counts(counts);
}

void StagePaths::set_part(const StageProgram& p, size_t begin, size_t received, size_t end,
                          Part& part) const {
  part = {.program = &p,
          .begin = begin,
          .received = received,
          .compute_end = after_last_sum(p.program, end),
          .end = end,
          .others = std::vector<char>(end - begin)};
  for (size_t i = begin; i < end; i++) {
    const Op& op = p.program.ops[i];
    part.sums_before |= i < received && op.kind == OpKind::reduce;
    if (op.kind == OpKind::gather || i < received) part.others[i - begin] = 1;
    if (op.kind == OpKind::arrive && op.after >= int32_t(begin)) part.others[size_t(op.after) - begin] = 0;
  }
}

// Finds the operations of each span.
void StagePaths::find_spans(const StageProgram& p, bool split) {
  const auto set = [&](ActionSpan plain, ActionSpan turned, Act kind, int mb, bool last) {
    const ActionOps& a = action_of(p.program, kind, 0, mb);
    const size_t end = last ? size_t(p.program.norm) : size_t(a.end);
    for (const auto& [span, begin] :
         {std::pair{turned, after_last_pass(p.program, size_t(a.begin))}, {plain, size_t(a.begin)}}) {
      set_part(p, begin, size_t(a.begin), end, parts_[span]);
      parts_[span].compute_end = after_last_sum(p.program, size_t(a.end));
    }
  };
  if (split) {
    set(kI, kTurnedI, Act::I, 1, false);
    parts_[kDelayedI] = parts_[kI];
    set(kDelayedF, kDelayedF, Act::F, 1, false);
    set(kW, kW, Act::W, 1, false);
    set(kSummedW, kSummedW, Act::W, 2, true);
    return;
  }
  set(kF, kTurnedF, Act::F, 1, false);
  set(kB, kTurnedB, Act::B, 1, false);
  set(kSummedB, kTurnedSummedB, Act::B, 2, true);
  const size_t all = p.program.ops.size();
  parts_[kEnd] = {.program = &p,
                  .begin = size_t(p.program.norm),
                  .received = size_t(p.program.norm),
                  .compute_end = all,
                  .end = all,
                  .others = std::vector<char>(all, 0)};
}

// Between actions of another stage: after how many passes the next action's first weights may be gathered,
// and which of its own were gathered before it began.
void StagePaths::find_ahead(bool split) {
  const Program& between = between_[split].program;
  const RankShape& shape = between_[split].shape;
  const size_t first_own = shape.stages[1].first;
  size_t uses = 0;
  for (size_t l = first_own; l < shape.layers.size(); l++) uses += shape.layers[l].units.size();
  // Weights that are used again at once are skipped: with so few, what follows is gathered before the action.
  many_ = uses > size_t(structure_.prefetch);
  for (size_t span = 0; span < kSpans; span++) {
    const Act kind = kind_of(span);
    if ((kind == Act::I || kind == Act::W || span == kDelayedF) != split) continue;
    const ActionOps& own = action_of(between, kind, 1, 0);
    const ActionOps& next = action_of(between, kind == Act::W ? Act::I : kind, 0, 1);
    const std::optional<size_t> gather = first_gather(between, next);
    const auto begin = size_t(own.begin), end = size_t(own.end);
    const bool plain = span == kF || span == kB || span == kI;
    const bool turned = span != kW && !plain && span != kSummedB && span != kSummedW;
    if (plain) set_part(between_[split], begin, begin, end, parts_[span]);
    if (gather && *gather >= begin && *gather < end && (many_ || !turned)) {
      Part& part = parts_[span];
      const auto passes =
          std::count_if(between.ops.begin() + own.begin, between.ops.begin() + int64_t(*gather), is_pass);
      // Other operations may differ from those between two stages, so this is the earliest place.
      size_t at = part.received;
      for (int64_t left = passes; left > 0; at++) left -= is_pass(part.program->program.ops[at]);
      part.ahead = plain ? *gather : at;
      part.ahead_is_exact = plain;
    }
    if (!plain && span != kSummedB) continue;
    if (span == kSummedB) parts_[span] = parts_[kB];  // another stage's action comes after it too
    Prices counts{};
    for (size_t i = begin; i < end; i++) {
      const Op& op = between.ops[i];
      if (op.kind != OpKind::arrive || op.after < 0 || op.after >= own.begin) continue;
      const UnitShape& unit = shape.units[size_t(op.unit)];
      if (!unit.reduces || unit.layer < first_own) continue;
      counts[size_t(between_[split].kinds[unit.layer]) * kPriceKinds +
             (unit.experts ? kGatherExperts : kGather)] += 1;
    }
    fetch_[span] = Counts(counts);
  }
}

// Gathers of an action for the next one. A turned action's own part has those after the last pass.
void StagePaths::set_gathered(Part& part, const ActionOps& next, bool turned) const {
  const std::vector<Op>& ops = part.program->program.ops;
  const size_t begin =
      turned ? after_last_pass(part.program->program, size_t(next.begin)) : size_t(next.begin);
  part.ahead = kNever;
  for (auto i = size_t(next.begin); i < size_t(next.end); i++) {
    if (ops[i].kind != OpKind::arrive || ops[i].after < 0) continue;
    const auto gather = size_t(ops[i].after);
    if (gather < part.received || gather >= std::min(begin, part.end)) continue;
    part.others[gather - part.begin] = 0;
    part.gathered = part.gathered == kNever ? gather : std::max(part.gathered, gather);
  }
}

// Actions before turned ones, between which there is no other stage.
void StagePaths::find_turned(bool split) {
  const Program& own = programs_[split].program;
  // Stage 1 runs F0 and its backward pass; then, after another stage's action, the backward pass of 1 and F2.
  Schedule s{.stages = 2, .microbatches = 3, .ranks = {{}}};
  std::vector<Action>& all = s.ranks[0];
  const auto forward = [&](int16_t stage, int16_t mb) { all.push_back({Act::F, stage, mb}); };
  const auto backward = [&](int16_t stage, int16_t mb) {
    if (split) all.push_back({Act::I, stage, mb});
    all.push_back({split ? Act::W : Act::B, stage, mb});
  };
  forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0);
  forward(0, 1), forward(1, 1), forward(0, 2), backward(1, 1), forward(1, 2), backward(1, 2);
  backward(0, 1), backward(0, 2);
  make(turned_[split], with_all(std::move(s)));
  const Act back = split ? Act::I : Act::B;
  // A turned part, the action before it.
  const auto set_fetched = [&](size_t span, const ActionOps& before) {
    Part& part = parts_[span];
    part.turned = true;
    for (size_t i = part.received; i < part.end; i++) {
      const Op& op = own.ops[i];
      if (op.kind != OpKind::arrive || op.after < before.begin || size_t(op.after) >= part.begin) continue;
      part.fetched = part.fetched == kNever ? size_t(op.after) : std::max(part.fetched, size_t(op.after));
    }
  };
  const auto copy = [&](size_t span, const ActionOps& turned) {
    Part& part = parts_[before(kNextTurned, span)];
    part = parts_[span];
    set_gathered(part, turned, true);
  };
  const auto plain = [&](size_t span, const ActionOps& a, const ActionOps& turned) {
    Part& part = parts_[before(kNextTurned, span)];
    set_part(turned_[split], size_t(a.begin), size_t(a.begin), size_t(a.end), part);
    set_gathered(part, turned, true);
  };
  const ActionOps &forward1 = action_of(own, Act::F, 0, 1), &forward2 = action_of(own, Act::F, 0, 2),
                  &back0 = action_of(own, back, 0, 0), &back1 = action_of(own, back, 0, 1);
  set_fetched(split ? kDelayedF : kTurnedF, back0);
  set_fetched(split ? kTurnedI : kTurnedB, forward1);
  copy(split ? kDelayedF : kTurnedF, back1);
  copy(split ? kTurnedI : kTurnedB, forward2);
  const Program& turned = turned_[split].program;
  plain(split ? kI : kB, action_of(turned, back, 1, 1), action_of(turned, Act::F, 1, 2));
  if (split) {
    parts_[before(kNextTurned, kDelayedI)] = parts_[before(kNextTurned, kI)];
    copy(kW, forward2);
    parts_[before(kNextTurned, kSummedW)] = parts_[kSummedW];
  } else {
    plain(kF, action_of(turned, Act::F, 1, 0), action_of(turned, Act::B, 1, 0));
    parts_[before(kNextTurned, kSummedB)] = parts_[kSummedB];
    parts_[before(kNextTurned, kTurnedSummedB)] = parts_[kTurnedSummedB];
  }
}

void StagePaths::find_repeated(bool split) {
  Schedule s{.stages = 1, .microbatches = 3, .ranks = {{}}};
  std::vector<Action>& all = s.ranks[0];
  const Act back = split ? Act::I : Act::B;
  for (const Act a : {Act::F, back, Act::W})
    for (int16_t mb = 0; mb < 3 && (split || a != Act::W); mb++) all.push_back({a, 0, mb});
  make(repeated_[split], with_all(std::move(s)));
  for (size_t span = 0; span < kSpans; span++) {
    const Act kind = kind_of(span);
    if ((kind == Act::I || kind == Act::W || span == kDelayedF) != split) continue;
    Part& part = parts_[before(kNextRepeated, span)];
    part = parts_[span];
    if (span != kF && span != kB && span != kI) continue;
    const ActionOps& a = action_of(repeated_[split].program, kind, 0, 1);
    set_part(repeated_[split], size_t(a.begin), size_t(a.begin), size_t(a.end), part);
    set_gathered(part, action_of(repeated_[split].program, kind, 0, 2), false);
  }
}

bool StagePaths::has_way(const Part& part, ClockFrom from, ClockTo to) const {
  if (to == kToAhead && part.ahead == kNever && part.gathered == kNever) return false;
  if (from == kFromFetched) return gathers_in_passes() && (!part.turned || part.fetched != kNever);
  if (from == kFromAhead) return part.ahead != kNever && part.ahead_is_exact;
  return true;
}

// Finds paths from a clock to all others, where more may be found.
void StagePaths::search(size_t span, ClockFrom from, const PricesAt& at, bool look) {
  std::array<Way*, kTos> ways{};
  bool any = false;
  for (size_t to = 0; to < kTos; to++) {
    Way& w = searched(span).ways[way_of(from, ClockTo(to))];
    w.none = w.none || !has_way(parts_[span], from, ClockTo(to));
    if (w.none || (!w.paths.all.empty() && !(look && (at.exact || !w.paths.settled())))) continue;
    ways[to] = &w;
    any = true;
  }
  if (!any) return;
  const ToPaths found = longest(parts_[span], from, at.prices);
  for (size_t to = 0; to < kTos; to++)
    if (ways[to] && found[to])
      ways[to]->paths.add(counts_of(*found[to]));
    else if (ways[to])
      ways[to]->none = true;
}

// The longest paths, the last one first. Operations before the part have ended.
StagePaths::ToPaths StagePaths::longest(const Part& part, ClockFrom from, const Prices& prices) const {
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
  Clock compute, lane, at_end, ahead, sum, sum_before;
  // After the sum of the actions before that a path comes from.
  const auto after_sum = [&](size_t at) {
    while (at > 0 && ops[at - 1].kind != OpKind::reduce) at--;
    return at;
  };
  size_t summed = after_sum(part.received);
  if (from == kFromSumBefore) summed = summed > 0 ? after_sum(summed - 1) : 0;
  const bool from_sum = (from == kFromSum || from == kFromSumBefore) && summed > 0;
  // Gathers that were issued before the sums of the action before do not wait for these.
  const size_t lane_begin = part.sums_before ? part.received : part.begin;
  const bool fetched = from == kFromFetched;
  if (from == kFromBefore) compute.now = 0;
  std::vector<Clock> ends(part.end - part.begin);  // by operation, of its collectives
  size_t at_op = 0;
  const auto add = [&](Clock& clock, const Clock& before, size_t price) {
    if (before.now < 0) return;
    nodes.push_back({before.now + prices[price], before.node, {price, at_op}});
    clock = {nodes.back().end, int(nodes.size()) - 1};
  };
  const auto later = [](const Clock& a, const Clock& b) -> const Clock& { return b.now > a.now ? b : a; };
  const auto collective = [&](const Op& op, LayerPrice dense, LayerPrice experts) {
    const size_t at = size_t(&op - ops.data()) - part.begin;
    if (part.others[at]) return;
    for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++) {
      const UnitShape& unit = shape.units[size_t(u)];
      if (!unit.reduces) continue;
      const size_t price =
          size_t(part.program->kinds[unit.layer]) * kPriceKinds + (unit.experts ? experts : dense);
      if (prices[price] > 0) add(lane, later(lane, compute), price);
    }
    ends[at] = lane;
  };
  const auto pass = [&](const Op& op, LayerPrice x) {
    add(compute, compute, size_t(part.program->kinds[size_t(op.layer)]) * kPriceKinds + x);
  };
  for (size_t i = part.begin; i < part.end; i++) {
    if (i == lane_begin && (from == kFromLane || fetched)) lane = {0, -1};
    if (i == part.received) compute = {from == kFromCompute ? 0 : kNoWay, -1};
    if (i == part.compute_end) at_end = compute;
    if (i == part.ahead) ahead = later(lane, compute);
    if (i == part.ahead && from == kFromAhead) lane = {0, -1};
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
        if (part.others[i - part.begin] == 0) sum_before = std::exchange(sum, lane);
        break;
      case OpKind::arrive:
      case OpKind::retire:
        if (from_sum && i >= part.received && op.kind == OpKind::retire && op.after + 1 == int32_t(summed))
          compute = later(compute, {0, -1});
        else if (op.after >= int32_t(part.begin))
          compute = later(compute, ends[size_t(op.after) - part.begin]);
        else if (fetched && op.kind == OpKind::arrive &&
                 (part.turned ? size_t(op.after) == part.fetched : compute.now < 0))
          compute = later(compute, {0, -1});
        break;
      case OpKind::norm:
        add(compute, compute, kRankUpdate);
        break;
      case OpKind::update:
        if (const UnitShape& unit = shape.units[size_t(op.unit)]; !unit.experts)
          add(compute, compute, size_t(part.program->kinds[unit.layer]) * kPriceKinds + kUpdate);
        break;
      default:
        break;
    }
  }
  if (part.gathered != kNever) ahead = ends[part.gathered - part.begin];
  if (part.compute_end == part.end) at_end = compute;
  if (part.ahead == part.end) ahead = later(lane, compute);
  if (part.ahead == part.end && from == kFromAhead) lane = {0, -1};
  const Clock& at_lane = part.last_of_both && compute.now > lane.now ? compute : lane;
  const std::array<const Clock*, kTos> end = {&at_end, &at_lane, &ahead, &sum, &sum_before};
  ToPaths paths;
  for (size_t to = 0; to < kTos; to++) {
    if (end[to]->now < 0) continue;
    std::vector<Taken>& path = paths[to].emplace();
    for (int n = end[to]->node; n >= 0; n = nodes[size_t(n)].before) path.push_back(nodes[size_t(n)].taken);
  }
  return paths;
}

}  // namespace trireme::step_paths
