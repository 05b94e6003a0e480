// The first rank of a world that failed, and why: what everybody who waits for others looks at.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace trireme {

class Failure {
 public:
  // The first stays, for what befalls other ranks then is its doing; its own rank may say more certainly why.
  // True: this one stands now.
  bool set(int rank, std::string_view why, bool certain);
  bool is_set() const { return set_.load(); }
  int rank() const;  // in the world; -1 where nobody failed
  [[noreturn]] void raise() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> set_ = false;
  int rank_ = -1;
  bool certain_ = false;
  std::string message_;
};

}  // namespace trireme
