// Compiled for AMX and called only where processor and kernel have it (tiles::kernels()).
#include "device/cpu/peak.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "device/cpu/gemm_tiles.h"

namespace trireme::cpu {

// Four tiles of sums, 16 x 16 of 32 multiply-adds each: as many as products have.
double tile_flops_per_round() {
  return 4 * 16 * 16 * 32 * 2.0;
}

double tile_burst(long rounds) {
  alignas(64) uint16_t a[16 * 32], b[16 * 32];
  std::fill_n(a, 16 * 32, uint16_t(0x3f81)), std::fill_n(b, 16 * 32, uint16_t(0x3c23));  // 1.008, 0.00995
  tiles::kernels()->begin();
  asm volatile("" ::: "memory");  // the compiler does not see that tile loads read memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, a, 64);
  _tile_loadd(5, b, 64);
  for (long r = 0; r < rounds; r++) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  alignas(64) float sums[16 * 16];
  _tile_stored(0, sums, 64);
  tiles::kernels()->end();
  return double(sums[0]);
}

}  // namespace trireme::cpu

#else  // another processor's compiler: never called
namespace trireme::cpu {
double tile_flops_per_round() {
  return 0;
}
double tile_burst(long) {
  return 0;
}
}  // namespace trireme::cpu
#endif
