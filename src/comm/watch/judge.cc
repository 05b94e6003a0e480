#include "comm/watch/judge.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/progress.h"

namespace trireme {
namespace {

constexpr const char* kAfterwards = "the run ends; the same command goes on from the newest checkpoint";

std::string collective(const WatchedGroup& g, Collective c, int64_t number) {
  return fmt::format("{} {} of group {}", name_of(c), number, g.name.get());
}

// The newest collective that the rank issued, of the group that has had most.
std::string last_collective(const Beat& b) {
  const WatchedGroup* most = nullptr;
  for (const WatchedGroup& g : b.groups) {
    if (g.key == 0 || g.issued == 0) continue;
    const bool open = g.issued > g.done, most_open = most && most->issued > most->done;
    if (!most || open > most_open || (open == most_open && g.issued > most->issued)) most = &g;
  }
  return most ? collective(*most, most->last, most->issued - 1) : "none";
}

// Changes whenever the rank advances or reports a wait.
uint64_t motion_of(const Beat& b) {
  uint64_t h = 0;
  auto mix = [&h](uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15;
    h ^= h >> 29;
  };
  mix(uint64_t(b.waits)), mix(uint64_t(b.step)), mix(uint64_t(b.microbatch)), mix(uint64_t(b.left));
  for (const std::string_view text : {b.action.get(), b.layer.get()})
    for (char c : text) mix(uint8_t(c));
  for (const WatchedGroup& g : b.groups)
    mix(uint64_t(g.issued)), mix(uint64_t(g.done)), mix(uint64_t(g.messages_open));
  return h;
}

}  // namespace

std::string place_of(const Beat& b) {
  std::string s = fmt::format("in {}", b.action.get());
  if (b.microbatch >= 0) s += fmt::format(" of microbatch {}", b.microbatch);
  if (!b.layer.get().empty()) s += fmt::format(", layer {}", b.layer.get());
  if (b.step == 0) return s + ", before the first step";
  const bool alone = b.microbatch < 0 && b.layer.get().empty();  // "in save of step 3"
  return s + fmt::format("{} of step {}", alone ? "" : ",", b.step);
}

Judge::Judge(int world, const WatchLimits& limits)
    : limits_(limits),
      // Two looks or more, and several reports.
      stall_s_(std::max({1.5 * limits.beat_s, std::min(3 * limits.beat_s, limits.timeout_s / 2), 0.4})),
      motion_(size_t(world)),
      moved_s_(size_t(world)),
      beats_(size_t(world)),
      heard_s_(size_t(world)),
      named_s_(size_t(world), -1e300),
      waits_(size_t(world) * kMostWatchedGroups),
      messages_(size_t(world)),
      dead_(size_t(world)),
      blocked_(size_t(world)),
      charges_(size_t(world)) {
  members_.reserve(waits_.size());
}

// A judge that was stopped itself (a suspended machine, Ctrl-Z) has seen nothing meanwhile: a gap between
// two looks counts as two beats at most.
void Judge::advance(double now_s) {
  if (last_look_s_ >= 0) time_s_ += std::clamp(now_s - last_look_s_, 0.0, 2 * limits_.beat_s);
  last_look_s_ = now_s;
}

void Judge::note_motion(std::span<const Beat> beats) {
  for (size_t r = 0; r < beats.size(); r++) {
    reports_ |= beats[r].waits > 0;
    const uint64_t motion = motion_of(beats[r]);
    if (motion == motion_[r]) continue;
    motion_[r] = motion;
    moved_s_[r] = time_s_;
  }
}

void Judge::note_waits(std::span<const Beat> beats) {
  auto note = [&](Wait& w, bool open, int64_t done) {
    if (open && !(w.open && w.done == done)) w.since_s = time_s_;
    w.open = open, w.done = done;
  };
  members_.clear();
  for (size_t r = 0; r < beats.size(); r++) {
    const Beat& b = beats[r];
    if (b.number != beats_[r]) beats_[r] = b.number, heard_s_[r] = time_s_;
    int64_t messages = 0;
    for (size_t s = 0; s < kMostWatchedGroups; s++) {
      const WatchedGroup& g = b.groups[s];
      note(waits_[r * kMostWatchedGroups + s], !b.left && g.key != 0 && g.issued > g.done, g.done);
      if (g.key != 0) members_.push_back({g.key, int32_t(r), int32_t(s)});
      messages += g.messages_open;
    }
    note(messages_[r], !b.left && messages > 0, messages);
  }
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    return a.key != b.key ? a.key < b.key : a.rank < b.rank;
  });
}

