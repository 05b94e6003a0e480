#include "search/confirm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/timed.h"
#include "forecast/fullest_arena.h"
#include "forecast/searched_step.h"
#include "search/kind_cuts.h"
#include "sim/steady_step.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr double kGigaByte = 1e9;

// The run that train would start in this layout.
RunSpec run_of(const SearchRequest& q, const ConfirmRequest& c, const SearchLayout& l) {
  RunSpec run = run_of(q, c.run);
  // A host has memory of its own beside a device of another kind alone.
  if (l.offload && q.disk_each_way && !c.run)
    run.train.device = "cuda", run.train.comm = "nccl", run.train.sum_order = "auto";
  return with_layout(std::move(run), l, q.disk_each_way);
}

// whole: also if one rank shows that the layout does not fit.
void book(const SearchRequest& q, const RunSpec& run, bool whole, Confirmed& c) {
  const RankRoom room = room_of(q, c.priced.layout);
  const double least = q.figures.memory * q.memory_share - c.priced.memory.base;
  const int64_t enough = whole || room.devices ? kEndlessArena : std::max<int64_t>(0, int64_t(least));
  const FullestArena most = fullest_arena(run, room, enough);
  c.arena = most.bytes;
  c.pp = most.pp_rank;
  c.more = most.more;
  c.booked_ranks = most.ranks;
  c.bytes = double(c.arena) + c.priced.memory.base;
  c.fits = c.used() <= q.figures.memory * q.memory_share;
}

void simulate(const SearchRequest& q, const ConfirmRequest& request, const RunSpec& run, Confirmed& c) {
  try {
    const StepTotals step = replayed_step(q, request.by, run);
    c.step_s = double(step.makespan) * 1e-9;
    c.bubble = step.bubble;
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    c.unsimulated = e.what();
  }
}

// The order of axes changes who is near, not what a rank holds: booked once.
const Confirmed* booked_before(const SearchRequest& q, const Confirmation& all, SearchLayout l) {
  const NumberList* devices = q.kinds ? q.kinds->of_ranks(degrees_of(l)) : nullptr;
  for (const std::vector<Confirmed>* list : {&all.looked_at, &all.front})
    for (const Confirmed& c : *list) {
      l.nearest = c.priced.layout.nearest;
      if (q.kinds && q.kinds->of_ranks(degrees_of(l)) != devices) continue;
      if (l == c.priced.layout && c.booked && c.refused.empty()) return &c;
    }
  return nullptr;
}

// Whether a layout of this score is to be booked.
using Books = std::function<bool(double score)>;

Confirmed look_at(const SearchRequest& q, const ConfirmRequest& request, const Priced& p,
                  const Confirmation& before, const Books& books) {
  Confirmed c{.priced = p};
  const Confirmed* known = before.of(p.layout);
  if (known) c = *known, c.priced = p;
  if (known && (known->booked || !known->refused.empty() || !books(known->score()))) return c;
  try {
    RunSpec run = run_of(q, request, p.layout);
    c.refused = why_not_run(run);
    if (!c.refused.empty()) return c;
    run = resolve(run, {.native_bf16 = true});
    if (!known) simulate(q, request, run, c);
    if (!books(c.score())) return c;
    c.booked = true;
    if (const Confirmed* same = booked_before(q, before, p.layout)) {
      c.arena = same->arena, c.bytes = same->bytes, c.fits = same->fits;
      c.more = same->more;
      c.pp = same->pp;
    } else {
      book(q, run, false, c);
    }
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    c.refused = e.what();
  }
  return c;
}

bool lower_score(const Priced& a, const Priced& b) {
  return a.score < b.score;
}

