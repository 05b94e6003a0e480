#include "base/interned.h"

#include <mutex>
#include <set>

namespace trireme {

const NumberList* interned(const NumberList& numbers) {
  if (numbers.empty()) return nullptr;
  static std::mutex mutex;
  static std::set<NumberList> all;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*all.insert(numbers).first;
}

}  // namespace trireme
