// All layouts of a model on a number of devices, priced in closed form (cost/step_time.h, cost/step_memory.h)
// and ranked. Nothing is sampled: what divides is enumerated, what does not fit is counted by reason.
// docs/search.md.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forecast/layout_case.h"
#include "search/requirement.h"
#include "spec/run_spec.h"

namespace trireme {

struct SearchRequest : LayoutCase {
  std::string name;
  std::vector<int64_t> gpus;     // each number of devices is searched
  std::vector<int64_t> globals;  // and with it each global batch, in sequences
  std::vector<Requirement> require;
  // The requested batch, if the devices' number does not divide with it and a near one is searched
  // too; 0 = only the given ones.
  int64_t asked_global = 0;
  std::string curve;       // whose rates a cluster file's device has
  std::string note;        // what is assumed of the devices' links
  bool by_rules = false;   // no run file gave steps, warmup, learning rates and initial weights
  std::string constants;   // whose these are, in words; "" = the shipped ones of all
  std::string price_note;  // row of the price table; "" = none
  int64_t best = 10;
};

struct Refused {
  int64_t divisions =
      0;  // (tp, pp, cp, dp, ep) refused as such; of memory: those whose leanest layout is too large
  int64_t candidates = 0;  // of memory
  SearchLayout nearest;    // the one that misses by least (memory), or the first
  double bytes = 0;        // memory: what that one takes
  bool booked = false;     // as booked; else at least so much in trireme's own runs
};

// A part of a cluster of several kinds of devices (search/one_kind.h).
struct KindAlone {
  std::string name;
  int64_t gpus = 0;
  bool is_all = false;  // as many as the search has
  double step_s = 0;    // the best layout's replayed step; 0 = none fits
  std::string layout;
};

struct SearchResult {
  std::vector<Priced> best;   // ranked
  std::vector<Priced> front;  // none of the others is better in time, cost and headroom alike; fastest first
  std::vector<Priced> divisions;  // the best of each division that fits, ranked
  std::array<Refused, kRefusals> refused;
  // Each division that is not a candidate. For memory: the bytes of its smallest layout, or a lower bound.
  struct Rejected {
    SearchLayout layout;
    Refusal why = Refusal::memory;
    double bytes = 0;
    bool at_least = false;
  };
  std::vector<Rejected> rejected;
  std::vector<KindAlone> alone;  // kinds_alone(); else empty

  RejectedValues unmet;   // of request.require
  int64_t front_cut = 0;  // of the front, taken out by cut_front()
  int64_t divisions_seen = 0, candidates = 0, fits = 0;
  int64_t unweighed = 0;  // candidates that are too slow to change any list; they may fit or not
  double seconds = 0;     // that the search took, on one core
  double rate() const { return seconds > 0 ? double(candidates) / seconds : 0; }
};

// Throws bad_request if every layout that fits takes more than kMostStepSeconds.
SearchResult search(const SearchRequest&);
inline constexpr double kMostStepSeconds = 1e8;
// Takes out of the front what takes more than kFrontTimes the best one's time: nobody trains so for memory.
inline constexpr double kFrontTimes = 2;
void cut_front(const SearchRequest&, SearchResult&);

// Which figure or constant, larger or smaller by a factor, makes another division the best: found by
// bisection among the best of each division.
struct Flip {
  std::string what;   // "bandwidth between machines", "share of tp's sums that is exposed"
  double factor = 0;  // above 1: larger; below: smaller
  Priced rival;       // which then wins
};
struct SearchWhy {
  Priced best;              // in closed form
  std::string binds;        // the largest toll beside products
  double binds_s = 0;       // seconds a step
  Priced runner_up;         // best of another division; token_s = 0: there is none
  std::vector<Flip> flips;  // smallest change first
  // With more memory: the leanest of the faster layouts. token_s = 0: none is faster.
  Priced with_memory;
};
// with_memory: also finds SearchWhy::with_memory, by a second search.
SearchWhy why(const SearchRequest&, const SearchResult&, bool with_memory = true);
struct Confirmation;  // search/confirm.h
struct FlipPoint;     // search/search_flip.h
// The answers to --why and --flip. null = not asked.
std::string asked_text(const SearchRequest&, const SearchResult&, const SearchWhy*,
                       const std::vector<FlipPoint>*);
std::string search_text(const SearchRequest&, const SearchResult&, const SearchWhy*,
                        const Confirmation* = nullptr, const std::vector<FlipPoint>* = nullptr);
std::string search_json(const SearchRequest&, const SearchResult&, const SearchWhy*,
                        const Confirmation* = nullptr, const std::vector<FlipPoint>* = nullptr);
// The answer of a search on one screen, at most 24 lines with the `below` that the caller prints after it:
// what matters least to the choice is left out. why: null = nothing
// fits, or it is printed elsewhere. written: the run file is.
std::string answer_text(const SearchRequest&, const SearchResult&, const SearchWhy*, const Confirmation*,
                        size_t below = 0, bool written = false);
// Rejected layouts by reason, one line each.
std::string refused_text(const SearchRequest&, const SearchResult&);
// A run file of this layout that plan and train accept.
std::string run_file_of(const SearchRequest&, const SearchLayout&);
// [batch] and [layout] of a run file in this layout.
std::string layout_toml(const SearchLayout&, bool to_host = false);
// The front: step time against memory left, SVG.
std::string front_svg(const SearchRequest&, const SearchResult&);

}  // namespace trireme
