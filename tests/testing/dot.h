// Sums that tests take for right, compiled with optimization where tests are not.
#pragma once
#include <cstdint>

namespace trireme::testing {

// Sum of a[i] b[i], in order.
double dot(const double* a, const double* b, int64_t n);

}  // namespace trireme::testing
