// Watches how much a test asks of operator new at once: hostile files must not be able to ask for much.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "support.h"

namespace {
size_t largest = 0;  // the tests of this room run on one thread

void* watched(size_t bytes) {
  largest = std::max(largest, bytes);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace

size_t trireme::largest_allocation_and_reset() {
  size_t n = largest;
  largest = 0;
  return n;
}

void* operator new(size_t bytes) {
  return watched(bytes);
}
void* operator new[](size_t bytes) {
  return watched(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
