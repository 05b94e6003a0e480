#include "cost/roofline.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {
double bytes_of(const Cost& c) {
  return double(c.bytes_read) + double(c.bytes_written);
}
}  // namespace

double roofline_seconds(const Cost& c, const Roof& roof) {
  require(roof.flops_per_s > 0 && roof.bytes_per_s > 0, "a roofline needs a peak and a bandwidth");
  return std::max(c.flops / roof.flops_per_s, bytes_of(c) / roof.bytes_per_s);
}
double intensity(const Cost& c) {
  return bytes_of(c) > 0 ? c.flops / bytes_of(c) : 0;
}
double ridge(const Roof& roof) {
  require(roof.bytes_per_s > 0, "a ridge needs a bandwidth");
  return roof.flops_per_s / roof.bytes_per_s;
}

}  // namespace trireme
