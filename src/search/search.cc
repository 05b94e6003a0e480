#include "search/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/divisors.h"
#include "base/error.h"
#include "base/timed.h"
#include "cost/flops.h"
#include "cost/stage_time.h"
#include "cost/time_to_loss.h"
#include "cost/walls.h"
#include "forecast/bound_step.h"
#include "forecast/scaled_run.h"
#include "forecast/schedule_idle.h"

namespace trireme {
namespace {

struct Sharding {
  int zero;
  int64_t shards;
};

// Everything of one division, (tp, pp, cp, dp, ep) on so many devices, with what does not depend on more.
class DivisionSearch {
 public:
  // bytes: null for other software.
  DivisionSearch(const SearchRequest& q, StepBound& bound, RankBytes* bytes, SearchResult& out)
      : q_(q), out_(out), bytes_(bytes), bound_(bound) {
    c_ = step_case(q, SearchLayout{});
    room_ = q.figures.memory * q.memory_share, waits_ = q.disk > 0 ? 2 : 1;
    set_waits();
  }
  bool allowed(RequirementLevel level) { return meets(q_.require, level, at_, out_.unmet); }
  void begin_cluster(int64_t gpus) { price_ = cluster_price(q_, gpus); }
  void run(const SearchLayout& division);
  // The layouts to keep, ranked.
  std::vector<Priced> best();

 private:
  // Places of optimizer state that the requirements allow.
  void set_waits();
  // Schedules and their chunks that this many stages have.
  void list_schedules();
  void list_shardings();
  void list_orders();
  void list_states();
  // Makes that sharding the current one, its optimizer's state on the device or where it waits (0, 1).
  void set_sharding(size_t sharding, size_t waits);
  // Memory of the most loaded rank, of other software; of trireme's own layouts, if not exact at least so
  // much.
  StepMemory memory_of(size_t sharding, size_t waits);
  StepMemory own_memory(bool exact);
  // A schedule, microbatch and recompute: what is held beside states.
  void kind(const KnownSchedule&, int64_t chunks, Again);
  void weigh(size_t sharding);
  void set_least();
  bool all_change_nothing();
  bool changes_nothing(Priced);
  bool changes_nothing(Nearest);
  void price_orders();
  StepSeconds other_step(Nearest);
  void candidate(const Priced&);
  void take(const Priced&);
  void join_front(const Priced&);
  bool dominates(const Priced& a, const Priced& b) const {
    return seconds_of(q_, a) <= seconds_of(q_, b) && cost_of(q_, a) <= cost_of(q_, b) &&
           a.headroom >= b.headroom;
  }

