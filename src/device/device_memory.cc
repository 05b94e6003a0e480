#include "device/device_memory.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/error.h"

namespace trireme {
namespace {

struct DeviceRange {
  int64_t bytes;
  CopyBytes copy;
};
struct DeviceRanges {
  std::shared_mutex mutex;
  std::map<const std::byte*, DeviceRange> all;  // by begin
  std::atomic<int> count = 0;
};
DeviceRanges& device_ranges() {
  static DeviceRanges ranges;
  return ranges;
}

}  // namespace

void add_device_memory(const std::byte* begin, int64_t bytes, CopyBytes copy) {
  DeviceRanges& r = device_ranges();
  std::unique_lock lock(r.mutex);
  require(r.all.emplace(begin, DeviceRange{bytes, copy}).second, "a range of device memory was named twice");
  r.count++;
}
void remove_device_memory(const std::byte* begin) {
  DeviceRanges& r = device_ranges();
  std::unique_lock lock(r.mutex);
  require(r.all.erase(begin) == 1, "a range of device memory that nobody named");
  r.count--;
}

CopyBytes device_copy_of(const void* p) {
  DeviceRanges& r = device_ranges();
  if (r.count.load(std::memory_order_acquire) == 0) return nullptr;
  std::shared_lock lock(r.mutex);
  const auto* at = static_cast<const std::byte*>(p);
  auto it = r.all.upper_bound(at);
  if (it == r.all.begin()) return nullptr;
  --it;
  return at < it->first + it->second.bytes ? it->second.copy : nullptr;
}

}  // namespace trireme
