#include "cost/roofline.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

TEST(Roofline, TheLongerOfComputingAndMoving) {
  Roof roof{.flops_per_s = 1e12, .bytes_per_s = 1e11};  // ridge at 10 FLOPs a byte
  EXPECT_DOUBLE_EQ(ridge(roof), 10);
  EXPECT_DOUBLE_EQ(roofline_seconds({.flops = 2e12, .bytes_read = 50, .bytes_written = 50}, roof), 2);
  EXPECT_DOUBLE_EQ(
      roofline_seconds({.flops = 1, .bytes_read = 100000000000, .bytes_written = 200000000000}, roof), 3);
  Cost at_ridge{.flops = 1e9, .bytes_read = 60000000, .bytes_written = 40000000};
  EXPECT_DOUBLE_EQ(intensity(at_ridge), ridge(roof));
  EXPECT_DOUBLE_EQ(roofline_seconds(at_ridge, roof), 1e-3);
  EXPECT_DOUBLE_EQ(roofline_seconds({}, roof), 0);
  EXPECT_DOUBLE_EQ(intensity({}), 0);
  EXPECT_THROW(roofline_seconds({}, {}), Error);
}

}  // namespace
}  // namespace trireme
