#include "sim/find_schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

// Microbatches ascend in each kind, so the kinds alone say everything.
using Sequence = std::vector<Act>;
using Sequences = std::vector<Sequence>;  // by rank

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Compared from left to right: what is aimed at, the other of makespan and span, the sum of all ranks' ends.
using Length = std::array<int64_t, 3>;
constexpr Length kEndless = {kNever, kNever, kNever};

struct Problem {
  std::span<const StageTimes> times;
  int microbatches;
  std::span<const HeldLimit> limits;
  Aim aim;
  int ranks() const { return int(times.size()); }
  int64_t time(int rank, Act kind) const {
    const StageTimes& t = times[size_t(rank)];
    return kind == Act::F ? t.forward : kind == Act::I ? t.input : t.weight;
  }
  // May the rank hold what is left of so many forwards, input and weight gradients?
  bool fits(int rank, int f, int i, int w) const {
    const HeldLimit& l = limits[size_t(rank)];
    return (f - i) * l.before_input + (i - w) * l.before_weight <= l.most;
  }
};

// What has been done, and when messages are there.
class Clocks {
 public:
  explicit Clocks(const Problem& p)
      : p_(p), ranks_(p.times.size()), there_(2 * p.times.size() * size_t(p.microbatches), kNever) {
    for (int mb = 0; mb < p.microbatches; mb++) there(Act::F, 0, mb) = 0;
  }

  int done(int rank, Act kind) const { return ranks_[size_t(rank)].done[slot(kind)]; }
  int64_t free(int rank) const { return ranks_[size_t(rank)].free; }

  // When the rank's next action of the kind can begin at the earliest, of what is known; kNever: it cannot.
  int64_t next(int rank, Act kind) const {
    const int mb = done(rank, kind);
    if (mb == p_.microbatches) return kNever;
    if (kind == Act::F && !p_.fits(rank, mb + 1, done(rank, Act::I), done(rank, Act::W))) return kNever;
    if (kind == Act::I && mb >= done(rank, Act::F)) return kNever;
    if (kind == Act::W && mb >= done(rank, Act::I)) return kNever;
    int64_t read = 0;
    if (kind == Act::F) read = there(kind, rank, mb);
    if (kind == Act::I && rank + 1 < p_.ranks()) read = there(kind, rank, mb);
    return read == kNever ? kNever : std::max(read, free(rank));
  }

  void run(int rank, Act kind, int64_t begin) {
    Rank& r = ranks_[size_t(rank)];
    const int mb = r.done[slot(kind)]++;
    if (r.first == kNever) r.first = begin;
    r.free = begin + p_.time(rank, kind);
    const int to = kind == Act::F ? rank + 1 : rank - 1;
    if (kind == Act::W || to < 0 || to == p_.ranks()) return;
    int64_t& lane = r.lane[slot(kind)];  // one message at a time
    there(kind, to, mb) = lane = std::max(lane, r.free) + p_.times[size_t(rank)].send;
  }

  // Of one rank, so far.
  int64_t length_of(int rank, Aim aim) const {
    const Rank& r = ranks_[size_t(rank)];
    return aim == Aim::step ? r.free : r.free - r.first;
  }
  Length length() const {
    int64_t makespan = 0, span = 0, ends = 0;
    for (const Rank& r : ranks_) {
      if (r.done[2] < p_.microbatches) return kEndless;
      makespan = std::max(makespan, r.free), span = std::max(span, r.free - r.first), ends += r.free;
    }
    return p_.aim == Aim::step ? Length{makespan, span, ends} : Length{span, makespan, ends};
  }

 private:
  struct Rank {
    int64_t free = 0, first = kNever, lane[2] = {0, 0};
    int done[3] = {0, 0, 0};
  };
  static size_t slot(Act kind) { return kind == Act::F ? 0 : kind == Act::I ? 1 : 2; }
  int64_t& there(Act kind, int rank, int mb) {
    return there_[(slot(kind) * ranks_.size() + size_t(rank)) * size_t(p_.microbatches) + size_t(mb)];
  }
  int64_t there(Act kind, int rank, int mb) const { return const_cast<Clocks*>(this)->there(kind, rank, mb); }

  const Problem& p_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> there_;  // by kind (F, I), rank that reads, microbatch
};

