#include "device/cpu/peak.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/cpu/cpu_device.h"

namespace trireme::cpu {
namespace {

// Not how fast, only that there is a figure where there should be one: bursts of a few milliseconds.
TEST(Peak, MeasuresWhatTheProcessorHas) {
  for (int threads : {1, 2}) {
    EXPECT_GT(f32_peak(threads, 0.005), 1e6);
    if (multiplies_natively(DType::bf16))
      EXPECT_GT(bf16_peak(threads, 0.005), 1e6);
    else
      EXPECT_EQ(bf16_peak(threads, 0.005), 0);
  }
  MemoryRates rates = memory_rates(2, 0.01, 3 << 20);
  for (double r : {rates.read, rates.write, rates.triad}) EXPECT_TRUE(std::isfinite(r) && r > 1e6) << r;
}

TEST(Peak, EndsWhenTold) {
  int asked = 0;
  const Stop stop = [&] { return ++asked > 0; };
  EXPECT_GT(f32_peak(1, 5, stop), 1e6);  // one burst
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(memory_rates(1, 5, 3 << 20, stop).triad, 0);  // before memory is touched
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace trireme::cpu