// Layouts in the order of their bounds. A search's bounds are rough; a layout whose turn it is gets its exact
// one, and is next if that is still the least.
class BoundOrder {
 public:
  BoundOrder(const SearchRequest& q, std::vector<Priced>& all) : q_(q), all_(all) {
    for (size_t i = 0; i < all.size(); i++) turns_.push_back({all[i].score, i, !q.software.ordered()});
    std::make_heap(turns_.begin(), turns_.end());
  }
  // Null: there is no other.
  const Priced* next() {
    while (!turns_.empty()) {
      std::pop_heap(turns_.begin(), turns_.end());
      Turn& t = turns_.back();
      Priced& p = all_[t.at];
      if (t.exact) {
        turns_.pop_back();
        return &p;
      }
      const uint8_t alike = p.alike;
      if (const Priced exact = price_layout(q_, p.layout); exact.score > p.score) p = exact, p.alike = alike;
      t.score = p.score, t.exact = true;
      std::push_heap(turns_.begin(), turns_.end());
    }
    return nullptr;
  }

 private:
  struct Turn {
    double score = 0;
    size_t at = 0;
    bool exact = false;
    // The first of a heap is the largest.
    bool operator<(const Turn& o) const { return score > o.score || (score == o.score && at > o.at); }
  };
  const SearchRequest& q_;
  std::vector<Priced>& all_;
  std::vector<Turn> turns_;
};

// In every order of the axes, for that changes nothing of what a rank holds.
void drop(SearchResult& r, const SearchLayout& layout) {
  const auto is_layout = [&](SearchLayout l) {
    l.nearest = layout.nearest;
    return l == layout;
  };
  const auto is = [&](const Priced& p) { return is_layout(p.layout); };
  std::erase_if(r.best, is), std::erase_if(r.front, is);
  for (Priced& d : r.divisions)
    if (is(d))
      for (const Priced& next : r.best)
        if (next.layout.same_division(layout)) {
          d = next;
          break;
        }
  std::erase_if(r.divisions, is);
  std::stable_sort(r.divisions.begin(), r.divisions.end(), lower_score);
}

// By the simulated step, where there is one.
void sort_front(const SearchRequest& q, SearchResult& r, const Confirmation& all) {
  const auto found = [&](const Priced& p) {
    const Confirmed* c = all.of(p.layout);
    return seconds_of(q, p) * (c && c->fits ? c->score() / p.score : 1);
  };
  std::stable_sort(r.front.begin(), r.front.end(),
                   [&](const Priced& a, const Priced& b) { return found(a) < found(b); });
}

// Those that were looked at first, by what was found; the others behind them.
void rank_again(const SearchRequest& q, SearchResult& r, Confirmation& all) {
  std::vector<const Confirmed*> stay;
  for (const Confirmed& c : all.looked_at)
    if (!all.drops(c)) stay.push_back(&c);
  std::stable_sort(stay.begin(), stay.end(),
                   [](const Confirmed* a, const Confirmed* b) { return a->score() < b->score(); });
  all.reordered = !stay.empty() && !(stay[0]->priced.layout == r.best[0].layout);
  std::vector<Priced> ranked;
  for (const Confirmed* c : stay) ranked.push_back(c->priced);
  for (const Priced& p : r.best)
    if (!all.of(p.layout)) ranked.push_back(p);
  r.best = std::move(ranked);
  sort_front(q, r, all);
}

// What each kind that was booked and is too large holds beside the closed form. false: nothing is known that
// was not before.
bool learn(SearchRequest& q, const Confirmation& all) {
  bool more = false;
  for (const Confirmed& c : all.looked_at) {
    if (!c.refused.empty() || c.fits) continue;  // also what was not booked
    const SearchLayout& l = c.priced.layout;
    auto known = std::find_if(q.held_more.begin(), q.held_more.end(), [&](const HeldMore& h) {
      return h.schedule == l.schedule && h.zero == l.zero && h.again == l.again;
    });
    if (known == q.held_more.end())
      known = q.held_more.insert(known, {.schedule = l.schedule, .zero = l.zero, .again = l.again});
    const StepMemory plain = closed_memory(q, l);
    more |= learn_held(*known, {plain.activations, c.used() - (plain.used() - plain.activations)});
  }
  return more;
}