// Endless where ranks wait for each other for ever, or hold too much.
Length length_of(const Problem& p, const Sequences& s) {
  Clocks c(p);
  std::vector<size_t> at(s.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < p.ranks(); r++)
      for (; at[size_t(r)] < s[size_t(r)].size(); moved = true) {
        const Act kind = s[size_t(r)][at[size_t(r)]];
        const int64_t begin = c.next(r, kind);
        if (begin == kNever) break;
        c.run(r, kind, begin), at[size_t(r)]++;
      }
  }
  return c.length();
}

// When weight gradients come: behind each I; ahead * r of them behind, as in ZB-H1 and H2; or when memory
// asks for them and at the end.
enum class Weights : uint8_t { eager, lagging, late };

// Rank r runs `ahead` (p-1-r) forwards before its first I, as its limit allows. 1F1B is (1, eager), ZB-H1
// (1, lagging), ZB-H2 (2, lagging).
Sequences one_forward_one_backward(const Problem& p, int ahead, Weights weights) {
  Sequences all;
  for (int r = 0; r < p.ranks(); r++) {
    Sequence& s = all.emplace_back();
    const int m = p.microbatches;
    int f = 0, i = 0, w = 0;
    const auto put = [&](Act kind, int& n) { s.push_back(kind), n++; };
    const auto room = [&] { return f < m && p.fits(r, f + 1, i, w); };
    // The last forward before the first I is that of the steady part.
    while (f < std::min(m, ahead * (p.ranks() - 1 - r)) && p.fits(r, f + 2, i, w)) put(Act::F, f);
    while (i < m) {
      while (f < m && !room() && w < i) put(Act::W, w);
      if (room()) put(Act::F, f);
      put(Act::I, i);
      const int lag = weights == Weights::eager ? 0 : weights == Weights::lagging ? ahead * r : m;
      if (i - w > lag) put(Act::W, w);
    }
    while (w < m) put(Act::W, w);
  }
  return all;
}

// ZB-H2 (Qi et al. 2024, figure 3) for any times, which is their ZB-2p where room is for 2p: rank r begins
// with the forwards that end before its first input gradient can come, a way through all ranks behind it, and
// lets as many weight gradients wait as its last input gradient comes before its end, which is a way through
// all ranks before it behind the first rank's. round_up: forwards and gradients that end a little later too.
Sequences filled(const Problem& p, bool round_up) {
  const int m = p.microbatches, ranks = p.ranks();
  const auto way = [&](int rank) {  // there and back
    const StageTimes& t = p.times[size_t(rank)];
    return t.forward + t.input + 2 * t.send;
  };
  const auto parts = [&](int64_t time, int64_t of) {
    return of == 0 ? m : int(std::min<int64_t>(m, (time + (round_up ? of - 1 : 0)) / of));
  };
  Sequences all;
  int64_t behind = 0, before = 0;
  for (int r = 0; r < ranks; r++) behind += r > 0 ? way(r) : 0;
  for (int r = 0; r < ranks; r++) {
    Sequence& s = all.emplace_back();
    const int ahead = 1 + parts(behind, p.time(r, Act::F)) - (round_up && behind > 0),
              lag = parts(before, p.time(r, Act::W));
    int f = 0, i = 0, w = 0;
    const auto put = [&](Act kind, int& n) { s.push_back(kind), n++; };
    const auto room = [&] { return f < m && p.fits(r, f + 1, i, w); };
    while (f < ahead && room()) put(Act::F, f);
    while (i < m) {
      put(Act::I, i);
      while (i - w > lag || (f < m && !room() && w < i)) put(Act::W, w);
      if (room()) put(Act::F, f);
    }
    while (w < m) put(Act::W, w);
    before += way(r), behind -= r + 1 < ranks ? way(r + 1) : 0;
  }
  return all;
}

// How a greedy rank decides when several actions could come next.
struct Rules {
  bool forward_first;  // of a forward and an input gradient that are both there
  int ahead;           // forwards before the first I, as above; 0: as many as the limit allows
  int weight_fits;     // quarters of a W's time that must be free before the next message to begin it
};

class Greedy {
 public:
  Greedy(const Problem& p, Rules rules) : p_(p), rules_(rules), clocks_(p), all_(p.times.size()) {}

  Sequences run() {
    for (size_t left = p_.times.size() * 3 * size_t(p_.microbatches); left > 0; left--) {
      Choice best{Act::W, kNever};
      int rank = 0;
      for (int r = 0; r < p_.ranks(); r++)
        if (const Choice c = choice(r); c.begin < best.begin) best = c, rank = r;
      if (best.begin == kNever) return {};  // only where rules forbid all that is left
      clocks_.run(rank, best.kind, best.begin);
      all_[size_t(rank)].push_back(best.kind);
    }
    return std::move(all_);
  }

