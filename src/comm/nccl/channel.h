// One NCCL communicator, with a queue of the device's own and the order in which calls go there.
//
// It is made non-blocking: every call may say that it is still in progress, and is looked after here until it
// is not. Nobody waits inside NCCL, so everybody hears of a failure of the world while waiting; then the
// communicator is aborted, which ends its kernels on the GPU too.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/patience.h"
#include "comm/nccl/api.h"
#include "comm/process_world.h"
#include "device/device_queue.h"

namespace trireme::nccl {

// What all channels of a rank share.
struct Shared {
  const Api& api;
  ProcessWorld& host;
  double meet_s = 600;  // for the ranks of a group to come, when it is made, and to a call that begins
  double grace_s = 1;   // after a failure is known, for a call that all ranks have made
};

// Sleeps ever longer between looks, and reports the wait (comm/waiting.h).
class Patience {
 public:
  void rest();

 private:
  trireme::Patience pause_;
};

// After a failure, a call that all ranks have made ends within a grace period. A call that a rank is missing
// in does not.
class Grace {
 public:
  explicit Grace(double seconds) : seconds_(seconds) {}
  bool over(const Failure& news);

 private:
  double seconds_;
  std::chrono::steady_clock::time_point heard_{};  // zero: of no failure yet
};

class Channel {
 public:
  // A communicator of its own: `id` is the same on all its ranks. Collective over them; does not wait:
  // ready() does.
  Channel(Shared&, std::string what, std::unique_ptr<DeviceQueue>, const UniqueId& id, int ranks, int rank);
  // The same ranks in the same order as `like`, which is never issued anything: NCCL splits what is idle.
  // Collective over them; waits.
  Channel(Shared&, std::string what, std::unique_ptr<DeviceQueue>, Channel& like, int rank);
  Channel(const Channel&) = delete;
  ~Channel();
  void ready();  // waits until it is made, or its last split is

  // Calls go to NCCL by their numbers, from 0: waits for the turn of `number`, puts the work of `f` on the
  // queue and gives the turn on; f(api, comm, stream) returns NCCL's result. Returns the place behind it, for
  // wait().
  template <class F>
  int64_t issue(int64_t number, const F& f) {
    Turn turn(*this, number);
    Result r = kSuccess;
    {
      std::lock_guard lock(mutex_);
      raise_if_aborted();
      queue_->enter();
      r = started(f(shared_.api, comm_, static_cast<CudaStream>(queue_->handle())));
      if (r == kSuccess) return queue_->mark();
    }
    fail(r);
  }
  // Calls of several channels as one group of NCCL's. The first message between two ranks is in progress
  // until both have called: ranks that send first, one call after another, would all wait for ever. f(i,
  // comm, stream) makes the calls of share i, of all its numbers. Takes the turns of all, in one order of
  // channels on all threads (std::less), and gives them on when all are out of it.
  struct Share {
    Channel* channel;
    int64_t number, count;  // [number, number + count)
    int64_t mark = 0;       // comes back, for wait()
  };
  static void issue_together(std::span<Share>, const std::function<Result(size_t, Comm, CudaStream)>&);
  // Something else in the same order, while nobody issues.
  template <class F>
  void in_turn(int64_t number, const F& f) {
    Turn turn(*this, number);
    f();
  }
  void wait(int64_t mark);
  // For work up to `mark` that the device waits for by itself: look_after(), on any one thread at a time,
  // throws as wait() does where it will not end.
  void leave_to_device(int64_t mark) { left_ = mark; }
  void look_after();
  bool passed(int64_t mark) {
    queue_->enter();
    return queue_->passed(mark);
  }
  DeviceQueue& queue() { return *queue_; }
  // Ranges of memory that tensors lie in are told to NCCL once, where it takes that: then it may send from
  // there without copies of its own.
  void use(const std::byte*);
  bool owns(const std::byte* p) const { return queue_->owns(p); }

 private:
  class Turn {
   public:
    Turn(Channel& c, int64_t number, int64_t count = 1) : c_(c), count_(count) { c.await_turn(number); }
    Turn(const Turn&) = delete;
    ~Turn() { c_.next_.fetch_add(count_); }

   private:
    Channel& c_;
    int64_t count_;
  };
  void await_turn(int64_t number);
  Result started(Result);  // under mutex_: until it is no more in progress
  Result async_error();    // takes mutex_
  void give_up();          // aborts
  void look();             // throws what has befallen the world or the communicator
  void raise_if_aborted();
  [[noreturn]] void fail(Result);
  std::string said(Result);
  struct Registered {
    int64_t range;
    void* handle;
  };

  Shared& shared_;
  const std::string what_;  // "group dp", for people
  std::unique_ptr<DeviceQueue> queue_;
  std::mutex mutex_;  // of the communicator
  Comm comm_ = nullptr;
  bool aborted_ = false;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int64_t> left_ = 0;
  Grace left_grace_{shared_.grace_s};
  std::vector<Registered> registered_;
};

}  // namespace trireme::nccl
