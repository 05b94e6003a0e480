// What this machine reaches at best, measured: the denominators of MFU and of the op harness.
//
// Each figure is the best of many short bursts in which all threads run at once: neighbours and clocks only
// ever take away, so the best is the machine's and the rest is noise.
#pragma once
#include <functional>

namespace trireme::cpu {

// Asked after each burst, of which there is one at least: true ends the measurement, with the best so far.
using Stop = std::function<bool()>;
inline constexpr double kPeakSeconds = 0.3;

// FLOP/s (a multiply-add counts 2) of independent fused multiply-adds on registers, f32 at the widest
// vectors.
double f32_peak(int threads, double seconds = kPeakSeconds, const Stop& stop = {});
// The same of what bf16 matrix products are made of: dot products in tile registers (gemm_tiles.h), else
// AVX512-BF16's; 0 where there are neither.
double bf16_peak(int threads, double seconds = kPeakSeconds, const Stop& stop = {});

// Bytes/s over arrays far larger than the caches; triad is a = b + s * c, counted as three bytes moved per
// byte of a (the line that a store first reads is not counted). Plain stores, as the kernels use.
struct MemoryRates {
  double read = 0, write = 0, triad = 0;
};
// Stopped before the arrays are there: zeros. bytes: of the three arrays together; 0 = four times the last
// cache, 192 MiB at least.
MemoryRates memory_rates(int threads, double seconds = kPeakSeconds, long bytes = 0, const Stop& stop = {});

// One burst on the calling thread: `rounds` rounds, FLOPs of one round; returns a value that depends on all
// of it.
// Independent accumulators: more than latency x issue width of today's cores. Dot products take longer than
// multiply-adds: with 12 accumulators their burst reached 93 % of what 16 and more reach.
inline constexpr int kChains = 12, kBf16Chains = 24;
double bf16_burst(long rounds);  // peak_avx512bf16.cc; only where the processor has it
double bf16_flops_per_round();
double tile_burst(long rounds);  // peak_amx.cc; only where there are tile registers
double tile_flops_per_round();

}  // namespace trireme::cpu
