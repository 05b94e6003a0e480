// A stream other than "compute" on CPU: one thread and a bounded queue of what it shall do, in order.
#pragma once
#include <array>
#include <atomic>
#include <exception>
#include <string>
#include <thread>

#include "base/gate.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace trireme::cpu {

// One thread, the rank's, issues; marks count what was issued and what is done. A task that throws fails the
// stream for good: what stands behind it is skipped, streams that wait for it fail too, and the rank's thread
// meets the error at its next call here.
class Worker {
 public:
  Worker(std::string name, int looks);  // looks: see Gate::wait
  ~Worker();                            // after the tasks that were issued
  Worker(const Worker&) = delete;

  void run(HostTask);  // all three: throw what the stream failed with; wait while
  void copy(const Tensor& dst, const Tensor& src);  // the queue is full
  void wait_for(Worker& other, int64_t mark);       // tasks issued from here on come after `mark` of `other`
  int64_t issued() const { return issued_; }

  void join(
      int64_t mark);  // the caller's thread waits until `mark` is done; throws what the stream failed with
  void drain() {      // the same without the throw
    work_done_.wait(looks_, [this] { return reached(issued_); });
  }
  const std::string& name() const { return name_; }

 private:
  struct Item {
    enum class Kind : uint8_t { task, copy, wait } kind = Kind::task;
    HostTask task;
    Tensor dst, src;
    Worker* other = nullptr;
    int64_t mark = 0;
  };
  static constexpr int64_t kDepth = 256;  // tasks that may stand in the queue

  template <class Fill>
  void issue(const Fill&);
  void work();
  void execute(const Item&);
  void raise();
  bool reached(int64_t mark) const { return done_.load() >= mark; }

  std::string name_;
  int looks_;
  std::array<Item, size_t(kDepth)> ring_;
  int64_t issued_ = 0;                // of the rank's thread;
  std::atomic<int64_t> visible_ = 0;  // what the worker knows of it
  std::atomic<int64_t> done_ = 0;
  std::atomic<bool> stop_ = false, failed_ = false;
  std::exception_ptr error_;  // written before failed_ becomes true, read after
  Gate work_there_, work_done_;
  std::thread thread_;
};

}  // namespace trireme::cpu