// What layouts that were booked and are too large hold more than in closed form; not where one that should
// hold as much, of another sharding, is known to fit. false: nothing is known that was not before.
bool learn_booked(SearchRequest& q, const std::vector<Confirmed>& looked_at) {
  const double room = q.figures.memory * q.memory_share;
  bool more = false;
  for (const Confirmed& c : looked_at) {
    if (!c.refused.empty() || c.fits) continue;
    const SearchLayout& l = c.priced.layout;
    const auto closed = [&](const SearchLayout& of) { return closed_memory(q, of).used(); };
    const double bytes = c.used() - closed(l);
    if (std::any_of(looked_at.begin(), looked_at.end(), [&](const Confirmed& o) {
          const SearchLayout& other = o.priced.layout;
          return o.holds() && other.holds_as(l) && closed(other) + bytes > room;
        }))
      continue;
    auto known = std::find_if(q.booked_more.begin(), q.booked_more.end(),
                              [&](const BookedMore& b) { return b.layout.holds_as(l); });
    if (known == q.booked_more.end()) known = q.booked_more.insert(known, {.layout = l});
    if (bytes <= known->bytes) continue;
    known->bytes = bytes, more = true;
  }
  return more;
}

// If nothing fits, the nearest layout's bytes are booked too.
void book_nearest(const SearchRequest& q, SearchResult& r, const ConfirmRequest& request) {
  Refused& no = r.refused[size_t(Refusal::memory)];
  if (!q.software.taped() || no.bytes == 0) return;
  try {
    const RunSpec run = run_of(q, request, no.nearest);
    if (!why_not_run(run).empty()) return;
    Confirmed c{.priced = price_layout(q, no.nearest)};
    book(q, resolve(run, {.native_bf16 = true}), true, c);
    no.bytes = std::max(no.bytes, c.used());
    no.booked = true;
    for (SearchResult::Rejected& d : r.rejected)
      if (d.layout.same_division(no.nearest)) d.bytes = no.bytes;
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
  }
}

std::string learned_text(const SearchRequest& q) {
  std::string s;
  for (const HeldMore& h : q.held_more)
    s += fmt::format("{}{}, zero {}{} {:.2f} times and {:.1f} GB", s.empty() ? "" : "; ", h.schedule, h.zero,
                     h.again == Again::none   ? ""
                     : h.again == Again::full ? " with recompute full"
                                              : " with recompute selective",
                     h.times, h.bytes / kGigaByte);
  return s;
}

std::string row_text(const SearchRequest& q, const Confirmed& c, bool dropped) {
  std::string s = fmt::format("{:9.3f} s ", c.priced.time.total);
  if (c.step_s > 0)
    s += fmt::format("{:8.3f} s {:+6.1f} % ", c.step_s, 100 * (c.step_s / c.priced.time.total - 1));
  else
    s += fmt::format("{:>10} {:>8} ", "-", "");
  s += fmt::format("{:8.1f} GB ", c.priced.memory.total / kGigaByte);
  if (c.booked)
    s += fmt::format("{:6.1f} GB {:+6.1f} %  ", c.bytes / kGigaByte,
                     100 * (c.bytes / c.priced.memory.total - 1));
  else
    s += fmt::format("{:>9} {:>8}  ", "-", "");
  s += text_of(c.priced.layout) + "\n";
  const auto note = [&](const std::string& text) { s += "      " + text.substr(0, text.find('\n')) + "\n"; };
  if (!c.refused.empty())
    note(fmt::format("not confirmed{}, this version cannot run it: {}", dropped ? ", dropped" : "",
                     c.refused));
  if (!c.fits)
    note(fmt::format(
        "DOES NOT FIT, dropped: {} bytes on pipeline rank {} and {:.1f} GB beside them, of {:.1f} GB",
        c.arena, c.pp, c.priced.memory.base / kGigaByte,
        (q.figures.memory * q.memory_share + c.more) / kGigaByte));
  if (!c.unsimulated.empty()) note("not simulated: " + c.unsimulated);
  return s;
}

}  // namespace