  const SearchRequest& q_;
  SearchResult& out_;
  StepCase c_;
  SearchLayout at_;
  ClusterPrice price_;
  double room_ = 0;
  size_t waits_ = 1;       // 2: optimizer state has a place to wait
  size_t first_wait_ = 0;  // 1: only layouts with offloaded state are required
  struct Choice {
    const KnownSchedule* schedule;
    int64_t chunks;
  };
  std::vector<Choice> schedules_;
  std::vector<Sharding> shardings_;
  RankBytes* bytes_;
  // Bytes in runs of other software: by sharding, then whether state waits, then place in the pipeline.
  std::vector<double> states_;
  std::vector<Nearest> orders_;
  PipelinePlaces places_;
  std::array<StepMemory, 4> at_place_;  // of them, but for their states
  size_t sharding_ = 0;                 // current: its place in of_shardings_
  StepMemory memory_;
  // By sharding of the current kind, then whether state waits. Lower bounds for trireme's own layouts.
  std::vector<StepMemory> of_shardings_;
  Priced best_;
  bool any_ = false;
  size_t last_dominator_ = 0;
  // The last one first; of equal scores the later ones.
  struct Kept {
    Priced priced;
    int64_t number = 0;
    bool operator<(const Kept& o) const {
      return std::tie(priced.score, number) < std::tie(o.priced.score, o.number);
    }
  };
  std::vector<Kept> kept_;  // a heap
  int64_t kept_in_all_ = 0;
  int64_t fits_before_ = 0;
  double nearest_bytes_ = 0;  // of the division: its leanest layout's
  StepBound& bound_;
  BoundStep bounded_;
  // trireme's own: by order, for the current kind.
  std::array<Priced, kOrders> least_;
  // Lower bounds for the current sharding, wherever its state waits. Score 0: unknown.
  std::array<Priced, kOrders> sharded_;
  double front_least_ = INFINITY;  // seconds_of() the front's fastest
  // Of a division and microbatch; by recompute, whether stages have several chunks, and the order of the
  // axes.
  std::array<std::array<std::array<std::optional<StepParts>, kOrders>, 2>, 3> parts_;
};

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
  for (const KnownSchedule& s : known_schedules()) {
    if (s.name == "interleaved") {
      for (int64_t v = 2; v * at_.pp <= layers; v++)
        if (layers % (v * at_.pp) == 0) schedules_.push_back({&s, v});
    } else if (!is_v(s.order)) {
      schedules_.push_back({&s, 1});
    } else if (layers % (2 * at_.pp) == 0) {
      schedules_.push_back({&s, 2});
    }
  }
}

void DivisionSearch::list_shardings() {
  shardings_ = {{0, 0}};
  const int64_t replicas = at_.dp * at_.cp;
  if (replicas > 1) {
    for (const int zero : {1, 2, 3}) shardings_.push_back({zero, 0});
    // Beside ep or tp this version's experts have one shard group.
    const bool whole = q_.software.taped() && q_.model.moe() && (at_.ep > 1 || at_.tp > 1);
    for (const int64_t d : divisors_of(whole ? 1 : replicas))
      if (d > 1 && d < replicas) shardings_.push_back({3, d});
  }
  std::erase_if(shardings_, [&](const Sharding& s) {
    at_.zero = s.zero, at_.shards = s.shards;
    return !allowed(RequirementLevel::sharding);
  });
}

// Orders that are the same to the closed forms are looked at once.
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

// Other schedules with as many blocks in the same places have the same.
void DivisionSearch::list_states() {
  const PipelinePlaces places = pipeline_places(c_);
  if (!states_.empty() && places == places_) return;
  places_ = places;
  states_.clear();
  for (const Sharding& s : shardings_)
    for (size_t waits = 0; waits < waits_; waits++) {
      c_.zero = s.zero, c_.shards = s.shards, c_.offload = waits == 1 ? q_.disk : 0;
      for (const PipelinePlace& p : places_) states_.push_back(rank_states(c_, p));
    }
}

void DivisionSearch::set_sharding(size_t sharding, size_t waits) {
  at_.zero = shardings_[sharding].zero;
  at_.shards = shardings_[sharding].shards;
  at_.offload = waits == 1;
  c_.zero = at_.zero;
  c_.shards = at_.shards;
  c_.offload = at_.offload ? q_.disk : 0;
}

StepMemory DivisionSearch::memory_of(size_t sharding, size_t waits) {
  StepMemory most;
  const auto n = size_t(places_.count);
  const size_t first = (sharding * waits_ + waits) * n;
  for (size_t i = 0; i < n; i++) {
    StepMemory m = at_place_[i];
    m.states = states_[first + i];
    m.total = m.states + m.activations + m.gradients + m.logits + m.base;
    hold_more(q_, at_, m);
    if (i == 0 || m.total > most.total) most = m;
  }
  return most;
}

StepMemory DivisionSearch::own_memory(bool exact) {
  const double base = q_.fits[size_t(Fit::base)];
  StepMemory m = exact ? bytes_->of(at_, base) : bytes_->least(at_, base);
  hold_more(q_, at_, m);
  return m;
}

void DivisionSearch::run(const SearchLayout& division) {
  at_ = division, shardings_.clear(), orders_.clear(), bounded_.clear();
  c_.tp = at_.tp, c_.pp = at_.pp, c_.dp = at_.dp, c_.cp = at_.cp, c_.ep = at_.ep;
  list_schedules();
  any_ = false, fits_before_ = out_.fits, nearest_bytes_ = INFINITY;
  for (const int64_t micro : divisors_of(at_.global / at_.dp)) {
    at_.micro = c_.micro = micro;
    c_.microbatches = at_.microbatches();
    if (!allowed(RequirementLevel::microbatch)) continue;
    c_.grad_stored = stored_grads(q_, c_.microbatches), c_.cast = c_.grad_stored != c_.grad_bytes;
    states_.clear(), parts_ = {}, bounded_.clear_passes();
    for (const Choice& choice : schedules_) {
      if (choice.schedule->name == "interleaved" && c_.microbatches % at_.pp != 0) continue;
      for (const Again again : {Again::none, Again::selective, Again::full})
        kind(*choice.schedule, choice.chunks, again);
    }
  }
  if (any_) out_.divisions.push_back(best_);
  if (out_.fits > fits_before_) return;
  out_.refused[size_t(Refusal::memory)].divisions++;
  out_.rejected.push_back({division, Refusal::memory, std::isfinite(nearest_bytes_) ? nearest_bytes_ : 0});
}

void DivisionSearch::kind(const KnownSchedule& schedule, int64_t chunks, Again again) {
  at_.schedule = schedule.name, at_.chunks = chunks, at_.again = again;
  if (!allowed(RequirementLevel::schedule)) return;
  if (shardings_.empty()) list_shardings();
  if (!shardings_.empty() && orders_.empty()) list_orders();
  if (orders_.empty()) return;
  set_again(c_, again);
  set_schedule(q_, c_, schedule, chunks);
  if (!bytes_) {
    list_states();
    for (size_t i = 0; i < size_t(places_.count); i++) at_place_[i] = rank_memory(c_, q_.fits, places_.at[i]);
  }
  out_.candidates += int64_t(shardings_.size() * orders_.size() * (waits_ - first_wait_));
  of_shardings_.resize(shardings_.size() * waits_);
  double least = INFINITY;
  for (size_t i = 0; i < of_shardings_.size(); i++) {
    if (i % waits_ < first_wait_) continue;
    set_sharding(i / waits_, i % waits_);
    of_shardings_[i] = bytes_ ? own_memory(false) : memory_of(i / waits_, i % waits_);
    least = std::min(least, of_shardings_[i].total);
  }
  if (q_.software.ordered() && least <= room_) set_least();
  for (size_t i = 0; i < of_shardings_.size(); i++) {
    if (i % waits_ < first_wait_) continue;
    set_sharding(i / waits_, i % waits_);
    weigh(i);
  }
}

// Its exact memory is found only if that can change an answer.
void DivisionSearch::weigh(size_t sharding) {
  memory_ = of_shardings_[sharding];
  sharding_ = sharding;
  if (!at_.offload) sharded_ = {};
  const auto orders = int64_t(orders_.size());
  Refused& no = out_.refused[size_t(Refusal::memory)];
  if (bytes_ && memory_.total > room_) {
    // Of layouts that are too large only the smallest one's bytes are printed.
    const double smallest = out_.fits > fits_before_ ? no.bytes : std::max(no.bytes, nearest_bytes_);
    if (no.bytes > 0 && memory_.total >= smallest) {
      no.candidates += orders;
      return;
    }
  } else if (bytes_ && all_change_nothing()) {
    out_.unweighed += orders;
    return;
  }
  if (bytes_) memory_ = own_memory(true);
  if (memory_.total > room_) {
    no.candidates += orders;
    nearest_bytes_ = std::min(nearest_bytes_, memory_.total);
    if (no.bytes == 0 || memory_.total < no.bytes) {
      no.bytes = memory_.total;
      no.nearest = at_;
      no.nearest.nearest = Nearest::tensor;
    }
    return;
  }
  out_.fits += orders;
  price_orders();
}

// Lower bounds of every sharding of this kind.
void DivisionSearch::set_least() {
  for (const Nearest order : orders_) {
    c_.nearest = order;
    Priced& p = least_[size_t(order)];
    p = {.layout = at_, .time = {}, .memory = {}};
    p.time.total = bounded_.least(bound_, at_.schedule, c_, q_.figures, q_.fits, size_t(at_.again));
    set_price(q_, price_, p);
  }
}

// A layout that takes as little would change nothing: its division, the list and the front have better ones.
bool DivisionSearch::changes_nothing(Priced p) {
  if (!any_ || p.score <= best_.score || kept_.size() < size_t(q_.best) ||
      p.score <= kept_.front().priced.score)
    return false;
  p.headroom = q_.figures.memory - memory_.total;
  return seconds_of(q_, p) > kFrontTimes * front_least_ ||  // cut_front()
         std::any_of(out_.front.begin(), out_.front.end(), [&](const Priced& o) { return dominates(o, p); });
}

// trireme's own. State that waits elsewhere makes no layout faster.
bool DivisionSearch::changes_nothing(Nearest order) {
  if (changes_nothing(least_[size_t(order)])) return true;
  Priced& sharded = sharded_[size_t(order)];
  if (sharded.score == 0 && at_.zero >= 2) {
    c_.nearest = order;
    sharded = {.layout = at_, .time = {}, .memory = {}};
    sharded.time.total =
        bounded_.lane(bound_, at_.schedule, c_, q_.figures, q_.fits, q_.keys, size_t(at_.again), sharding_);
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
    const StepSeconds time = q_.software.ordered()
                                 ? bounded_.of(bound_, at_.schedule, c_, q_.figures, q_.fits, q_.keys,
                                               size_t(at_.again), sharding_)
                                 : other_step(order);
    if (q_.software.ordered() && !at_.offload) {
      sharded_[size_t(order)] = {.layout = at_, .time = time, .memory = {}};
      set_price(q_, price_, sharded_[size_t(order)]);
    }
    size_t same = 0;
    while (same < n && all[same].time.total != time.total) same++;
    if (same == n)
      all[n++] = {.layout = at_, .time = time, .memory = memory_};
    else
      all[same].alike |= uint8_t(1 << int(order));
  }
  for (size_t i = 0; i < n; i++) {
    set_price(q_, price_, all[i]);
    candidate(all[i]);
  }
}

void DivisionSearch::candidate(const Priced& p) {
  if (!any_ || p.score < best_.score) best_ = p, any_ = true;
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

// Divisions of so many devices, each to `run`; what does not divide is counted.
class Divisions {
 public:
  Divisions(const SearchRequest& q, SearchResult& out, DivisionSearch& inner)
      : q_(q), out_(out), inner_(inner) {}
  void of(int64_t gpus, int64_t global) {
    SearchLayout l{.gpus = gpus, .global = global};
    for (const int64_t tp : divisors_of(gpus))
      for (const int64_t pp : divisors_of(gpus / tp))
        for (const int64_t cp : divisors_of(gpus / tp / pp)) {
          l.tp = tp, l.pp = pp, l.cp = cp, l.dp = gpus / tp / pp / cp;
          experts(l);
        }
  }

 private:
  void experts(SearchLayout l) {
    const int64_t ranks = l.dp * l.cp * l.tp;
    const Refusal whole = division_refusal(q_.model, q_.seq, l);
    if (whole != Refusal::count) return refuse(l, whole);
    if (!q_.model.moe()) return price(l);
    for (const int64_t ep : divisors_of(ranks)) {
      l.ep = ep;
      const Refusal r = division_refusal(q_.model, q_.seq, l);
      r == Refusal::count ? price(l) : refuse(l, r);
    }
  }
  void price(const SearchLayout& l) {
    if (!meets(q_.require, RequirementLevel::division, l, out_.unmet)) return;
    out_.divisions_seen++;
    inner_.run(l);
  }
  void refuse(const SearchLayout& l, Refusal r) {
    RejectedValues unused;
    if (!meets(q_.require, RequirementLevel::division, l, unused)) return;
    out_.divisions_seen++;
    Refused& no = out_.refused[size_t(r)];
    if (no.divisions++ == 0) no.nearest = l;
    out_.rejected.push_back({l, r, 0});
  }
  const SearchRequest& q_;
  SearchResult& out_;
  DivisionSearch& inner_;
};

}  // namespace

void cut_front(const SearchRequest& q, SearchResult& r) {
  if (r.front.empty()) return;
  double least = INFINITY;
  for (const Priced& p : r.front) least = std::min(least, seconds_of(q, p));
  r.front_cut += int64_t(
      std::erase_if(r.front, [&](const Priced& p) { return seconds_of(q, p) > kFrontTimes * least; }));
}

SearchResult search(const SearchRequest& q) {
  require(!q.gpus.empty() && !q.globals.empty() && q.seq > 0 && q.best > 0, "a search of nothing");
  SearchResult out;
  const double begin = now_s();
  const std::shared_ptr<StepBound> bound = bound_of(q);
  const std::shared_ptr<RankBytes> bytes = q.software.taped() ? bytes_of(q) : nullptr;
  DivisionSearch inner(q, *bound, bytes.get(), out);
  Divisions divisions(q, out, inner);
  for (const int64_t gpus : q.gpus) {
    inner.begin_cluster(gpus);
    for (const int64_t global : q.globals) divisions.of(gpus, global);
  }
  out.best = inner.best();
  const auto by_score = [](const Priced& a, const Priced& b) { return a.score < b.score; };
  std::stable_sort(out.divisions.begin(), out.divisions.end(), by_score);
  std::stable_sort(out.front.begin(), out.front.end(),
                   [&](const Priced& a, const Priced& b) { return seconds_of(q, a) < seconds_of(q, b); });
  out.seconds = now_s() - begin;
  return out;
}

}  // namespace trireme
