#include "device/device_memory.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/error.h"

namespace trireme {
namespace {

struct DeviceRange {
  int64_t bytes, number;
  CopyBytes copy;
  FoldPieces fold;
};
struct DeviceRanges {
  std::shared_mutex mutex;
  std::map<const std::byte*, DeviceRange> all;  // by begin
  std::atomic<int> count = 0;
  int64_t named = 0;  // ever
};
DeviceRanges& device_ranges() {
  static DeviceRanges ranges;
  return ranges;
}

}  // namespace

void add_device_memory(const std::byte* begin, int64_t bytes, CopyBytes copy, FoldPieces fold) {
  DeviceRanges& r = device_ranges();
  std::unique_lock lock(r.mutex);
  require(r.all.emplace(begin, DeviceRange{bytes, ++r.named, copy, fold}).second,
          "a range of device memory was named twice");
  r.count++;
}
void remove_device_memory(const std::byte* begin) {
  DeviceRanges& r = device_ranges();
  std::unique_lock lock(r.mutex);
  require(r.all.erase(begin) == 1, "a range of device memory that nobody named");
  r.count--;
}

namespace {

// Calls f with the range that p lies in, if there is one.
template <class F>
void with_range_of(const void* p, const F& f) {
  DeviceRanges& r = device_ranges();
  if (r.count.load(std::memory_order_acquire) == 0) return;
  std::shared_lock lock(r.mutex);
  const auto* at = static_cast<const std::byte*>(p);
  auto it = r.all.upper_bound(at);
  if (it == r.all.begin()) return;
  --it;
  if (at < it->first + it->second.bytes) f(it->first, it->second);
}

}  // namespace

CopyBytes device_copy_of(const void* p) {
  CopyBytes copy = nullptr;
  with_range_of(p, [&](const std::byte*, const DeviceRange& r) { copy = r.copy; });
  return copy;
}

FoldPieces device_fold_of(const void* p) {
  FoldPieces fold = nullptr;
  with_range_of(p, [&](const std::byte*, const DeviceRange& r) { fold = r.fold; });
  return fold;
}

DeviceRangeOf device_range_of(const void* p) {
  DeviceRangeOf found;
  with_range_of(p, [&](const std::byte* begin, const DeviceRange& r) { found = {begin, r.bytes, r.number}; });
  return found;
}

}  // namespace trireme
