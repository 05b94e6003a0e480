// Looks after work that a device waits for by itself: a collective whose peer has died never ends, and no
// call that waits for the device would return.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <mutex>

namespace trireme {

// Thread-safe. A look runs under the lock: it must not wait, and after set(who, {}) it does not run again.
class Guards {
 public:
  void set(const void* who, std::function<void()> look) {
    std::lock_guard lock(mutex_);
    if (look)
      all_[who] = std::move(look);
    else
      all_.erase(who);
    any_ = !all_.empty();
  }
  bool any() const { return any_; }
  void look() const {
    std::lock_guard lock(mutex_);
    for (const auto& [who, look] : all_) look();
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, std::function<void()>> all_;
  std::atomic<bool> any_ = false;
};

}  // namespace trireme