Confirmation confirm(const SearchRequest& q, SearchResult& r, const ConfirmRequest& request,
                     const Confirmation& before) {
  Confirmation all;
  const double begin = now_s();
  const auto most = size_t(std::max<int64_t>(1, request.most));
  std::vector<double> fit;  // scores of the best that fit, ascending
  const Books books = [&](double score) { return fit.size() < most || score < fit.back(); };
  all.ran_out = int64_t(r.best.size()) >= q.best;
  all.proven = q.software.ordered() && !all.ran_out;
  for (BoundOrder order(q, r.best); const Priced* p = order.next();) {
    const auto looked_at = int64_t(all.looked_at.size());
    if (fit.size() == most && fit[0] <= p->score) {
      all.proven = q.software.ordered();
      all.ran_out = false;
      break;
    }
    if ((!q.software.ordered() && looked_at == kMostConfirmed) ||
        (looked_at > 0 && now_s() - begin > request.seconds)) {
      all.proven = false, all.next_score = p->score;
      all.ran_out = false;
      break;
    }
    if (request.progress) request.progress(looked_at, int64_t(r.best.size()), p->layout);
    const Confirmed& c =
        all.looked_at.emplace_back(look_at(q, request, *p, before.of(p->layout) ? before : all, books));
    if (!c.holds()) continue;
    fit.insert(std::upper_bound(fit.begin(), fit.end(), c.score()), c.score());
    if (fit.size() > most) fit.pop_back();
  }
  for (const Confirmed& c : all.looked_at)
    if (all.drops(c)) drop(r, c.priced.layout), all.dropped++;
  rank_again(q, r, all);
  all.seconds = now_s() - begin;
  return all;
}

bool Confirmation::some_hold() const {
  return std::any_of(looked_at.begin(), looked_at.end(), [](const Confirmed& c) { return c.holds(); });
}

double Confirmation::least_score() const {
  double least = 0;
  for (const Confirmed& c : looked_at)
    if (c.holds() && (least == 0 || c.score() < least)) least = c.score();
  return least;
}

const Confirmed* Confirmation::of(const SearchLayout& l) const {
  for (const std::vector<Confirmed>* list : {&looked_at, &front})
    for (const Confirmed& c : *list)
      if (c.priced.layout == l) return &c;
  return nullptr;
}

namespace {
constexpr size_t kListed = 12;
// The k-th of n that lie evenly among so many.
size_t evenly(size_t k, size_t n, size_t many) {
  return n == 1 ? 0 : k * (many - 1) / (n - 1);
}
}  // namespace

std::vector<size_t> listed_of(const SearchResult& r, const Confirmation* all) {
  std::vector<size_t> from, listed;
  for (size_t i = 0; i < r.front.size(); i++)
    if (!all || all->of(r.front[i].layout)) from.push_back(i);
  const size_t n = std::min(kListed, from.size());
  for (size_t k = 0; k < n; k++) listed.push_back(from[evenly(k, n, from.size())]);
  return listed;
}

void confirm_front(const SearchRequest& q, SearchResult& r, const ConfirmRequest& request,
                   Confirmation& all) {
  const double begin = now_s();
  for (size_t k = 0; k < kListed; k++)
    while (k < r.front.size() && int64_t(all.front.size()) < kMostConfirmed) {
      const size_t n = std::min(kListed, r.front.size());
      const Priced& p = r.front[evenly(k, n, r.front.size())];
      if (all.of(p.layout)) break;
      if (request.progress) request.progress(int64_t(all.front.size()), kMostConfirmed, p.layout);
      const Confirmed& c = all.front.emplace_back(look_at(q, request, p, all, [](double) { return true; }));
      if (!all.drops(c)) break;
      all.dropped++;
      drop(r, SearchLayout(c.priced.layout));  // another has its place
    }
  sort_front(q, r, all);
  all.seconds += now_s() - begin;
}

