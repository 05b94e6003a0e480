// Work on a stream of batches by several threads, with the results taken in the order of the stream.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace trireme {

// next(slot) fills a slot's input, one call at a time, false at the end; a worker, make_worker() of its own
// for each thread, turns input into output; take(slot) gets the slots in order, in the caller's thread. At
// most four slots a thread are alive. The first error, in the order of the stream, of any of them ends the
// work and is thrown; what is before it has been taken. What is taken does not depend on the number of
// threads.
template <class Slot>
class InOrder {
 public:
  using Work = std::function<void(Slot&)>;

  static void run(int threads, const std::function<bool(Slot&)>& next,
                  const std::function<Work()>& make_worker, const std::function<void(Slot&)>& take) {
    require(threads >= 1, "InOrder: at least one thread");
    if (threads == 1) {
      Slot slot;
      for (Work work = make_worker(); next(slot);) work(slot), take(slot);
      return;
    }
    InOrder pool(threads, next);
    pool.start(threads, make_worker);
    while (Slot* slot = pool.next()) take(*slot);
  }

 private:
  struct Place {
    Slot slot;
    std::exception_ptr error;
    bool done = false;
  };

  InOrder(int threads, const std::function<bool(Slot&)>& next) : next_(next), places_(size_t(4 * threads)) {}
  ~InOrder() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& w : workers_) w.join();
  }

  void start(int threads, const std::function<Work()>& make_worker) {
    try {
      for (int t = 0; t < threads; t++) workers_.emplace_back([this, work = make_worker()] { loop(work); });
    } catch (const std::system_error& e) {
      run_failed("cannot start {} threads: {}; ask for fewer", threads, e.what());
    }
  }

  // The next slot in order, the caller's until the next call; null at the end.
  Slot* next() {
    std::unique_lock lock(mutex_);
    if (taken_ >= 0) place(taken_).done = false;
    taken_++;
    room_.notify_all();
    ready_.wait(lock, [&] { return place(taken_).done || taken_ == end_; });
    if (!place(taken_).done) return nullptr;
    if (place(taken_).error) std::rethrow_exception(place(taken_).error);
    return &place(taken_).slot;
  }

  Place& place(int64_t i) { return places_[size_t(i) % places_.size()]; }

  // A place whose input is read, or null when there are no more.
  Place* begin_next() {
    std::lock_guard one_at_a_time(reading_);
    int64_t i;
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return stop_ || begun_ < taken_ + int64_t(places_.size()); });
      if (stop_) return nullptr;
      i = begun_++;
    }
    Place& p = place(i);
    p.error = nullptr;
    bool more = true;
    try {
      more = next_(p.slot);
    } catch (...) {
      p.error = std::current_exception();
    }
    if (more && !p.error) return &p;
    std::lock_guard lock(mutex_);
    stop_ = true;  // nothing begins after an end or an error
    if (more)
      p.done = true;
    else
      end_ = i;
    ready_.notify_one();
    return nullptr;
  }

  void loop(const Work& work) {
    while (Place* p = begin_next()) {
      try {
        work(p->slot);
      } catch (...) {
        p->error = std::current_exception();  // next() throws it in the caller's thread
      }
      std::lock_guard lock(mutex_);
      p->done = true;
      ready_.notify_one();
    }
  }

  const std::function<bool(Slot&)>& next_;
  std::mutex mutex_, reading_;
  std::condition_variable room_, ready_;
  int64_t begun_ = 0, taken_ = -1, end_ = -1;
  bool stop_ = false;
  std::vector<Place> places_;
  std::vector<std::thread> workers_;
};

}  // namespace trireme
