// A CPU whose queues are the fake libnccl's: what stands for a GPU here.
#pragma once
#include <memory>

#include "device/device.h"

namespace trireme::testing {

// host_begin, host_bytes: memory that shall not be the device's, as far as its queues say.
std::unique_ptr<Device> make_queue_device(const std::byte* host_begin = nullptr, int64_t host_bytes = 0);

}  // namespace trireme::testing
