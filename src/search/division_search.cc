#include "search/division_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/divisors.h"
#include "forecast/scaled_run.h"

namespace trireme {

void DivisionSearch::set_waits() {
  RejectedValues rejected;
  const auto allows = [&](bool offload) {
    return meets(q_.require, RequirementLevel::offload, {.offload = offload}, rejected);
  };
  if (waits_ == 2 && !allows(true)) waits_ = 1;
  if (!allows(false)) first_wait_ = 1;
  if (first_wait_ == waits_) out_.unmet = rejected;
}

void DivisionSearch::list_schedules() {
  schedules_.clear();
  if (at_.pp == 1) {
    schedules_.push_back({&known_schedules()[0], 1});
    return;
  }
  const int64_t layers = q_.model.layers;
  const auto add = [&](const KnownSchedule& s, int64_t chunks) {
    schedules_.push_back({&s, chunks});
    if (!q_.kinds) return;
    at_.nearest = Nearest::tensor;  // another order has the same devices, or each rank has all kinds
    for (const NumberList* layers_of : cuts_.of(s.name, chunks, q_.kinds->of_ranks(degrees_of(at_))))
      if (layers_of) schedules_.push_back({&s, chunks, layers_of});
  };
  for (const KnownSchedule& s : known_schedules()) {
    if (s.name == "interleaved") {
      for (int64_t v = 2; v * at_.pp <= layers; v++)
        if (chunks_divide(layers, at_.pp, v)) add(s, v);
    } else if (!is_v(s.order)) {
      add(s, 1);
    } else if (layers % (2 * at_.pp) == 0) {
      add(s, 2);
    }
  }
}

void DivisionSearch::list_shardings() {
  shardings_ = {{0, 0}};
  const int64_t replicas = at_.dp * at_.cp;
  if (replicas > 1) {
    for (const int zero : {1, 2, 3}) shardings_.push_back({zero, 0});
    // With ep or tp this version's experts have one shard group.
    const bool whole = q_.software.taped() && q_.model.moe() && (at_.ep > 1 || at_.tp > 1);
    for (const int64_t d : divisors_of(whole ? 1 : replicas))
      if (d > 1 && d < replicas) shardings_.push_back({3, d});
  }
  std::erase_if(shardings_, [&](const Sharding& s) {
    at_.zero = s.zero;
    at_.shards = s.shards;
    return !allowed(RequirementLevel::sharding);
  });
}

// Orders that are the same to the closed forms are priced once.
void DivisionSearch::list_orders() {
  orders_ = {Nearest::tensor};
  if (double(at_.gpus) > q_.figures.near) {
    if (at_.pp > 1 && at_.dp > 1) orders_.push_back(Nearest::stages);
    if (at_.tp > 1 && at_.dp * at_.cp > 1) orders_.push_back(Nearest::replicas);
  }
  std::erase_if(orders_, [&](Nearest n) {
    at_.nearest = n;
    return !allowed(RequirementLevel::order);
  });
}

// Schedules with the same number of blocks in the same places have the same states.
void DivisionSearch::list_states() {
  const PipelinePlaces places = pipeline_places(c_);
  if (!states_.empty() && places == places_) return;
  places_ = places;
  states_.clear();
  for (const Sharding& s : shardings_)
    for (size_t waits = 0; waits < waits_; waits++) {
      c_.zero = s.zero;
      c_.shards = s.shards;
      c_.offload = waits == 1 ? q_.disk : 0;
      for (const PipelinePlace& p : places_) states_.push_back(rank_states(c_, p));
    }
}

void DivisionSearch::set_sharding(size_t sharding) {
  sharding_ = sharding;
  at_.zero = shardings_[sharding / waits_].zero;
  at_.shards = shardings_[sharding / waits_].shards;
  at_.offload = sharding % waits_ == 1;
  c_.zero = at_.zero;
  c_.shards = at_.shards;
  c_.offload = at_.offload ? q_.disk : 0;
}

StepMemory DivisionSearch::memory_of(size_t sharding) {
  StepMemory most;
  const auto n = size_t(places_.count);
  const size_t first = sharding * n;
  for (size_t i = 0; i < n; i++) {
    StepMemory m = at_place_[i];
    m.states = states_[first + i];
    m.total = m.states + m.activations + m.gradients + m.logits + m.base;
    hold_more(q_, at_, m);
    if (i == 0 || m.total > most.total) most = m;
  }
  return most;
}

Nearest DivisionSearch::roomiest() const {
  for (const Nearest order : orders_)
    if (order != Nearest::stages) return order;
  return orders_.empty() ? Nearest::tensor : orders_[0];
}

const RankRoom& DivisionSearch::room_with(Nearest order) {
  std::optional<RankRoom>& room = rooms_[size_t(order)];
  if (!room) {
    at_.nearest = order;
    room = room_of(q_, at_);
  }
  return *room;
}

StepMemory DivisionSearch::own_memory(Bytes how) {
  static const RankRoom kAlike;
  return own_memory(how, q_.kinds ? room_with(roomiest()) : kAlike);
}

StepMemory DivisionSearch::own_memory(Bytes how, const RankRoom& room) {
  const double base = q_.fits[size_t(Fit::base)];
  StepMemory m = how == Bytes::exact ? bytes_->of(at_, base, room)
                                     : bytes_->least(at_, base, how == Bytes::rough ? room_ : INFINITY, room);
  hold_more(q_, at_, m);
  return m;
}

void DivisionSearch::set_division(const SearchLayout& division) {
  at_ = division, shardings_.clear(), orders_.clear(), bounded_.clear();
  rooms_ = {};
  c_.tp = at_.tp;
  c_.pp = at_.pp;
  c_.dp = at_.dp;
  c_.cp = at_.cp;
  c_.ep = at_.ep;
  any_ = false;
  fits_before_ = out_.fits;
  nearest_bytes_ = INFINITY;
}

void DivisionSearch::set_kind(const Kind& k) {
  if (k.micro != at_.micro) states_.clear(), parts_ = {};
  at_.micro = c_.micro = k.micro;
  c_.microbatches = at_.microbatches();
  c_.grad_stored = stored_grads(q_, c_.microbatches);
  c_.cast = c_.grad_stored != c_.grad_bytes;
  at_.schedule = k.choice.schedule->name;
  at_.chunks = k.choice.chunks;
  at_.stage_layers = c_.stage_layers = k.choice.stage_layers;
  at_.again = k.again;
  set_again(c_, k.again);
  set_schedule(q_, c_, *k.choice.schedule, k.choice.chunks);
  kind_number_ = k.number;
}

void DivisionSearch::run(const SearchLayout& division) {
  set_division(division);
  at_.micro = 0;
  list_schedules();
  division_ = {.layout = division, .score = INFINITY, .kinds = {}, .too_large = {}, .totals = {}};
  size_t number = 0;
  for (const int64_t micro : divisors_of(at_.global / at_.dp)) {
    for (const Choice& choice : schedules_)
      for (const Again again : {Again::none, Again::selective, Again::full})
        kind({.choice = choice, .micro = micro, .number = number + size_t(again), .again = again});
    number += 3;
  }
  if (!bytes_) return end_division(division);
  division_.shardings = shardings_.size() * waits_;
  divisions_.push_back(std::move(division_));
}

void DivisionSearch::end_division(const SearchLayout& division) {
  if (any_) out_.divisions.push_back(best_);
  if (out_.fits > fits_before_) return;
  out_.refused[size_t(Refusal::memory)].divisions++;
  out_.rejected.push_back(
      {division, Refusal::memory, std::isfinite(nearest_bytes_) ? nearest_bytes_ : 0, bytes_ != nullptr});
}

void DivisionSearch::kind(const Kind& kind) {
  set_kind(kind);
  if (!allowed(RequirementLevel::microbatch)) return;
  if (at_.schedule == "interleaved" && c_.microbatches % at_.pp != 0) return;
  if (!allowed(RequirementLevel::schedule)) return;
  if (shardings_.empty()) list_shardings();
  if (!shardings_.empty() && orders_.empty()) list_orders();
  if (orders_.empty()) return;
  out_.candidates += int64_t(shardings_.size() * orders_.size() * (waits_ - first_wait_));
  if (bytes_) {
    Kind bounded = kind;
    const bool fits = set_bounds(bounded);
    if (!fits || bounded.fastest() < kMostStepSeconds) {
      (fits ? division_.kinds : division_.too_large).push_back(bounded);
    } else {
      too_slow_ = true;
      out_.unweighed += int64_t(shardings_.size() * orders_.size() * (waits_ - first_wait_));
    }
    return;
  }
  list_states();
  for (size_t i = 0; i < size_t(places_.count); i++) at_place_[i] = rank_memory(c_, q_.fits, places_.at[i]);
  for (size_t i = 0; i < shardings_.size() * waits_; i++) {
    if (i % waits_ < first_wait_) continue;
    set_sharding(i);
    memory_ = memory_of(i);
    weigh();
  }
}

bool DivisionSearch::set_bounds(Kind& kind) {
  kind.totals = division_.totals.size();
  const auto orders = int64_t(orders_.size());
  bool fits = false;
  for (size_t i = 0; i < shardings_.size() * waits_; i++) {
    double total = INFINITY;
    if (i % waits_ >= first_wait_) {
      set_sharding(i);
      total = own_memory(Bytes::rough).used();
      if (total <= room_)
        fits = true;
      else
        out_.refused[size_t(Refusal::memory)].candidates += orders;
    }
    division_.totals.push_back(total);
  }
  if (fits) set_least(kind);
  return fits;
}

void DivisionSearch::finish() {
  std::stable_sort(divisions_.begin(), divisions_.end(),
                   [](const Division& a, const Division& b) { return a.score < b.score; });
  for (Division& d : divisions_) {
    if (d.layout.gpus != gpus_) begin_cluster(d.layout.gpus);
    std::stable_sort(d.kinds.begin(), d.kinds.end(),
                     [](const Kind& a, const Kind& b) { return a.fastest() < b.fastest(); });
    set_division(d.layout);
    list_shardings(), list_orders();
    finish(d);
  }
  find_leanest();
  divisions_.clear();
}

void DivisionSearch::finish(const Division& d) {
  for (const Kind& k : d.kinds) {
    set_kind(k);
    for (const Nearest order : orders_) {
      Priced& p = least_[size_t(order)];
      p = {.layout = at_, .time = {}, .memory = {}};
      p.time.total = k.least[size_t(order)];
      set_price(q_, price_, p);
    }
    const bool slow = std::all_of(orders_.begin(), orders_.end(),
                                  [&](Nearest order) { return is_behind_front(least_[size_t(order)]); });
    for (size_t i = 0; i < shardings_.size() * waits_; i++) {
      if (i % waits_ == 0) sharded_ = {};
      memory_ = {.total = d.totals[k.totals + i]};
      if (memory_.total > room_) continue;
      if (slow) {
        out_.unweighed += int64_t(orders_.size());
        continue;
      }
      set_sharding(i);
      weigh();
    }
  }
  for (const double total : d.totals)
    if (total > room_) nearest_bytes_ = std::min(nearest_bytes_, total);
  end_division(d.layout);
}

// Its exact memory is found only if that can change an answer.
void DivisionSearch::weigh() {
  const auto orders = int64_t(orders_.size());
  if (bytes_) {
    if (all_change_nothing()) {
      out_.unweighed += orders;
      return;
    }
    memory_ = own_memory(Bytes::exact);
  }
  if (memory_.used() > room_) {
    out_.refused[size_t(Refusal::memory)].candidates += orders;
    return misfit();
  }
  out_.fits += orders;
  price_orders();
}

void DivisionSearch::misfit() {
  Refused& no = out_.refused[size_t(Refusal::memory)];
  nearest_bytes_ = std::min(nearest_bytes_, memory_.used());
  if (no.bytes > 0 && memory_.used() >= no.bytes) return;
  no.bytes = memory_.used();
  no.nearest = at_;
  no.nearest.nearest = Nearest::tensor;
}

// The roughest bounds first, each replaced by a closer one when it is the smallest.
void DivisionSearch::find_leanest() {
  const Refused& no = out_.refused[size_t(Refusal::memory)];
  struct Turn {
    double total;
    const Division* division;
    const Kind* kind;
    size_t sharding;
    bool close = false;
    bool operator<(const Turn& o) const { return total > o.total; }
  };
  const auto is_smaller = [&](double total) { return no.bytes == 0 || total < no.bytes; };
  std::vector<Turn> turns;
  for (const Division& d : divisions_)
    for (const std::vector<Kind>* kinds : {&d.kinds, &d.too_large})
      for (const Kind& k : *kinds)
        for (size_t i = 0; i < d.shardings; i++)
          if (const double total = d.totals[k.totals + i];
              total > room_ && std::isfinite(total) && is_smaller(total))
            turns.push_back({total, &d, &k, i});
  std::make_heap(turns.begin(), turns.end());
  const Division* current = nullptr;
  while (!turns.empty() && is_smaller(turns.front().total)) {
    std::pop_heap(turns.begin(), turns.end());
    Turn& t = turns.back();
    if (t.division != current) set_division(t.division->layout), list_shardings();
    current = t.division;
    set_kind(*t.kind);
    set_sharding(t.sharding);
    memory_ = own_memory(t.close ? Bytes::exact : Bytes::least);
    if (!t.close) {
      t.total = memory_.used();
      t.close = true;
      std::push_heap(turns.begin(), turns.end());
      continue;
    }
    misfit();
    turns.pop_back();
  }
  for (SearchResult::Rejected& r : out_.rejected)
    if (r.at_least && r.layout.same_division(no.nearest)) {
      r.bytes = no.bytes;
      r.at_least = false;
    }
}

// Lower bounds of every sharding of this kind.
void DivisionSearch::set_least(Kind& kind) {
  kind.least.fill(INFINITY);
  for (const Nearest order : orders_) {
    c_.nearest = order;
    kind.least[size_t(order)] = bounded_.least(bound_, at_.schedule, c_, kind_number_);
  }
  Priced p{.layout = at_, .time = {}, .memory = {}};
  p.time.total = kind.fastest();
  set_price(q_, price_, p);
  division_.score = std::min(division_.score, p.score);
}

bool DivisionSearch::is_listed(const Priced& p) const {
  return !any_ || kept_.size() < size_t(q_.best) || p.score <= kept_.front().priced.score;
}

// As slow as cut_front()'s limit: any layout stands for its division.
bool DivisionSearch::is_behind_front(const Priced& p) const {
  return !is_listed(p) && seconds_of(q_, p) > kFrontTimes * front_least_;
}

// A layout that takes as little would change nothing: its division, the list and the front have better ones.
bool DivisionSearch::changes_nothing(Priced p) {
  if (is_listed(p)) return false;
  if (is_behind_front(p)) return true;
  if (p.score <= best_.score) return false;
  p.headroom = q_.figures.memory - memory_.used();
  return std::any_of(out_.front.begin(), out_.front.end(), [&](const Priced& o) { return dominates(o, p); });
}

// trireme's own. State that waits elsewhere makes no layout faster.
bool DivisionSearch::changes_nothing(Nearest order) {
  if (changes_nothing(least_[size_t(order)])) return true;
  Priced& sharded = sharded_[size_t(order)];
  if (sharded.score == 0) {
    c_.nearest = order;
    sharded = {.layout = at_, .time = {}, .memory = {}};
    sharded.time.total = bounded_.sharded(bound_, at_.schedule, c_, kind_number_, sharding_);
    set_price(q_, price_, sharded);
  }
  return sharded.score > 0 && changes_nothing(sharded);
}

bool DivisionSearch::all_change_nothing() {
  return std::all_of(orders_.begin(), orders_.end(), [&](Nearest order) { return changes_nothing(order); });
}

StepSeconds DivisionSearch::other_step(Nearest order) {
  std::optional<StepParts>& parts = parts_[size_t(at_.again)][at_.chunks > 1][size_t(order)];
  if (!parts) parts = step_parts(c_, q_.figures, q_.fits);
  return step_time(c_, q_.figures, q_.fits, *parts);
}

// An order that changes nothing is not a separate layout: the first one represents it.
void DivisionSearch::price_orders() {
  std::array<Priced, kOrders> all;
  size_t n = 0;
  for (const Nearest order : orders_) {
    if (q_.software.ordered() && changes_nothing(order)) continue;
    at_.nearest = c_.nearest = order;
    StepMemory memory = memory_;
    if (q_.kinds && bytes_ && order == Nearest::stages) {
      memory = own_memory(Bytes::exact, room_with(order));
      if (memory.used() > room_) continue;
    }
    const StepSeconds time = q_.software.ordered()
                                 ? bounded_.of(bound_, at_.schedule, c_, kind_number_, sharding_)
                                 : other_step(order);
    if (q_.software.ordered() && !at_.offload) {
      sharded_[size_t(order)] = {.layout = at_, .time = time, .memory = {}};
      set_price(q_, price_, sharded_[size_t(order)]);
    }
    size_t same = 0;
    while (same < n && all[same].time.total != time.total) same++;
    if (same == n)
      all[n++] = {.layout = at_, .time = time, .memory = memory};
    else
      all[same].alike |= uint8_t(1 << int(order));
  }
  for (size_t i = 0; i < n; i++) {
    set_price(q_, price_, all[i]);
    candidate(all[i]);
  }
}

void DivisionSearch::candidate(const Priced& p) {
  if (!any_ || p.score < best_.score) best_ = p;
  any_ = true;
  take(p);
  join_front(p);
}

void DivisionSearch::take(const Priced& p) {
  const auto most = size_t(q_.best);
  if (kept_.size() == most && !(p.score < kept_.front().priced.score)) return;
  kept_.push_back({p, kept_in_all_++});
  std::push_heap(kept_.begin(), kept_.end());
  if (kept_.size() <= most) return;
  std::pop_heap(kept_.begin(), kept_.end());
  kept_.pop_back();
}

std::vector<Priced> DivisionSearch::best() {
  std::sort(kept_.begin(), kept_.end());
  std::vector<Priced> all;
  for (Kept& k : kept_) all.push_back(std::move(k.priced));
  return all;
}

void DivisionSearch::join_front(const Priced& p) {
  std::vector<Priced>& front = out_.front;
  if (last_dominator_ < front.size() && dominates(front[last_dominator_], p)) return;
  for (size_t i = 0; i < front.size(); i++)
    if (dominates(front[i], p)) {
      last_dominator_ = i;
      return;
    }
  front_least_ = std::min(front_least_, seconds_of(q_, p));
  std::erase_if(front, [&](const Priced& o) { return dominates(p, o); });
  front.push_back(p);
  last_dominator_ = front.size() - 1;
}

}  // namespace trireme
