// Where threads wait until something holds of atomics: they look a few times, then sleep without CPU.
//
// A waker changes the atomics, then calls wake(); a waiter announces itself before it looks for the last
// time. Both sides are sequentially consistent, so either the waiter sees the change or the waker sees the
// waiter; who does not wait costs a waker one load. There is no lock: a thread that the system stops anywhere
// in here holds up no other thread.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

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
    sleep_until(looks, done, nullptr, [] {});
  }
  // The same. Calls still() about once per period while it sleeps.
  template <class Done, class Still>
  void wait(int looks, const Done& done, std::chrono::milliseconds period, const Still& still) {
    const timespec t{.tv_sec = time_t(period.count() / 1000),
                     .tv_nsec = long(period.count() % 1000) * 1'000'000};
    sleep_until(looks, done, &t, still);
  }
  void wake() {
    if (sleepers_.load() == 0) return;
    changes_.fetch_add(1);
    (void)::syscall(SYS_futex, word(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  template <class Done, class Still>
  void sleep_until(int looks, const Done& done, const timespec* period, const Still& still) {
    for (int i = 0; i < looks; i++) {
      if (done()) return;
      pause_thread();
    }
    sleepers_.fetch_add(1);
    while (true) {
      const uint32_t seen = changes_.load();
      if (done()) break;
      (void)::syscall(SYS_futex, word(), FUTEX_WAIT_PRIVATE, seen, period, nullptr, 0);
      still();
    }
    sleepers_.fetch_sub(1);
  }
  uint32_t* word() { return reinterpret_cast<uint32_t*>(&changes_); }

  std::atomic<uint32_t> changes_ = 0;
  std::atomic<int> sleepers_ = 0;
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                std::atomic<uint32_t>::is_always_lock_free);
};

}  // namespace trireme
