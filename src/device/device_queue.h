// A queue of a device's own, for libraries that take one by its handle (NCCL): work put there runs in order,
// beside the device's streams.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trireme {

// On any thread; the caller keeps calls apart, but passed() may run beside them.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  virtual void* handle() = 0;                     // CUDA: the cudaStream_t
  virtual void enter() = 0;                       // the calling thread's work is for this device from here on
  virtual int64_t mark() = 0;                     // a place behind all that was put there so far
  virtual bool passed(int64_t mark) = 0;          // throws what the device says of failed work
  virtual bool owns(const std::byte*) const = 0;  // is this memory of the device, or the host's?
};

}  // namespace trireme