// Within one group: charges the ranks that have not joined, or joined and stalled, with the others' waits.
void Judge::hold(std::span<const Beat> beats, std::span<const Member> group) {
  for (const Member& w : group) {
    const Wait& wait = waits_[index(w)];
    if (!wait.open) continue;
    const double waited_s = waited(w);
    if (waited_s > longest_.waited_s) longest_ = {waited_s, w.rank, w.slot};
    for (const Member& m : group) {
      const WatchedGroup& g = beats[size_t(m.rank)].groups[size_t(m.slot)];
      const bool still = m.rank != w.rank && stalled(m.rank) && !stalled(w.rank);
      if (g.done > wait.done || (g.issued > wait.done && !still)) continue;
      blocked_[size_t(w.rank)] = 1;
      Charge& c = charges_[size_t(m.rank)];
      if (waited_s > c.waited_s) c = {waited_s, w.rank, w.slot};
    }
  }
}

void Judge::accuse(std::span<const Beat> beats) {
  std::fill(charges_.begin(), charges_.end(), Charge());
  longest_ = {};
  for (size_t r = 0; r < beats.size(); r++) {
    blocked_[r] = messages_[r].open;
    const double waited_s = time_s_ - messages_[r].since_s;
    if (messages_[r].open && waited_s > longest_.waited_s) longest_ = {waited_s, int(r), -1};
  }
  for (size_t i = 0; i < members_.size();) {
    size_t end = i;
    while (end < members_.size() && members_[end].key == members_[i].key) end++;
    hold(beats, {members_.data() + i, end - i});
    i = end;
  }
  for (size_t r = 0; r < beats.size(); r++) blocked_[r] = blocked_[r] && !stalled(int(r));
}

// Called if a rank has waited for the whole timeout and no rank is late by what the groups show, as with
// messages: then the stalled ranks are.
void Judge::accuse_the_stalled(std::span<const Beat> beats) {
  if (longest_.waiter < 0 || stalled(longest_.waiter)) return;
  for (size_t r = 0; r < beats.size(); r++)
    if (int(r) != longest_.waiter && !beats[r].left && stalled(int(r))) {
      charges_[r] = longest_;
      blocked_[r] = 0;
    }
}

// The failure itself is told by the rank that has it.
void Judge::see_off(std::span<const Beat> beats, std::vector<Verdict>& verdicts) {
  const bool failed = std::any_of(beats.begin(), beats.end(), [](const Beat& b) { return b.failed; });
  if (!failed || over_) return;
  if (failed_s_ < 0) failed_s_ = time_s_;
  if (time_s_ - failed_s_ < limits_.leave_s) return;
  constexpr int kMostNamed = 8;
  std::string who;
  int first = -1, n = 0;
  for (int r = 0; r < int(beats.size()); r++) {
    if (beats[size_t(r)].left) continue;
    if (first < 0) first = r;
    if (n++ < kMostNamed)
      who += fmt::format("{}rank {}, {}", who.empty() ? "" : "; ", r, place_of(beats[size_t(r)]));
  }
  if (n == 0) return;
  over_ = true;
  verdicts.push_back({Fate::stays, first,
                      fmt::format("a rank failed {} ago, and {} not left: {}{}; the run ends without {}",
                                  human_seconds(time_s_ - failed_s_), n == 1 ? "one has" : "some have", who,
                                  n > kMostNamed ? fmt::format(" and {} more", n - kMostNamed) : "",
                                  n == 1 ? "it" : "them")});
}

