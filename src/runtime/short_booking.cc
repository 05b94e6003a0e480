#include "runtime/short_booking.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/error.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Steps of the part that may look ahead at what ends it: weights that are gathered, messages that are
// awaited.
constexpr size_t kAhead = 2;

// Is a microbatch of the run as any other?
bool microbatches_alike(const RunSpec& run) {
  return !has_own_schedule(run.layout) && !run.known_routing.rows && !run.layout.offloads_inputs() &&
         run.optimizer.post_validation == "off" && run.train.noise_scale == 0;
}

// A call without its place.
struct Ask {
  int64_t size = 0;   // < 0: gives back
  int64_t since = 0;  // of what is given back: so many calls before it was asked for; 0: it was there before
  bool operator==(const Ask&) const = default;
};

class Rounds {
 public:
  // part: of the actions; a microbatch lives for no more than `life` of them.
  Rounds(const ArenaCalls& listed, const Repeats& part, size_t life) : listed_(listed) {
    const size_t until = part.end - kAhead * part.step;
    if (part.begin + life + part.step > until) return;
    end_ = listed.first[until], begin_ = listed.first[until - part.step];
    young_ = listed.first[until - life];
    list_asks();
    repeats_ = calls_repeat() && blocks_repeat();
  }
  // Is the last round as the ones before it, for longer than any of its blocks is held, and does it leave
  // behind what they left?
  bool repeat() const { return repeats_; }
  // The arena's end with so many rounds more.
  int64_t high_water(int64_t rounds) const {
    BestFit p = listed_.before;
    std::vector<int64_t> old(end_), recent(std::bit_ceil(asks_.size() + 1));
    const size_t mask = recent.size() - 1;
    size_t now = 0;  // calls so far
    const auto ask = [&](size_t i) {
      const Ask& a = asks_[i];
      int64_t at = listed_.calls[i].at;
      if (a.size > 0)
        at = p.place(a.size);
      else if (a.since > 0)
        at = i >= end_ && i - size_t(a.since) < young_ ? old[i - size_t(a.since)]
                                                       : recent[(now - size_t(a.since)) & mask];
      require(at >= 0, "an arena without end has room");
      if (a.size < 0) p.give_back(at, -a.size);
      recent[now++ & mask] = at;
      if (i < end_) old[i] = at;
    };
    for (size_t i = 0; i < end_; i++) ask(i);
    // Where all that is held lies is the arena's state: once it comes back, so do the rounds since. It is
    // held against that behind a number of rounds that doubles (Brent).
    std::vector<int64_t> state, then;
    for (int64_t done = 0, at = 0; done < rounds;) {
      for (size_t i = begin_; i < end_; i++) ask(i);
      done++, state.clear();
      for (size_t i : held_[1])
        if (i >= young_) state.push_back(recent[(now - (end_ - i)) & mask]);
      if (at > 0 && state == then) rounds = done + (rounds - done) % (done - at), at = rounds;
      if (done >= 2 * at) then = state, at = done;
    }
    for (size_t i = end_; i < asks_.size(); i++) ask(i);
    return p.high_water();
  }

 private:
  void list_asks() {
    std::unordered_map<int64_t, size_t> held;  // by where a block is, its call
    for (size_t i = 0; i < listed_.calls.size(); i++) {
      const Arena::Call& c = listed_.calls[i];
      if (i == end_ || i == begin_) held_[i == end_] = calls_of(held);
      asks_.push_back({.size = c.size});
      if (c.size > 0) {
        held[c.at] = i;
      } else if (const auto it = held.find(c.at); it != held.end()) {
        asks_.back().since = int64_t(i - it->second);
        held.erase(it);
      }
    }
  }
  static std::vector<size_t> calls_of(const std::unordered_map<int64_t, size_t>& held) {
    std::vector<size_t> calls;
    for (const auto& [at, call] : held) calls.push_back(call);
    std::sort(calls.begin(), calls.end());
    return calls;
  }
  size_t round() const { return end_ - begin_; }
  bool calls_repeat() const {
    if (young_ < round()) return false;
    for (size_t i = young_; i < end_; i++)
      if (!(asks_[i] == asks_[i - round()])) return false;
    return true;
  }
  // Of what is held behind the round, what was asked for lately is as it was before it, so many calls later;
  // the rest is the same.
  bool blocks_repeat() const {
    std::vector<size_t> later;
    for (size_t i : held_[0]) later.push_back(i < young_ - round() ? i : i + round());
    return later == held_[1];
  }

  const ArenaCalls& listed_;
  size_t begin_ = 0, end_ = 0;  // calls of the last round
  size_t young_ = 0;            // the first call that a block that is not held for the whole step can be of
  std::vector<Ask> asks_;
  std::vector<size_t> held_[2];  // calls whose blocks are held before the round, and behind it
  bool repeats_ = false;
};

}  // namespace

ShortBooking short_arena_of_stage(const RunSpec& run, const Schedule& schedule,
                                  const std::optional<SteadyPart>& part, int threads,
                                  const ClusterSpec& cluster, int pp_rank) {
  const auto whole = [&] {
    return ShortBooking{arena_of_stage(run, schedule, threads, cluster, pp_rank), schedule.microbatches};
  };
  if (!part || !microbatches_alike(run)) return whole();
  const Repeats& all = part->ranks[size_t(pp_rank)];
  // What is sent may be held for longer than its microbatch, and sends of the warm-up are.
  for (size_t life = longest_life(schedule.ranks[size_t(pp_rank)], all) + kAhead * all.step;; life *= 2) {
    const int fewer = part->removable(2 * (life / all.step + 1) + kAhead);
    if (fewer <= schedule.microbatches / 8) return whole();
    RunSpec less = run;
    less.batch.global = (schedule.microbatches - fewer) * run.layout.dp * run.batch.micro;
    const Schedule cut = schedule_of(less);
    if (!same_actions(cut, shortened(schedule, *part, fewer))) return whole();
    ArenaCalls listed;
    arena_of_stage(less, cut, threads, cluster, pp_rank, &listed);
    const int rounds = fewer / part->period;
    Repeats kept = all;
    kept.end -= size_t(rounds) * all.step;
    const Rounds found(listed, kept, life);
    if (found.repeat()) return {found.high_water(rounds), cut.microbatches};
  }
}

}  // namespace trireme
