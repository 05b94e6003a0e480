// Memory that the processor cannot read: ranges of it, and how bytes move between it and anything else.
//
// Rank threads exchange data by pointers (comm/thread); what copies and adds pieces on the host asks here
// first. Without such a device nothing is registered, and asking costs one load.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trireme {

// Moves bytes from anywhere to anywhere; done when it returns.
using CopyBytes = void (*)(void* dst, const void* src, int64_t bytes);

// A device's range, from its reserve() to its release(). Thread-safe. A range is named once.
void add_device_memory(const std::byte* begin, int64_t bytes, CopyBytes);
void remove_device_memory(const std::byte* begin);

// Null where p is memory of the host.
CopyBytes device_copy_of(const void* p);
// The range that p lies in, empty where there is none. Numbers of ranges are never used again.
struct DeviceRangeOf {
  const std::byte* begin = nullptr;
  int64_t bytes = 0, number = 0;
};
DeviceRangeOf device_range_of(const void* p);

}  // namespace trireme
