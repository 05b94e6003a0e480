// Where a rank says what it does, so that a thread beside it can tell the others (watchdog.h). A few stores
// to memory of its own at each action, layer and collective; no clock, no lock, no allocation.
#pragma once
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "comm/watch/beat.h"
#include "comm/watch/versioned.h"

namespace trireme {

class Pulse {
 public:
  explicit Pulse(int rank);
  Pulse(const Pulse&) = delete;
  int rank() const { return rank_; }

  // ---- on the rank's thread ----
  void step(int64_t);  // from 1
  // quiet: work that takes long by its nature; others may wait without a warning, though not beyond the
  // timeout. Ends what layer() said.
  void action(std::string_view, int64_t microbatch = -1, bool quiet = false);
  void layer(std::string_view);
  // A group of these ranks of the world; the n-th of equal name and ranks on one rank is the n-th on all.
  // Returns its place, kMostWatchedGroups when there is no room: then calls may be told and are passed over.
  size_t join(std::string_view name, std::span<const int> ranks);
  void issued(size_t group, Collective);
  // ---- on the rank's or a stream's thread ----
  void done(size_t group, Collective);
  void waits() { waits_.fetch_add(1, std::memory_order_relaxed); }  // a call waits for peers (comm/waiting.h)
  // ---- on any thread ----
  void fail() { failed_.store(true); }
  void leave() { left_.store(true); }
  Beat beat(int64_t number) const;

 private:
  static constexpr size_t kKinds = 64;  // collectives of a group under way at once (queued.h)
  struct Group {
    uint64_t key = 0;
    BeatText<24> name;
    int32_t size = 0;
    std::array<std::atomic<Collective>, kKinds> kinds{};  // collective n's at n % kKinds
    std::atomic<int64_t> issued = 0, done = 0, messages_issued = 0, messages_done = 0;
  };
  // What step(), action() and layer() say.
  struct Position {
    int64_t step = 0, microbatch = -1, quiet = 0;
    BeatText<16> action;
    BeatText<48> layer;
  };
  static constexpr size_t kWords = sizeof(Position) / 8;
  static_assert(sizeof(Position) == kWords * 8);
  void show(size_t first_word, size_t last_word);
  Position position(bool& torn) const;

  int rank_;
  Position mine_;  // the rank's own copy
  VersionedWords<kWords> shown_;
  std::array<Group, kMostWatchedGroups> groups_;
  std::atomic<size_t> joined_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> made_;  // key of name and ranks; how many there are
  std::atomic<int64_t> waits_ = 0;
  std::atomic<bool> failed_ = false, left_ = false;
};

}  // namespace trireme