 private:
  struct Choice {
    Act kind;
    int64_t begin;
  };
  // Every message that is there at the earliest begin of all ranks is known: it left before.
  Choice choice(int r) const {
    const int64_t now = clocks_.free(r), weight = clocks_.next(r, Act::W), input = clocks_.next(r, Act::I);
    int64_t forward = clocks_.next(r, Act::F);
    const int most_ahead = rules_.ahead * (p_.ranks() - 1 - r) + 1;
    if (rules_.ahead > 0 && clocks_.done(r, Act::F) - clocks_.done(r, Act::I) >= most_ahead) forward = kNever;
    const Choice f{Act::F, forward}, i{Act::I, input}, w{Act::W, weight};
    if (forward <= now && input <= now) return rules_.forward_first ? f : i;
    if (input <= now) return i;
    if (forward <= now) return f;
    const Choice soonest = input <= forward ? i : f;
    if (weight == kNever) return soonest;
    const bool fits = soonest.begin == kNever ||
                      4 * (soonest.begin - now) >= rules_.weight_fits * p_.times[size_t(r)].weight;
    return fits ? w : soonest;
  }

  const Problem& p_;
  Rules rules_;
  Clocks clocks_;
  Sequences all_;
};

// Does the rank do nothing before its time, nor hold too much?
bool in_order(const Problem& p, int rank, const Sequence& s) {
  int f = 0, i = 0, w = 0;
  for (Act a : s) {
    f += a == Act::F, i += a == Act::I, w += a == Act::W;
    if (i > f || w > i || !p.fits(rank, f, i, w)) return false;
  }
  return true;
}

struct Candidate {
  Length length;
  Sequences sequences;
};

struct Place {
  int rank;
  size_t step;
};

// A chain of actions from the end of the rank that ends last back to its begin: each begins when the one
// before it, on its rank or by its message, is over. Only what is on it can make the whole shorter.
std::vector<Place> critical_chain(const Problem& p, const Sequences& s) {
  Clocks c(p);
  std::vector<std::vector<int64_t>> begins(s.size());
  std::vector<std::array<std::vector<size_t>, 2>> steps(s.size());  // of each microbatch's F and I
  Place last{0, 0};
  int64_t end = -1;
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < p.ranks(); r++)
      for (const Sequence& own = s[size_t(r)]; begins[size_t(r)].size() < own.size(); moved = true) {
        const size_t step = begins[size_t(r)].size();
        const int64_t begin = c.next(r, own[step]);
        if (begin == kNever) break;
        c.run(r, own[step], begin);
        begins[size_t(r)].push_back(begin);
        if (own[step] != Act::W) steps[size_t(r)][own[step] == Act::I].push_back(step);
        if (c.length_of(r, p.aim) > end) end = c.length_of(r, p.aim), last = {r, step};
      }
  }
  std::vector<Place> chain;
  for (Place at = last;;) {
    chain.push_back(at);
    const Sequence& own = s[size_t(at.rank)];
    const int64_t begin = begins[size_t(at.rank)][at.step];
    const bool waited =
        at.step == 0 || begins[size_t(at.rank)][at.step - 1] + p.time(at.rank, own[at.step - 1]) < begin;
    if (!waited) {
      at.step--;
      continue;
    }
    const int from = own[at.step] == Act::F ? at.rank - 1 : at.rank + 1;
    if (begin == 0 || from < 0 || from == p.ranks()) return chain;
    const bool input = own[at.step] == Act::I;
    const auto& mine = steps[size_t(at.rank)][input];
    const auto mb = std::lower_bound(mine.begin(), mine.end(), at.step) - mine.begin();
    at = {from, steps[size_t(from)][input][size_t(mb)]};
  }
}

