// A CPU whose queues are the fake libnccl's: what stands for a GPU here.
#pragma once
#include <memory>

#include "device/device.h"

namespace trireme::testing {

// Waits of the rank's thread on such a device. A GPU's streams wait for queues without the host. Here the
// thread waits in their place, and these waits have their own count.
struct QueueWaits {
  int64_t of_host = 0;    // sync, download, upload, a stream's tasks
  int64_t of_device = 0;  // orders between streams and queues that a GPU keeps by itself
};

// host_begin, host_bytes: memory that shall not be the device's, as far as its queues say. ordered: as
// DeviceOptions'; the compute stream's order is the device's always. waits: counted there.
std::unique_ptr<Device> make_queue_device(const std::byte* host_begin = nullptr, int64_t host_bytes = 0,
                                          bool ordered = false, QueueWaits* waits = nullptr);

}  // namespace trireme::testing
