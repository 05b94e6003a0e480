// Whole-number arithmetic on sizes that a user gave: overflow is an error, not a wrong number.
#pragma once
#include <cstdint>

#include "base/error.h"

namespace trireme {

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r))
    bad_request("{} * {} is too large to count; give smaller sizes", a, b);
  return r;
}
inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r))
    bad_request("{} + {} is too large to count; give smaller sizes", a, b);
  return r;
}

}  // namespace trireme
