// Waits of kernels that never end: each is bounded, and the launch ends with one line that names it.
#include <gtest/gtest.h>

#include <string>

#include "device/cuda/warpgroup_mma.cuh"

namespace trireme::cuda {
namespace {

SpinReport spin_reports_here[kSpinners];

// This file's kernels report as attention's forward ones do.
template <class Kernel>
std::string error_of(Kernel kernel) {
  SpinReport* all = spin_reports([] { return spin_reports_here; });
  for (size_t i = 0; i < kSpinners; i++) all[i].filled = 0;
  set_spin_report(spin_report, all);
  try {
    run_blocks(kernel, Grid(3, 2), 128, 1024, nullptr, 0);
  } catch (const Error& e) {
    for (size_t i = 0; i < kSpinners; i++) all[i].filled = 0;
    return e.what();
  }
  return "";
}

uint64_t spin_barrier;
int spin_count;

// Thread 37 of block (2, 1, 0) waits for an arrival that does not come.
void misses_an_arrival(int) {
  if (threadIdx.x == 0) init_barrier(spin_barrier, 2), show_barriers();
  __syncthreads();
  const bool last = blockIdx.x == 2 && blockIdx.y == 1;
  if (threadIdx.x < 2 && !(last && threadIdx.x == 1)) arrive(spin_barrier);
  if (threadIdx.x == 37) wait_for<spin_name("k_full")>(spin_barrier, 0);
}
void misses_a_count(int) {
  spin_count = 6;
  if (threadIdx.x == 64) wait_count(&spin_count, 7);
}
// Threads wait for threads that are still at work: no wait is too long.
void waits_for_others(int) {
  if (threadIdx.x == 0) init_barrier(spin_barrier, 1), show_barriers(), spin_count = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    wait_count(&spin_count, 1);
    arrive(spin_barrier);
  }
  if (threadIdx.x == 127) raise_count(&spin_count);
  wait_for<spin_name("full")>(spin_barrier, 0);
}

TEST(Spins, ABarrierThatNeverCompletesIsNamed) {
  const std::string e = error_of(misses_an_arrival);
  EXPECT_EQ(
      e.find(
          "CUDA: a kernel hung: op 'attention' (kernel sm_90a): block (2, 1, 0), warp 1, thread 37, waited "
          "2 s for barrier 'k_full' at shared address 0x"),
      0u)
      << e;
  EXPECT_NE(e.find(" to leave phase 0"), std::string::npos) << e;
}
TEST(Spins, ACountThatNeverComesIsNamed) {
  const std::string e = error_of(misses_a_count);
  EXPECT_NE(e.find("block (0, 0, 0), warp 2, thread 64, waited 2 s for the count at address ..."),
            std::string::npos)
      << e;
  EXPECT_NE(e.find(" to become 7"), std::string::npos) << e;
}
TEST(Spins, WaitsThatEndReportNothing) {
  for (uint64_t order = 0; order < 20; order++) {
    emulate::set_order(order);
    EXPECT_EQ(error_of(waits_for_others), "");
  }
  emulate::set_order(0);
}
TEST(Spins, NamesFitANumber) {
  EXPECT_EQ(spin_name("k_full"), spin_name("k_full"));
  EXPECT_NE(spin_name("k_full"), spin_name("k_empty"));
  EXPECT_EQ(spin_name("12345678"), spin_name("123456789"));
}

}  // namespace

// The three files' kernels report to three places.
TEST(Spins, EveryFileHasItsReport) {
  SpinReport* all = spin_reports([] { return spin_reports_here; });
  report_spins(all);
  all[2].name = kCountName;
  all[2].filled = 1;
  EXPECT_EQ(spin_report_text().find("op 'attention_backward' (kernel sm_90a): block ("), 0u)
      << spin_report_text();
  all[2].filled = 0;
  EXPECT_EQ(spin_report_text(), "");
}

}  // namespace trireme::cuda
