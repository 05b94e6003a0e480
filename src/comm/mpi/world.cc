#include "comm/mpi/world.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/gate.h"
#include "comm/waiting.h"
#include "device/cpu/cpu_device.h"

namespace trireme::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// Looks, then sleeps ever longer up to a fifth of a millisecond. It does not yield its turn in between: on a
// full machine who yields comes back after everybody else, who sleeps comes back first.
class Pause {
 public:
  explicit Pause(int looks) : looks_(looks) {}
  bool patient() const { return n_ > looks_; }  // more than looked
  void next() {
    if (++n_ <= looks_) return pause_thread();
    std::this_thread::sleep_for(std::chrono::microseconds(sleep_us_));
    sleep_us_ = std::min(200, 2 * sleep_us_);
  }

 private:
  int looks_, n_ = 0, sleep_us_ = 10;
};

}  // namespace

World::World(MPI_Comm ranks, int local_ranks, const Limits& limits) : ranks_(ranks), limits_(limits) {
  check(MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(ranks_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(ranks_, &size_), "MPI_Comm_size");
  // As ThreadCommunicator's: who waits on the rank's own thread has nothing else to do with its core.
  constexpr int kLooks = 300;  // of a fraction of a microsecond each
  const int cores = cpu::usable_cores();
  inline_looks_ = local_ranks <= cores ? kLooks : 1;
  queued_looks_ = 2 * local_ranks <= cores ? kLooks : 1;
  listen();
}

World::~World() {
  std::lock_guard lock(news_mutex_);
  if (news_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&news_);
  MPI_Wait(&news_, MPI_STATUS_IGNORE);
}

std::unique_ptr<Workspace> World::take() {
  std::lock_guard lock(scratch_mutex_);
  if (free_.empty()) return std::make_unique<Workspace>();
  std::unique_ptr<Workspace> w = std::move(free_.back());
  free_.pop_back();
  return w;
}

void World::give_back(std::unique_ptr<Workspace> w) {
  std::lock_guard lock(scratch_mutex_);
  free_.push_back(std::move(w));
}

void World::keep(std::unique_ptr<Workspace> w) {
  std::lock_guard lock(scratch_mutex_);
  kept_.push_back(std::move(w));
}

void World::wait(Messages& messages, bool inline_call) {
  constexpr int64_t kGrace = 1'000'000'000;  // ns
  Pause pause(inline_call ? inline_looks_ : queued_looks_);
  while (!messages.done()) {
    if (pause.patient()) look(), still_waiting();
    if (failure.is_set()) {
      int64_t seen = 0;
      const int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
      if (failure_seen_ns_.compare_exchange_strong(seen, now)) seen = now;
      if (now - seen >= kGrace) {
        messages.give_up();
        failure.raise();
      }
    }
    pause.next();
  }
}

// ---- news ----

constexpr int kNewsTag = 1;

void World::listen() {
  if (size_ == 1) return;
  check(MPI_Irecv(&heard_, int(sizeof heard_), MPI_BYTE, MPI_ANY_SOURCE, kNewsTag, ranks_, &news_),
        "MPI_Irecv");
}

void World::hear(const Notice& n) {
  failure.set(n.rank, n.why, n.certain != 0);
  if (n.fault != 0) faults_[n.rank] = n.fault;
}

void World::look() {
  std::unique_lock lock(news_mutex_, std::try_to_lock);
  if (!lock || news_ == MPI_REQUEST_NULL) return;
  for (int there = 1; there;) {
    check(MPI_Test(&news_, &there, MPI_STATUS_IGNORE), "MPI_Test");
    if (!there) return;
    news_ = MPI_REQUEST_NULL;
    hear(heard_);
    listen();
  }
}

void World::fail(std::string_view why, bool certain, int fault) {
  look();
  const bool mine = failure.set(rank_, why, certain);
  if (!mine && (fault == 0 || failure.rank() != rank_)) return;
  Notice n{.rank = rank_, .fault = fault, .certain = certain};
  std::memcpy(n.why, why.data(), std::min(why.size(), sizeof n.why - 1));
  Messages out;
  for (int r = 0; r < size_; r++)
    if (r != rank_)
      out.send(ranks_, reinterpret_cast<const std::byte*>(&n), sizeof n, r, kNewsTag, limits_.message);
  // They are small, so MPI takes them at once; a peer that is gone shall not hold us up.
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (!out.done() && Clock::now() < end) sched_yield();
  out.give_up();
}

int World::lowest_leaving(double seconds, int below) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    look();
    {
      std::lock_guard lock(news_mutex_);
      if (!faults_.empty() && faults_.begin()->first < below) return faults_.begin()->first;
    }
    if (Clock::now() >= end) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int World::fault_of(int rank) {
  std::lock_guard lock(news_mutex_);
  auto it = faults_.find(rank);
  return it == faults_.end() ? int(Fault::run) : it->second;
}

}  // namespace trireme::mpi
