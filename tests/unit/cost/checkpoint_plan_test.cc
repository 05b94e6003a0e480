// Checkpoints of a cluster against values worked out by hand.
#include "cost/checkpoint_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cost/goodput.h"

namespace trireme {
namespace {

// 100 B parameters, 12 bytes of each, on 64 devices: 1.2 TB at 64 GB/s a device and 50 GB/s of storage.
CheckpointCase hundred_billion() {
  return {.bytes = 1.2e12,
          .devices = 64,
          .host_bandwidth = 64e9,
          .write_bandwidth = 50e9,
          .storage_bytes = 20e12,
          .step_s = 10,
          .mtbf_s = 50000 * 3600.0 / 64};
}

TEST(CheckpointPlan, IsTheOneWorkedOutByHand) {
  const CheckpointPlan p = checkpoint_plan(hundred_billion());
  EXPECT_NEAR(p.stall_s, 0.29297, 1e-5);  // 1.2e12 / 64 / 64e9
  EXPECT_DOUBLE_EQ(p.write_s, 24);        // 1.2e12 / 50e9
  EXPECT_NEAR(p.young_s, 1283.7, 0.1);    // sqrt(2 x 0.29297 x 2,812,500)
  EXPECT_EQ(p.steps, 128);
  EXPECT_DOUBLE_EQ(p.interval_s, 1280);
  EXPECT_EQ(p.kept, 16);
  // 0.293 / 1280 for stalls; failures lose half an interval and the write that was in flight.
  EXPECT_NEAR(p.lost, 0.29297 / 1280 + (1280 / 2.0 + 24) / 2812500, 2e-6);
}

TEST(CheckpointPlan, SavesNoFasterThanStorageWrites) {
  CheckpointCase c = hundred_billion();
  c.write_bandwidth = 0.5e9;  // 2,400 s
  const CheckpointPlan p = checkpoint_plan(c);
  EXPECT_DOUBLE_EQ(p.write_s, 2400);
  EXPECT_EQ(p.steps, 240);
  // A machine that fails takes its copy with it: the last written one is up to two intervals old.
  EXPECT_NEAR(p.lost, 0.29297 / 2400 + (2400 / 2.0 + 2400) / 2812500, 5e-6);
  Reliability r{.mtbf_device_s = 50000 * 3600.0, .restart_s = 0, .repair_s = 0, .write_s = 0};
  const Goodput quick = goodput(r, 64, p.stall_s);
  r.write_s = p.write_s;
  const Goodput slow = goodput(r, 64, p.stall_s);
  EXPECT_DOUBLE_EQ(slow.interval_s, 2400);
  EXPECT_NEAR(1 - slow.share, p.lost, 5e-6);
  EXPECT_LT(slow.share, quick.share);
}

TEST(CheckpointPlan, AdaptersAreSmall) {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.finish(512);
  EXPECT_EQ(checkpoint_bytes(run, 1000), 12000);
  run.precision.moments = "bf16";
  EXPECT_EQ(checkpoint_bytes(run, 1000), 8000);
}

}  // namespace
}  // namespace trireme
