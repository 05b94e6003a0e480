#include "comm/thread/group.h"

#include <algorithm>
#include <thread>

#include "device/cpu/cpu_device.h"

namespace trireme::thread {
namespace {

// The holder may be frozen: who waits for it must say that it waits.
std::unique_lock<std::mutex> lock_reporting(std::mutex& m) {
  std::unique_lock lock(m, std::try_to_lock);
  for (int i = 0; !lock; (void)lock.try_lock()) {
    if (++i < 100) {
      pause_thread();
      continue;
    }
    still_waiting();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return lock;
}

}  // namespace

void Meeting::arrive(int rank, const QueuedOp& op, int64_t use, int looks, const Failure& failure) {
  const int64_t before = ranks() * use, all = before + ranks();
  wait_at(gate_, looks, [&] { return finished_.load() >= before || failure.is_set(); });
  if (failure.is_set()) failure.raise();
  ops_[size_t(rank)] = &op;
  int64_t now = arrived_.fetch_add(1) + 1;
  if (now == all) gate_.wake();
  while (true) {
    wait_at(gate_, looks, [&] { return (now = arrived_.load()) >= all || failure.is_set(); });
    if (now >= kBroken) failure.raise();
    if (now >= all) return;
    if (arrived_.compare_exchange_strong(now, now + kBroken)) failure.raise();
  }
}

void Meeting::finish(int64_t use, int looks) {
  const int64_t all = ranks() * (use + 1);
  if (finished_.fetch_add(1) + 1 == all) return gate_.wake();
  wait_at(gate_, looks, [&] { return finished_.load() >= all; });
}

bool Inbox::find(int from, int64_t key, Post* out) {
  auto it = std::find_if(posts_.begin(), posts_.end(),
                         [&](const Post& p) { return p.from == from && p.key == key; });
  if (it == posts_.end()) return false;
  *out = *it;
  *it = posts_.back();
  posts_.pop_back();
  return true;
}

void Inbox::put(const Post& post) {
  {
    const std::unique_lock lock = lock_reporting(mutex_);
    posts_.push_back(post);
  }
  version_.fetch_add(1);
  gate_.wake();
}

Post Inbox::take(int from, int64_t key, int looks, const Failure& failure) {
  Post post;
  while (true) {
    const bool failed = failure.is_set();
    const int64_t seen = version_.load();
    {
      const std::unique_lock lock = lock_reporting(mutex_);
      if (find(from, key, &post)) return post;
    }
    if (failed) failure.raise();
    wait_at(gate_, looks, [&] { return version_.load() != seen || failure.is_set(); });
  }
}

bool Inbox::withdraw(int from, int64_t key) {
  Post post;
  const std::unique_lock lock = lock_reporting(mutex_);
  return find(from, key, &post);
}

Group::Group(std::string name, std::vector<int> ranks)
    : name(std::move(name)),
      ranks(std::move(ranks)),
      meetings(size_t(kMeetings)),
      inboxes(this->ranks.size()),
      taken(this->ranks.size()),
      moved(this->ranks.size()) {
  for (Meeting& m : meetings) m.prepare(int(this->ranks.size()));
}

void Group::wake_all() {
  for (Meeting& m : meetings) m.wake();
  for (Inbox& i : inboxes) i.wake();
  for (Gate& g : taken) g.wake();
}

World::World(int ranks, const CommOptions& options) : size_(ranks), options_(options), made_(size_t(ranks)) {
  // A call on the rank's own thread has nothing else to do with its core; one on another stream would take it
  // from those that compute.
  constexpr int kLooks = 2000;  // some 50 us
  const int cores = cpu::usable_cores();
  inline_looks_ = ranks <= cores ? kLooks : 1;
  queued_looks_ = 2 * ranks <= cores ? kLooks : 1;
}

Group& World::join(int rank, std::span<const int> ranks, std::string_view name) {
  Key key{{ranks.begin(), ranks.end()}, std::string(name)};
  std::lock_guard lock(mutex_);
  size_t nth = made_[size_t(rank)][key]++;
  auto& same = groups_[key];
  if (same.size() <= nth) same.push_back(std::make_unique<Group>(key.second, key.first));
  return *same[nth];
}

void World::fail(int rank, std::string_view why, bool certain) {
  failure.set(rank, why, certain);
  std::lock_guard lock(mutex_);
  for (auto& [key, same] : groups_)
    for (auto& group : same) group->wake_all();
}

}  // namespace trireme::thread