// Moves one action at a time, mostly of the critical chain, to another place at most `kReach` away; keeps
// what is not longer.
void refine(const Problem& p, Candidate& c, int tries) {
  constexpr uint64_t kReach = 8, kMostly = 4;  // one move in kMostly is of any action
  const uint64_t key = rng_key(1, uint64_t(p.microbatches), "find_schedule");
  uint64_t drawn = 0;
  const auto draw = [&](uint64_t n) { return below(key, drawn++, n); };
  std::vector<Place> chain = critical_chain(p, c.sequences);
  for (int n = 0; n < tries; n++) {
    Place at = chain[draw(chain.size())];
    if (draw(kMostly) == 0) {
      at.rank = int(draw(uint64_t(p.ranks())));
      at.step = draw(c.sequences[size_t(at.rank)].size());
    }
    Sequence& s = c.sequences[size_t(at.rank)];
    const auto from = std::ptrdiff_t(at.step), by = std::ptrdiff_t(1 + draw(kReach));
    const std::ptrdiff_t to = draw(2) ? from + by : from - by;
    if (to < 0 || to >= std::ptrdiff_t(s.size()) || s[size_t(from)] == s[size_t(to)]) continue;
    const auto move = [&](std::ptrdiff_t a, std::ptrdiff_t b) {
      const auto first = s.begin();
      a < b ? std::rotate(first + a, first + a + 1, first + b + 1)
            : std::rotate(first + b, first + a, first + a + 1);
    };
    move(from, to);
    const Length now = in_order(p, at.rank, s) ? length_of(p, c.sequences) : kEndless;
    if (now > c.length) {
      move(to, from);
      continue;
    }
    const bool shorter = now < c.length;
    c.length = now;
    if (shorter) chain = critical_chain(p, c.sequences);
  }
}

// Each action of a greedy schedule is chosen among all ranks.
int64_t greedy_work(int64_t ranks, int64_t microbatches) {
  return ranks * ranks * microbatches;
}

std::vector<Candidate> candidates(const Problem& p) {
  std::vector<Candidate> all;
  const auto add = [&](Sequences s) {
    if (s.empty()) return;
    const Length length = length_of(p, s);
    if (length < kEndless) all.push_back({length, std::move(s)});
  };
  for (int ahead : {1, 2, p.microbatches})
    for (Weights weights : {Weights::eager, Weights::lagging, Weights::late})
      add(one_forward_one_backward(p, ahead, weights));
  for (bool round_up : {false, true}) add(filled(p, round_up));
  constexpr int64_t kManyRules = 1 << 22;  // some seconds; above, the one that always comes to its end
  const bool many = greedy_work(p.ranks(), p.microbatches) <= kManyRules;
  for (bool forward_first : {false, true})
    for (int ahead : {0, 1, 2})
      for (int weight_fits : {0, 1, 2, 3, 4})
        if (many || (!forward_first && ahead == 0 && weight_fits == 0))
          add(Greedy(p, {forward_first, ahead, weight_fits}).run());
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.length < b.length; });
  return all;
}

Schedule written(const Sequences& all, int microbatches) {
  Schedule s{.stages = int(all.size()), .microbatches = microbatches, .ranks = {}};
  for (size_t r = 0; r < all.size(); r++) {
    int next[3] = {0, 0, 0};
    std::vector<Action>& actions = s.ranks.emplace_back();
    for (Act kind : all[r])
      actions.push_back({kind, int16_t(r), int16_t(next[kind == Act::F ? 0 : kind == Act::I ? 1 : 2]++)});
  }
  return s;
}

}  // namespace

Schedule find_schedule(std::span<const StageTimes> times, int microbatches, std::span<const HeldLimit> limits,
                       Aim aim) {
  require(!times.empty() && times.size() == limits.size() && microbatches > 0,
          "a rank has times and a limit");
  for (const HeldLimit& l : limits)
    require(l.before_weight >= 0 && l.before_input >= l.before_weight && l.most >= l.before_input,
            "a rank holds a microbatch at least, and no more of it after its input gradient than before");
  constexpr int64_t kMostWork = 1'000'000'000;  // half a minute
  if (greedy_work(int64_t(times.size()), microbatches) > kMostWork)
    bad_request(
        "schedule auto: {} pipeline ranks and {} microbatches are more than its search takes: ranks * ranks "
        "* "
        "microbatches up to {}",
        times.size(), microbatches, kMostWork);
  const Problem p{times, microbatches, limits, aim};
  std::vector<Candidate> all = candidates(p);
  // More actions want more moves, and each move then costs more: two seconds at most.
  constexpr int64_t kActions = 40'000'000, kTriesAnAction = 100;
  constexpr size_t kRefined = 3;
  const int64_t actions = int64_t(times.size()) * 3 * microbatches;
  const int tries = int(std::min(kTriesAnAction * actions, kActions / actions));
  all.resize(std::min(all.size(), kRefined));
  for (Candidate& c : all) refine(p, c, tries);
  const auto best = std::min_element(
      all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.length < b.length; });
  return written(best->sequences, microbatches);
}

}  // namespace trireme