void confirm_alternatives(const SearchRequest& q, SearchResult& r, const ConfirmRequest& request,
                          Confirmation& all) {
  if (r.best.empty() || !all.some_hold()) return;
  const Confirmed* found = all.of(r.best.front().layout);
  if (!found || !found->holds()) return;
  const SearchLayout best = r.best.front().layout;
  const double bytes = found->bytes;
  constexpr int kMost = 4;
  std::vector<SearchLayout> chosen = {best};
  const auto is_new = [&](const Priced& p) {
    return std::find(chosen.begin(), chosen.end(), p.layout) == chosen.end();
  };
  // Adds the first layout that is offered, holds and takes at most `most` bytes. If the order is not that of
  // bounds, adds the fastest of a few such layouts as replayed.
  const auto look = [&](const std::vector<Priced>& from, double most, auto&& offered) {
    int looked = 0;
    int held = 0;
    std::optional<Priced> fastest;
    double least = INFINITY;
    for (const Priced& p : from) {
      if (!is_new(p) || !offered(p)) continue;
      const Confirmed* known = all.of(p.layout);
      if (!known || !known->booked) {
        if (looked++ == kMost) break;
        const Confirmed c = look_at(q, request, p, all, [](double) { return true; });
        std::erase_if(all.looked_at, [&](const Confirmed& o) { return o.priced.layout == p.layout; });
        known = &all.front.emplace_back(c);
      }
      if (!known->holds() || known->bytes >= most) continue;
      if (known->score() < least) {
        least = known->score();
        fastest = p;
      }
      if (q.software.ordered() || ++held == kMost) break;
    }
    if (fastest) chosen.push_back(fastest->layout);
  };
  look(r.divisions, INFINITY, [&](const Priced& p) { return !p.layout.same_division(best); });
  look(r.front, kLessMemory * bytes, [&](const Priced& p) { return p.memory.total < kLessMemory * bytes; });
  // As replayed an alternative may be faster, where no bound proves the best.
  const Confirmed* least = all.of(best);
  for (const Confirmed& c : all.front)
    if (c.holds() && c.score() < least->score()) least = &c;
  if (least->priced.layout == best) return;
  const Priced faster = least->priced;
  std::erase_if(r.best, [&](const Priced& p) { return p.layout == faster.layout; });
  r.best.insert(r.best.begin(), faster);
  all.reordered = true;
  confirm_alternatives(q, r, request, all);
}

bool learn_held(HeldMore& h, const HeldMore::Seen& s) {
  h.seen.push_back(s);
  if (h.times * s.closed + h.bytes >= s.booked) return false;
  const auto n = double(h.seen.size());
  double closed = 0, booked = 0, most = 1;
  for (const HeldMore::Seen& o : h.seen) {
    closed += o.closed / n, booked += o.booked / n;
    if (o.closed > 0) most = std::max(most, o.booked / o.closed);
  }
  double across = 0, spread = 0;
  for (const HeldMore::Seen& o : h.seen) {
    across += (o.closed - closed) * (o.booked - booked);
    spread += (o.closed - closed) * (o.closed - closed);
  }
  h.times = spread > 0 ? std::clamp(across / spread, 1.0, most) : 1;
  h.bytes = 0;
  for (const HeldMore::Seen& o : h.seen) h.bytes = std::max(h.bytes, o.booked - h.times * o.closed);
  return true;
}

