// One task at a time on a thread of its own.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <thread>

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
  // Returns when it is done: what it threw, in words; "" = nothing.
  std::string wait();

 private:
  std::thread thread_;
  std::atomic<bool> done_ = true;
  std::string error_;
};

}  // namespace trireme
