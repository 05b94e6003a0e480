#include "dot.h"

namespace trireme::testing {

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

}  // namespace trireme::testing
