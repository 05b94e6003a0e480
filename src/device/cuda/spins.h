// Reports of kernels that waited too long for a barrier or a count (spins.cuh). Plain C++: the host reads
// them.
//
// A kernel that hangs blocks the GPU and reports no fault. So every wait of a kernel is bounded: after
// kSpinNs a waiter writes one report into host memory that the GPU reaches, and traps. The trap ends the
// CUDA context. Host memory stays, and the error of the first call that fails has the report's text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::cuda {

inline constexpr uint32_t kSpinNs =
    2'000'000'000;  // by the lower 32 bits of the GPU's clock, so below 4.29 s

// One wait that took too long.
struct SpinReport {
  volatile uint32_t filled;  // 1: the other fields are valid; written last
  volatile uint32_t block[3], thread;
  volatile uint32_t
      address;  // barrier: address in the block's shared memory; count: lower half of its address
  volatile uint32_t wanted;  // the phase that a barrier did not leave; the count that was waited for
  volatile uint64_t name;    // spin_name
};

// A name of at most 8 characters as a number, so that kernels carry it as an immediate.
constexpr uint64_t spin_name(const char* text) {
  uint64_t name = 0;
  for (int i = 0; i < 8 && text[i]; i++) name |= uint64_t(uint8_t(text[i])) << 8 * i;
  return name;
}
inline constexpr uint64_t kCountName = spin_name("count");  // a count in memory, not a barrier

// The files whose kernels wait have a report each. These tell the kernels on the current device where it is.
inline constexpr size_t kSpinners = 3;
void report_forward_spins(SpinReport*);   // attention_sm90.cu
void report_backward_spins(SpinReport*);  // attention_sm90_backward.cu
void report_wide_spins(SpinReport*);      // attention_sm90_wide.cu
inline void report_spins(SpinReport* all) {
  report_forward_spins(all), report_backward_spins(all + 1), report_wide_spins(all + 2);
}

// Gives the process its reports, kSpinners zeroed ones that stay for its lifetime, unless it has them; `make`
// makes the memory. Returns them. On any thread.
SpinReport* spin_reports(SpinReport* (*make)());
// "attention_backward (kernel sm_90a): block (3, 0, 1), warp 4: waits ..." of the first report; "": there is
// none.
std::string spin_report_text();

}  // namespace trireme::cuda
