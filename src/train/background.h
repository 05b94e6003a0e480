// One task at a time on a thread of its own.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"

namespace trireme {

class Background {
 public:
  Background() = default;
  Background(const Background&) = delete;
  ~Background() { wait(); }

  // None may be under way. Signals are not delivered to its thread.
  void start(std::function<void()> task);
  bool busy() const { return thread_.joinable(); }  // started and not waited for
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until the task is done. Returns the text of the exception that it threw, or "".
  std::string wait();
  // The fault of that exception, until the next start().
  Fault fault() const { return fault_; }

 private:
  std::thread thread_;
  std::atomic<bool> done_ = true;
  std::string error_;
  Fault fault_ = Fault::run;
};

}  // namespace trireme
