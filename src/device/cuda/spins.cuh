// Waits of kernels for one another, bounded (spins.h). Included once by each file whose kernels wait: the
// file's report is its own.
//
// A wait is one block of assembler, so that the compiler sees no loop and no second way through it. The same
// in C++ took 8 to 24 more bytes of spilled registers per thread in attention's backward kernels, or made
// ptxas wait for each product on its own.
#pragma once
#include "device/cuda/gpu.cuh"
#include "device/cuda/spins.h"

namespace trireme::cuda {

static __device__ SpinReport* spin_report = nullptr;  // this file's kernels write it; null: no report
static __device__ unsigned spin_report_taken = 0;     // set by the first waiter

#if defined(__CUDACC__)

inline void set_spin_report(SpinReport*& on_device, SpinReport* to) {
  TRIREME_CUDA_CALL(cudaMemcpyToSymbol(on_device, &to, sizeof to));
}

static_assert(offsetof(SpinReport, filled) == 0 && offsetof(SpinReport, block) == 4 &&
              offsetof(SpinReport, thread) == 16 && offsetof(SpinReport, address) == 20 &&
              offsetof(SpinReport, wanted) == 24 && offsetof(SpinReport, name) == 32);
static_assert(kSpinNs == 2'000'000'000);
// `ready` sets p; it may rest a while and use t. %0: address, %1: wanted, %2: &spin_report, %3:
// &spin_report_taken, %4: name. The first waiter reports and traps; later ones leave it 0.1 s for that.
#define TRIREME_SPIN(ready)                                                                                  \
  "{ .reg .pred p; .reg .u32 t, begin; .reg .u64 at;\n" ready                                                \
  "@p bra DONE;\n"                                                                                           \
  "mov.u32 begin, %%globaltimer_lo;\n"                                                                       \
  "AGAIN: " ready                                                                                            \
  "@p bra DONE;\n"                                                                                           \
  "mov.u32 t, %%globaltimer_lo; sub.u32 t, t, begin; setp.lt.u32 p, t, 2000000000; @p bra AGAIN;\n"          \
  "atom.global.add.u32 t, [%3], 1; setp.ne.u32 p, t, 0; @p bra REST;\n"                                      \
  "ld.global.u64 at, [%2]; setp.eq.u64 p, at, 0; @p bra TRAP;\n"                                             \
  "mov.u32 t, %%ctaid.x; st.volatile.global.u32 [at+4], t;\n"                                                \
  "mov.u32 t, %%ctaid.y; st.volatile.global.u32 [at+8], t;\n"                                                \
  "mov.u32 t, %%ctaid.z; st.volatile.global.u32 [at+12], t;\n"                                               \
  "mov.u32 t, %%tid.x; st.volatile.global.u32 [at+16], t;\n"                                                 \
  "st.volatile.global.u32 [at+20], %0; st.volatile.global.u32 [at+24], %1; st.volatile.global.u64 [at+32], " \
  "%4;\n"                                                                                                    \
  "fence.sc.sys; mov.u32 t, 1; st.volatile.global.u32 [at], t; fence.sc.sys;\n"                              \
  "TRAP: trap; exit;\n"                                                                                      \
  "REST: mov.u32 t, 0;\n"                                                                                    \
  "SLEEP: nanosleep.u32 1000000; add.u32 t, t, 1; setp.lt.u32 p, t, 100; @p bra SLEEP;\n"                    \
  "trap; exit;\n"                                                                                            \
  "DONE: }"
#define TRIREME_SPIN_REPORT \
  "l"(__cvta_generic_to_global(&spin_report)), "l"(__cvta_generic_to_global(&spin_report_taken))

// Waits until the barrier at a shared address has left the phase. try_wait rests a while before it says no.
template <uint64_t name>
__device__ __forceinline__ void spin_at_barrier(uint32_t address, uint32_t phase) {
  asm volatile(TRIREME_SPIN("mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n")::"r"(address),
               "r"(phase), TRIREME_SPIN_REPORT, "n"(name)
               : "memory");
}
// Waits until the count is n.
template <uint64_t name>
__device__ __forceinline__ void spin_at_count(const int* at, int n) {
  asm volatile(TRIREME_SPIN("ld.acquire.gpu.global.s32 t, [%5]; setp.eq.s32 p, t, %1;\n")::"r"(
                   uint32_t(reinterpret_cast<uintptr_t>(at))),
               "r"(n), TRIREME_SPIN_REPORT, "n"(name), "l"(at)
               : "memory");
}
#undef TRIREME_SPIN
#undef TRIREME_SPIN_REPORT

#else

inline void set_spin_report(SpinReport*& on_device, SpinReport* to) {
  on_device = to;
  spin_report_taken = 0;
}
// The same steps, by the emulation's clock. ready() rests until it is true or no thread of the block can run.
template <class Ready>
void spin(const Ready& ready, uint64_t name, uint32_t address, uint32_t wanted) {
  if (ready()) return;
  const uint32_t begin = emulate::clock_ns();
  while (!ready()) {
    if (emulate::clock_ns() - begin < kSpinNs) continue;
    if (SpinReport* r = spin_report; r && spin_report_taken++ == 0) {
      r->block[0] = blockIdx.x;
      r->block[1] = blockIdx.y;
      r->block[2] = blockIdx.z;
      r->thread = threadIdx.x;
      r->address = address;
      r->wanted = wanted;
      r->name = name;
      r->filled = 1;
    }
    emulate::trap();
  }
}

#endif

}  // namespace trireme::cuda
