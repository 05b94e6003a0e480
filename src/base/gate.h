// Where threads wait until something holds of atomics: they look a few times, then sleep without CPU.
//
// A waker changes the atomics, then calls wake(); a waiter announces itself before it looks for the last
// time. Both sides are sequentially consistent, so either the waiter sees the change or the waker sees the
// waiter; who does not wait costs a waker one load.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace trireme {

inline void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

class Gate {
 public:
  // Returns once done() is true. done() reads atomics with the default order. `looks`: how often to look
  // before sleeping; 1 where the cores have other work.
  template <class Done>
  void wait(int looks, const Done& done) {
    for (int i = 0; i < looks; i++) {
      if (done()) return;
      pause_thread();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    while (!done()) changed_.wait(lock);
    sleepers_.fetch_sub(1);
  }
  void wake() {
    if (sleepers_.load() == 0) return;
    { std::lock_guard lock(mutex_); }  // a waiter between its last look and its sleep holds it
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_ = 0;
};

}  // namespace trireme
