// Bounds and prices of the layouts of each division, for search(). A layout that would change no answer is
// left out.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "cost/stage_time.h"
#include "forecast/layout_bound.h"
#include "forecast/rank_bytes.h"
#include "forecast/schedule_idle.h"
#include "search/kind_cuts.h"
#include "search/search.h"

namespace trireme {

// One division (tp, pp, cp, dp, ep) of n devices at a time, with all that depends on it alone.
class DivisionSearch {
 public:
  // bytes: null for other software.
  DivisionSearch(const SearchRequest& q, StepBound& bound, RankBytes* bytes, SearchResult& out)
      : q_(q),
        out_(out),
        bytes_(bytes),
        bound_(bound),
        bounded_(q.figures, q.fits, q.keys, q.kinds.get()),
        cuts_(q) {
    c_ = step_case(q, SearchLayout{});
    room_ = q.figures.memory * q.memory_share;
    waits_ = q.disk > 0 ? 2 : 1;
    set_waits();
  }
  void begin_cluster(int64_t gpus) {
    gpus_ = gpus;
    price_ = cluster_price(q_, gpus);
  }
  // Other software's layouts are priced at once. trireme's own are bounded, and priced by finish().
  void run(const SearchLayout& division);
  // The fastest first by their bounds, so that most layouts change nothing and are not priced.
  void finish();
  // Some layout's step is too long to be right, whatever its software.
  bool too_slow() const { return too_slow_; }
  // The layouts to keep, ranked.
  std::vector<Priced> best();

 private:
  struct Sharding {
    int zero;
    int64_t shards;
  };
  struct Choice {
    const KnownSchedule* schedule;
    int64_t chunks;
    const NumberList* stage_layers = nullptr;
  };
  // A schedule, microbatch and recompute.
  struct Kind {
    Choice choice;
    int64_t micro = 1;
    size_t number = 0;  // for BoundStep
    Again again = Again::none;
    size_t totals = 0;                    // place in Division::totals
    std::array<double, kOrders> least{};  // seconds, at least, by order
    double fastest() const { return *std::min_element(least.begin(), least.end()); }
  };
  // Bounds of trireme's own layouts.
  struct Division {
    SearchLayout layout;
    double score = INFINITY;             // at least
    size_t shardings = 0;                // and places of their states
    std::vector<Kind> kinds, too_large;  // kinds with a layout that may fit, and others
    std::vector<double> totals;          // bytes, at least, by kind, sharding and place of its state
  };
  bool allowed(RequirementLevel level) { return meets(q_.require, level, at_, out_.unmet); }
  // Places of optimizer state that the requirements allow.
  void set_waits();
  // Schedules and their chunks that this many stages have.
  void list_schedules();
  void list_shardings();
  void list_orders();
  void list_states();
  // Makes that one current; numbers are of shardings and then of places of state.
  void set_sharding(size_t sharding);
  // Memory of the most loaded rank, of other software; of trireme's own layouts, if not exact at least so
  // much.
  StepMemory memory_of(size_t sharding);
  enum class Bytes { rough, least, exact };
  StepMemory own_memory(Bytes);
  StepMemory own_memory(Bytes, const RankRoom&);
  const RankRoom& room_with(Nearest);
  // Among the orders of axes the one whose ranks have the most memory.
  Nearest roomiest() const;
  // Bounds the layouts of that kind, or prices those of other software.
  void kind(const Kind&);
  void set_division(const SearchLayout&);
  void set_kind(const Kind&);
  // The bounds of its shardings: false, it is too large in all of them.
  bool set_bounds(Kind&);
  void end_division(const SearchLayout&);
  void finish(const Division&);
  void weigh();
  void misfit();
  // Finds the bytes of the smallest of trireme's own layouts that do not fit.
  void find_leanest();
  void set_least(Kind&);
  bool all_change_nothing();
  bool is_listed(const Priced&) const;  // or its division has no layout yet
  bool is_behind_front(const Priced&) const;
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
  int64_t gpus_ = 0;
  ClusterPrice price_;
  double room_ = 0;
  size_t waits_ = 1;       // 2: optimizer state has a place to wait
  size_t first_wait_ = 0;  // 1: only layouts with offloaded state are required
  std::vector<Choice> schedules_;
  std::vector<Sharding> shardings_;
  RankBytes* bytes_;
  // Bytes in runs of other software: by sharding, then whether state waits, then place in the pipeline.
  std::vector<double> states_;
  std::vector<Nearest> orders_;
  PipelinePlaces places_;
  std::array<StepMemory, 4> at_place_;     // by place, without states
  size_t sharding_ = 0, kind_number_ = 0;  // the current ones'
  StepMemory memory_;                      // a lower bound of trireme's own layout at first
  Priced best_;
  bool any_ = false, too_slow_ = false;
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
  double nearest_bytes_ = 0;  // the division's smallest layout takes these, or more
  StepBound& bound_;
  LayoutBound bounded_;
  KindCuts cuts_;
  std::array<std::optional<RankRoom>, kOrders> rooms_;  // the division's, by order
  Division division_;
  std::vector<Division> divisions_;  // in the order of their bounds after finish()
  // trireme's own: by order, for the current kind.
  std::array<Priced, kOrders> least_;
  // Lower bounds for the current sharding, wherever its state waits. Score 0: unknown.
  std::array<Priced, kOrders> sharded_;
  double front_least_ = INFINITY;  // seconds_of() the front's fastest
  // For the current division and microbatch, by recompute, several chunks or one, and order of the axes.
  std::array<std::array<std::array<std::optional<StepParts>, kOrders>, 2>, 3> parts_;
};

}  // namespace trireme
