// Where the threads of a group meet, and how a failure anywhere wakes them.
//
// Collectives: each rank brings its record to the meeting of that number; when all are there everybody knows
// everybody's pointers and copies or adds its share; when all have finished everybody leaves. From the moment
// in which the last has arrived nobody waits for anything but memory, so nobody gives up either: a failing
// rank can only break a meeting that is not complete. So no rank leaves (and frees its buffers) while another
// reads or writes them.
// Messages: the sender posts where its bytes are, the receiver copies them, and the sender leaves then; a
// post that was not taken up is withdrawn when the world fails.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/gate.h"
#include "comm/failure.h"
#include "comm/queued.h"
#include "comm/waiting.h"

namespace trireme::thread {

// Gate::wait for peers: it is reported.
template <class Done>
void wait_at(Gate& gate, int looks, const Done& done) {
  gate.wait(looks, done, kWaitReport, still_waiting);
}

// What one collective at a time shares. Counters only grow: the k-th use of a meeting by n ranks is complete
// at n (k + 1).
class Meeting {
 public:
  void prepare(int ranks) { ops_.resize(size_t(ranks)); }
  // Blocks until all ranks brought their record of this use; then theirs are in ops(), to be read until
  // finish(). Throws when the world failed before that.
  void arrive(int rank, const QueuedOp&, int64_t use, int looks, const Failure&);
  std::span<const QueuedOp* const> ops() const { return ops_; }
  void finish(int64_t use, int looks);  // blocks until all ranks are here
  void wake() { gate_.wake(); }

 private:
  static constexpr int64_t kBroken = int64_t(1) << 62;
  int64_t ranks() const { return int64_t(ops_.size()); }

  std::vector<const QueuedOp*> ops_;
  std::atomic<int64_t> arrived_ = 0, finished_ = 0;
  Gate gate_;
};

// Bytes that a sender offers; it leaves when `untaken` is zero.
struct Post {
  int from = 0;
  int64_t key = 0;  // tells messages from one rank to another apart
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::atomic<int>* untaken = nullptr;
};

// What was sent to one rank and not yet taken up.
class Inbox {
 public:
  void put(const Post&);
  Post take(int from, int64_t key, int looks, const Failure&);  // blocks; throws when the world failed
  bool withdraw(int from, int64_t key);                         // false: it was taken up
  void wake() { gate_.wake(); }

 private:
  bool find(int from, int64_t key, Post*);
  std::mutex mutex_;
  std::vector<Post> posts_;  // few; its capacity is kept
  std::atomic<int64_t> version_ = 0;
  Gate gate_;
};

// Shared by the communicators of one group.
struct Group {
  Group(std::string name, std::vector<int> ranks);
  static constexpr int64_t kMeetings = 64;  // collectives under way at once

  std::string name;
  std::vector<int> ranks;                  // in the world
  std::deque<Meeting> meetings;            // collective n meets in n % kMeetings
  std::deque<Inbox> inboxes;               // by rank
  std::deque<Gate> taken;                  // by sender: its posts were taken up
  std::deque<std::atomic<int64_t>> moved;  // by rank: bytes as wire_bytes() counts them
  void wake_all();
};

class World {
 public:
  World(int ranks, const CommOptions&);
  int size() const { return size_; }
  const CommOptions& options() const { return options_; }
  int looks(bool inline_call) const { return inline_call ? inline_looks_ : queued_looks_; }
  Group& join(int rank, std::span<const int> ranks, std::string_view name);
  void fail(int rank, std::string_view why, bool certain);

  Failure failure;

 private:
  int size_, inline_looks_, queued_looks_;
  const CommOptions options_;
  std::mutex mutex_;
  // Groups of equal ranks and name meet in the order in which each rank makes them.
  using Key = std::pair<std::vector<int>, std::string>;
  std::map<Key, std::vector<std::unique_ptr<Group>>> groups_;
  std::vector<std::map<Key, size_t>> made_;  // by rank
};

}  // namespace trireme::thread
