// Run folders with a planted fault, or none: files as a run writes them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace trireme::test {

// One data-parallel run. The defaults are a run without a fault.
struct Plant {
  int64_t ranks = 1, steps = 60, micro = 4, global = 16;
  std::vector<std::string> sets;   // keys of its plan: "layout.bucket_mb=1000"
  double op_us = 900, gap_us = 6;  // length of an op; host time before it
  int ops = 12;                    // ops per pass of a microbatch
  double data_s = 3e-5;            // waits per step
  double comm_ms = 0.3;            // exposed all_reduce per step, after all ranks arrived
  double slow = 1;                 // factor on the last rank's ops
  int64_t save_every = 20;
  double stall_s = 0.004, write_s = 0.05;
  double late_factor = 1;  // on seconds of the last half of the steps
  std::vector<double> clocks = {3.2, 3.19, 3.21, 3.2};
  double others_cpu = 0.01;  // share of the 8 processors
  int threads = 1;           // per rank
  int64_t checkpoint_bytes = 5 << 20;
  bool recomputes = false;  // HFU is above MFU
  double clock_skew_s = 0;  // offset of the last rank's clock
};

// Writes the folder and reads it back. `cluster`: prices plans; none: nothing is priced.
ReportInput planted(const fs::path& folder, const Plant&, const std::optional<ClusterSpec>& cluster = {});

// A quiet machine: its kernels are bounded by FLOPs at the sizes of a Plant.
ClusterSpec quiet_machine();

}  // namespace trireme::test
