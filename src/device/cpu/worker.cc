#include "device/cpu/worker.h"

#include <omp.h>
#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/no_signals.h"
#include "device/cpu/cpu_device.h"

namespace trireme::cpu {

Worker::Worker(std::string name, int looks) : name_(std::move(name)), looks_(looks) {
  NoSignals blocked;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) {
    environment_failed("the system gives no thread for stream '{}': {}", name_, e.what());
  }
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

Worker::~Worker() {
  stop_ = true;
  work_there_.wake();
  thread_.join();
}

template <class Fill>
void Worker::issue(const Fill& fill) {
  raise();
  work_done_.wait(looks_, [&] { return reached(issued_ - kDepth + 1); });
  fill(ring_[size_t(issued_ % kDepth)]);
  visible_.store(++issued_);
  work_there_.wake();
}

void Worker::run(HostTask task) {
  issue([&](Item& i) { i.kind = Item::Kind::task, i.task = task; });
}
void Worker::copy(const Tensor& dst, const Tensor& src) {
  issue([&](Item& i) { i.kind = Item::Kind::copy, i.dst = dst, i.src = src; });
}
void Worker::wait_for(Worker& other, int64_t mark) {
  issue([&](Item& i) { i.kind = Item::Kind::wait, i.other = &other, i.mark = mark; });
}

void Worker::join(int64_t mark) {
  work_done_.wait(looks_, [&] { return reached(mark); });
  raise();
}

void Worker::raise() {
  if (failed_.load()) std::rethrow_exception(error_);
}

void Worker::execute(const Item& i) {
  switch (i.kind) {
    case Item::Kind::task:
      return i.task.run(i.task.self, i.task.arg);
    case Item::Kind::copy:
      return copy_strided(i.dst, i.src);
    case Item::Kind::wait:
      return i.other->join(i.mark);
  }
}

void Worker::work() {
  omp_set_num_threads(1);  // the cores are the compute stream's: nothing here starts a team
  for (int64_t next = 0;; next++) {
    work_there_.wait(looks_, [&] { return visible_.load() > next || stop_.load(); });
    if (visible_.load() <= next) return;
    if (!failed_.load()) try {
        execute(ring_[size_t(next % kDepth)]);
      } catch (...) {
        error_ = std::current_exception();
        failed_ = true;
      }
    done_.store(next + 1);
    work_done_.wake();
  }
}

}  // namespace trireme::cpu
