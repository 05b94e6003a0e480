// Streams, events and queues of the CUDA device (cuda_device.cu).
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/patience.h"
#include "device/cpu/worker.h"
#include "device/cuda/gpu.cuh"
#include "device/device.h"
#include "device/device_memory.h"
#include "device/guards.h"

namespace trireme::cuda {

// Freed when it goes; CUDA may be gone before static objects are, so errors are ignored.
struct StreamDeleter {
  void operator()(CUstream_st* s) const { (void)cudaStreamDestroy(s); }
};
struct EventDeleter {
  void operator()(CUevent_st* e) const { (void)cudaEventDestroy(e); }
};
struct PinnedDeleter {
  void operator()(std::byte* p) const { (void)cudaFreeHost(p); }
};
using OwnedStream = std::unique_ptr<CUstream_st, StreamDeleter>;
using OwnedEvent = std::unique_ptr<CUevent_st, EventDeleter>;

inline OwnedStream make_stream() {
  cudaStream_t s = nullptr;
  TRIREME_CUDA_CALL(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return OwnedStream(s);
}
inline OwnedEvent make_event() {
  cudaEvent_t e = nullptr;
  TRIREME_CUDA_CALL(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return OwnedEvent(e);
}

// Places in one CUDA stream. Mark m is slot m mod kSlots: who waits for an old mark whose slot was used
// again waits for a later place of the same stream, which is after it.
class StreamEvents {
 public:
  int64_t record(cudaStream_t stream) {
    OwnedEvent& e = slots_[size_t(++last_ % kSlots)];
    if (!e) e = make_event();
    TRIREME_CUDA_CALL(cudaEventRecord(e.get(), stream));
    return last_;
  }
  cudaEvent_t at(int64_t mark) const { return slots_[size_t(mark % kSlots)].get(); }

 private:
  static constexpr int64_t kSlots = 1024;
  std::array<OwnedEvent, size_t(kSlots)> slots_;
  int64_t last_ = 0;
};

// Waits for a place, and looks after what the place may wait for.
inline void await_event(cudaEvent_t event, const Guards& guards) {
  Patience patience;
  for (; guards.any(); patience.rest()) {
    const cudaError_t e = cudaEventQuery(event);
    if (e != cudaErrorNotReady) {
      check_call(e, "work on a stream");
      return guards.look();  // reports the work that ended
    }
    (void)cudaGetLastError();
    guards.look();
  }
  TRIREME_CUDA_CALL(cudaEventSynchronize(event));
}

// Events that keep their times. Read as differences from each to the next, which keep more digits.
class EventStamps final : public Stamps {
 public:
  explicit EventStamps(cudaStream_t stream) : stream_(stream) {}
  void put() override {
    if (used_ == events_.size()) {
      cudaEvent_t e = nullptr;
      TRIREME_CUDA_CALL(cudaEventCreate(&e));
      events_.emplace_back(e);
    }
    TRIREME_CUDA_CALL(cudaEventRecord(events_[used_++].get(), stream_));
  }
  std::vector<double> read() override {
    std::vector<double> seconds(used_);
    if (used_ > 0) TRIREME_CUDA_CALL(cudaEventSynchronize(events_[used_ - 1].get()));
    for (size_t i = 1; i < used_; i++) {
      float ms = 0;
      TRIREME_CUDA_CALL(cudaEventElapsedTime(&ms, events_[i - 1].get(), events_[i].get()));
      seconds[i] = seconds[i - 1] + double(ms) * 1e-3;
    }
    used_ = 0;
    return seconds;
  }

 private:
  cudaStream_t stream_;
  std::vector<OwnedEvent> events_;
  size_t used_ = 0;
};

// A stream other than compute. With `ordered` it is a CUDA stream until its first task of the host, and a
// thread with a queue from then on. Without `ordered` it is that thread from the start. Marks of places in
// the CUDA stream have kOnGpu. Entries are reused after kEntries tasks, more than the queue holds.
class SideStream {
 public:
  static constexpr int64_t kOnGpu = int64_t(1) << 62;

  SideStream(std::string name, int device, const Guards& guards, bool spin, bool ordered)
      : device_(device),
        ordered_(ordered),
        guards_(guards),
        stream_(make_stream()),
        worker_(std::move(name), spin ? 2000 : 1) {}

  bool ordered() const { return ordered_; }
  cpu::Worker& worker() { return worker_; }
  cudaStream_t cuda_stream() const { return stream_.get(); }
  // Requires: the mark has kOnGpu.
  cudaEvent_t event(int64_t mark) const { return events_.at(mark & ~kOnGpu); }
  int64_t record() { return ordered_ ? events_.record(stream_.get()) | kOnGpu : worker_.issued(); }

  void copy(const Tensor& dst, const Tensor& src) {
    if (ordered_) return copy_strided(dst, src, stream_.get());
    Entry& e = next();
    e.dst = dst;
    e.src = src;
    worker_.run({[](void* self, int64_t i) { static_cast<SideStream*>(self)->run_copy(i); }, this, last_});
  }
  void wait_for(cudaEvent_t event) {
    if (ordered_) return TRIREME_CUDA_CALL(cudaStreamWaitEvent(stream_.get(), event, 0));
    next().event = event;
    worker_.run({[](void* self, int64_t i) { static_cast<SideStream*>(self)->run_wait(i); }, this, last_});
  }
  void run(const HostTask& task) {
    become_a_thread();
    worker_.run(task);
  }
  void wait_for(SideStream& other, int64_t mark) {  // mark: a task of the other's thread
    become_a_thread();
    worker_.wait_for(other.worker_, mark);
  }
  void sync() {
    if (!ordered_) return worker_.join(worker_.issued());
    await_event(event(record()), guards_);
  }

 private:
  struct Entry {
    Tensor dst, src;
    cudaEvent_t event = nullptr;
  };
  static constexpr int64_t kEntries = 1024;
  Entry& next() { return entries_[size_t(++last_ % kEntries)]; }
  void become_a_thread() {
    if (!ordered_) return;
    const int64_t mark = record();
    ordered_ = false;
    wait_for(event(mark));
  }
  // On the worker's thread, which has its own idea of the current device.
  void run_copy(int64_t i) {
    TRIREME_CUDA_CALL(cudaSetDevice(device_));
    const Entry& e = entries_[size_t(i % kEntries)];
    copy_strided(e.dst, e.src, stream_.get());
    TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_.get()));
  }
  void run_wait(int64_t i) {
    TRIREME_CUDA_CALL(cudaSetDevice(device_));
    await_event(entries_[size_t(i % kEntries)].event, guards_);
  }

  int device_;
  bool ordered_;
  const Guards& guards_;
  OwnedStream stream_;
  StreamEvents events_;
  std::array<Entry, size_t(kEntries)> entries_;
  int64_t last_ = 0;
  cpu::Worker worker_;  // last: gone before what its tasks use
};

class LibraryQueue final : public DeviceQueue {
 public:
  explicit LibraryQueue(int device) : device_(device) {
    enter();
    stream_ = make_stream();
  }
  void* handle() override { return stream_.get(); }
  void enter() override { TRIREME_CUDA_CALL(cudaSetDevice(device_)); }
  int64_t mark() override { return events_.record(stream_.get()); }
  bool passed(int64_t mark) override {
    const cudaError_t e = cudaEventQuery(events_.at(mark));
    if (e == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check_call(e, "work of a library");
    return true;
  }
  bool owns(const std::byte* p) const override { return device_copy_of(p) != nullptr; }
  cudaStream_t stream() const { return stream_.get(); }
  cudaEvent_t event(int64_t mark) const { return events_.at(mark); }

 private:
  int device_;
  OwnedStream stream_;
  StreamEvents events_;
};

}  // namespace trireme::cuda
