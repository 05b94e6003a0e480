// Handles of a device's queues; kept apart so that device and comm can be siblings.
#pragma once
#include <cstdint>

namespace trireme {
struct Stream {
  int id = 0;  // 0 is the compute stream: on CPU the rank's own thread, inline
  bool operator==(const Stream&) const = default;
};
// A place in a stream's queue: what was issued there before record(). Default-made: nothing to wait for.
struct Event {
  int stream = 0;
  int64_t mark = 0;  // tasks issued up to here
};
// A piece of host work for a stream: run(self, arg). It owns nothing; what `self` points to outlives it.
struct HostTask {
  void (*run)(void* self, int64_t arg) = nullptr;
  void* self = nullptr;
  int64_t arg = 0;
  int64_t disk_read = 0, disk_written = 0;  // bytes, for who records the step
};
}  // namespace trireme