std::vector<Verdict> Judge::look(std::span<const Beat> beats, double now_s) {
  std::vector<Verdict> verdicts;
  advance(now_s);
  note_motion(beats);
  note_waits(beats);
  accuse(beats);
  see_off(beats, verdicts);
  bool somebody = false;
  for (size_t r = 0; r < beats.size(); r++) somebody |= charges_[r].waiter >= 0 && !blocked_[r];
  if (!somebody && longest_.waited_s >= limits_.timeout_s) accuse_the_stalled(beats);
  somebody = false;
  for (size_t r = 0; r < beats.size(); r++) {
    const Beat& b = beats[r];
    const double silent_s = time_s_ - heard_s_[r];
    if (!b.left && !dead_[r] && silent_s > limits_.dead_s) {
      over_ = true, dead_[r] = 1;
      verdicts.push_back(
          {Fate::dead, int(r),
           fmt::format(
               "rank {} is dead or frozen: no sign of life for {}; it was {}, its last collective {}; {}", r,
               human_seconds(silent_s), place_of(b), last_collective(b), kAfterwards)});
    }
    const Charge& c = charges_[r];
    if (over_ || c.waiter < 0 || blocked_[r]) continue;
    somebody = true;
    const bool late = c.waited_s >= limits_.timeout_s;
    const bool slow = c.waited_s >= limits_.slow_s && !b.quiet && time_s_ - named_s_[r] >= limits_.again_s;
    if (!late && !slow) continue;
    named_s_[r] = time_s_;
    over_ |= late;
    verdicts.push_back({late ? Fate::late : Fate::slow, int(r), why(beats, int(r), c)});
  }
  // If waits are reported, a rank that has just frozen counts as stalled soon.
  const double stuck_s = limits_.timeout_s + (reports_ ? stall_s_ : 0);
  if (!over_ && !somebody && longest_.waited_s >= stuck_s) {
    over_ = true;
    verdicts.push_back({Fate::stuck, longest_.waiter,
                        fmt::format("{}, and no rank is late for it: ranks wait for each other; {}",
                                    waiters(beats, longest_), kAfterwards)});
  }
  return verdicts;
}

// "ranks 0, 1 and 3 have waited 11.0 s in all_reduce 1042 of group dp"
std::string Judge::waiters(std::span<const Beat> beats, const Charge& c, int except) const {
  if (c.slot < 0)
    return fmt::format("rank {} has waited {} for messages, {}", c.waiter, human_seconds(c.waited_s),
                       place_of(beats[size_t(c.waiter)]));
  const WatchedGroup& g = beats[size_t(c.waiter)].groups[size_t(c.slot)];
  const Wait& wait = waits_[size_t(c.waiter) * kMostWatchedGroups + size_t(c.slot)];
  constexpr size_t kMostNamed = 8;
  std::string who;
  size_t n = 0;
  for (const Member& m : members_) {
    const Wait& other = waits_[index(m)];
    if (m.key != g.key || m.rank == except || !other.open || other.done != wait.done) continue;
    if (n++ < kMostNamed) who += fmt::format("{}{}", who.empty() ? "" : ", ", m.rank);
  }
  if (n > kMostNamed) who += fmt::format(" and {} more", n - kMostNamed);
  return fmt::format("{} {} {} waited {} in {}", n == 1 ? "rank" : "ranks", who, n == 1 ? "has" : "have",
                     human_seconds(c.waited_s), collective(g, g.open, g.done));
}

std::string Judge::why(std::span<const Beat> beats, int rank, const Charge& c) const {
  const bool late = c.waited_s >= limits_.timeout_s;
  const std::string limit = human_seconds(limits_.timeout_s);
  const Beat& b = beats[size_t(rank)];
  bool inside = false;
  for (const WatchedGroup& g : b.groups) inside |= g.issued > g.done || g.messages_open > 0;
  return fmt::format("rank {} is {}: {}{}, and it is {}{}; {}", rank, late ? "late" : "slow",
                     waiters(beats, c, rank), c.slot < 0 ? "" : " for it",
                     inside ? "inside a collective, where it has stalled, " : "", place_of(b),
                     late ? fmt::format("that is train.timeout ({}): {}", limit, kAfterwards)
                          : fmt::format("the run goes on, for {} (train.timeout) at most", limit));
}

}  // namespace trireme