namespace {

// Adds layouts that share out layers among the stages of the best ones more finely.
void add_moved_layers(const SearchRequest& q, SearchResult& r) {
  constexpr size_t kFrom = 3;
  std::vector<Priced> more;
  for (size_t i = 0; i < std::min(kFrom, r.best.size()); i++)
    for (Priced& p : moved_layers(q, r.best[i])) more.push_back(std::move(p));
  for (Priced& p : more) {
    const auto is = [&](const Priced& o) { return o.layout == p.layout; };
    if (std::none_of(r.best.begin(), r.best.end(), is)) r.best.push_back(std::move(p));
  }
  std::stable_sort(r.best.begin(), r.best.end(), lower_score);
}

// Those of earlier searches that are too large, in the place that the closed form ranks them at.
void keep_dropped(const Confirmation& known, Confirmation& all) {
  for (const Confirmed& c : known.looked_at)
    if (all.drops(c) && !all.of(c.priced.layout)) all.looked_at.push_back(c), all.dropped++;
  std::stable_sort(all.looked_at.begin(), all.looked_at.end(),
                   [](const Confirmed& a, const Confirmed& b) { return a.priced.score < b.priced.score; });
}

}  // namespace

Confirmation search_and_confirm(SearchRequest& q, SearchResult& r, const ConfirmRequest& request) {
  const double begin = now_s();
  if (q.software.ordered() && !q.bound) q.bound = bound_of(q);
  if (q.software.taped() && !q.bytes) q.bytes = bytes_of(q);
  Confirmation before, known;  // known.looked_at: of all searches, those that are too large first
  for (int i = 1;; i++) {
    r = search(q);
    if (q.kinds) add_moved_layers(q, r);
    Confirmation all = confirm(q, r, request, known);
    // With what was learned nothing is left to look at: what did not fit as booked is the answer.
    if (all.looked_at.empty()) std::swap(all, before);
    all.seconds = now_s() - begin;
    const auto remember = [&] {
      for (Confirmed& c : all.looked_at)
        if (!known.of(c.priced.layout)) known.looked_at.push_back(std::move(c));
    };
    if (all.ran_out && q.software.ordered() && q.best < kMostBounded) {
      q.best = kMostBounded;
      remember();
      continue;
    }
    const bool some = all.some_hold();
    const bool last = i == kMostSearches;
    if ((some || (q.software.ordered() && i <= kMostSearches / 2)) && !last &&
        learn_booked(q, all.looked_at)) {
      remember();
      continue;
    }
    if (some || (r.best.empty() && i > 1) || last || !learn(q, all)) {
      if (!some) book_nearest(q, r, request);
      keep_dropped(known, all);
      return all;
    }
    before = std::move(all);
  }
}

std::string confirmed_text(const SearchRequest& q, const Confirmation& all) {
  int64_t ranks = 0;
  for (const std::vector<Confirmed>* list : {&all.looked_at, &all.front})
    for (const Confirmed& c : *list) ranks += c.booked_ranks;
  std::string s = fmt::format(
      "\nconfirmed in {:.1f} s: {} layouts, {} ranks of them booked on meta (those that differ and hold "
      "most), all "
      "ranks simulated event by event\n{:>11} {:>19} {:>11} {:>18}  layout\n",
      all.seconds, all.looked_at.size() + all.front.size(), ranks, "step", "simulated", "memory", "booked");
  if (!q.held_more.empty())
    s.insert(
        1, fmt::format("searched again, for none that was looked at before fits: as booked these kinds hold "
                       "more than the closed form's activations: {}\n",
                       learned_text(q)));
  for (const Confirmed& c : all.looked_at) s += row_text(q, c, all.drops(c));
  if (!all.front.empty()) s += "of the front, beside these:\n";
  for (const Confirmed& c : all.front) s += row_text(q, c, all.drops(c));
  if (all.dropped > 0)
    s += fmt::format("{} dropped: too large as booked, or not run by this version\n", all.dropped);
  if (all.reordered) s += "as simulated another is the best than in closed form: ranked by that\n";
  return s;
}

}  // namespace trireme
