// The best layouts of a search as they would run: the real step of their fullest ranks booked on meta, and
// the whole cluster's step replayed event by event, beside what the closed forms said.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "forecast/scaled_run.h"
#include "search/search.h"

namespace trireme {

struct ConfirmRequest {
  int64_t most = 3;            // layouts that fit
  double seconds = 20;         // that replays and bookings may take; then the best so far is the answer
  std::optional<RunSpec> run;  // what else the run is; none: defaults, in 16 bits
  PricedBy by;
  // Told before a layout is looked at, the so-manieth of at most `of`: booking deep pipelines takes seconds.
  std::function<void(int64_t looked_at, int64_t of, const SearchLayout&)> progress;
};

struct Confirmed {
  Priced priced;        // in closed form
  std::string refused;  // why this version cannot run it; else:
  int pp = 0;           // place of the fullest in the pipeline
  bool booked = false;  // else it is slower than others that fit
  int64_t arena = 0;    // its bytes, to the byte
  double bytes = 0;     // with what nobody books: StepMemory::base
  double more = 0;      // StepMemory::more of that rank
  double used() const { return bytes - more; }
  bool fits = true;
  std::string unsimulated;  // why it could not be replayed; else:
  bool holds() const { return refused.empty() && booked && fits; }
  double step_s = 0, bubble = 0;
  int64_t booked_ranks = 0;  // that differ; 0: as a layout before of another order of axes
  // What is ranked: the closed form's score, by the simulated step where there is one.
  double score() const { return step_s > 0 ? priced.score * step_s / priced.time.total : priced.score; }
};
struct Confirmation {
  std::vector<Confirmed> looked_at;  // as the closed form ranks them
  std::vector<Confirmed> front;      // of SearchResult::front, beside these
  bool reordered = false;            // another is the best than the closed form has
  // Nothing that was not replayed can take less time: its bound is above the best one's replay. False: time
  // ran out, or layouts are ranked by a closed form (other software).
  bool proven = false;
  double next_score = 0;  // not proven: the least bound of those that were not replayed
  bool ran_out = false;   // all that the search kept were examined, and there are others
  int64_t dropped = 0;
  double seconds = 0;
  const Confirmed* of(const SearchLayout&) const;  // null: it was not looked at
  double least_score() const;                      // of those that hold; 0: none does
  bool some_hold() const;
  // Too large, or nothing that this version runs where it runs others.
  bool drops(const Confirmed& c) const { return !c.fits || (!c.refused.empty() && some_hold()); }
};

// Replays result.best in the order of their bounds until `most` of them run and fit and the next bound is
// above the best one's replay. Books those among the `most` best so far. Drops what does not fit from the
// result, and what this version does not run where it runs any, and ranks the others by their replayed step.
// Of each division that loses its best layout the next that is known takes its place.
inline constexpr int64_t kMostConfirmed = 24;  // from the front; also if layouts are ranked by a closed form
// How many layouts a search keeps (SearchRequest::best) so that confirm() has enough, at first and at most:
// the fewer it keeps, the fewer it prices.
inline constexpr int64_t kBounded = 48, kMostBounded = 512;
inline int64_t kept_to_confirm(const SearchRequest& q) {
  return q.software.ordered() ? kBounded : kMostConfirmed;
}
// `before`: what was looked at already is as it says.
Confirmation confirm(const SearchRequest&, SearchResult&, const ConfirmRequest&,
                     const Confirmation& before = {});

// Searches and confirms at most kMostSearches times, and once more if a search kept too few layouts. A layout
// that does not fit as booked is put into q.booked_more, for all layouts that hold the same
// (SearchLayout::holds_as), and all layouts are searched again. If no examined layout fits, q.held_more gets
// what their kinds (schedule, sharding and recompute) hold. Closed forms of other software get it at once.
// trireme's own (kTrireme) get it in the second half of the searches: they differ from the booked bytes by
// holes alone, which are each layout's.
inline constexpr int kMostSearches = 8;
Confirmation search_and_confirm(SearchRequest& q, SearchResult&, const ConfirmRequest&);

// Of the front a dozen that lie evenly in it are booked and simulated, where that was not done; what does not
// fit is dropped, and what has its place is looked at, kMostConfirmed at most.
void confirm_front(const SearchRequest&, SearchResult&, const ConfirmRequest&, Confirmation&);
// Alternatives of an answer, and the share of the best layout's memory that one of them takes at most.
inline constexpr size_t kAlternatives = 2;
inline constexpr double kLessMemory = 0.9;
// Replays and books alternatives: the best of other divisions, and the fastest of the front that needs a
// tenth less memory. A few of each are tried, until one of them holds. If one is missing, the next best
// division or layout takes its place.
void confirm_alternatives(const SearchRequest&, SearchResult&, const ConfirmRequest&, Confirmation&);
// The few of the front that text lists: of those that were looked at, where some were.
std::vector<size_t> listed_of(const SearchResult&, const Confirmation*);

// A line over all points that were seen, of their slope (at least 1; of one point 1, for its excess may be
// everybody's): none of them holds more. false: it was not above the line before. Exported for tests.
bool learn_held(HeldMore&, const HeldMore::Seen&);

std::string confirmed_text(const SearchRequest&, const Confirmation&);

}  // namespace trireme
