// Columns of heads that the attention kernels on tensor cores are made for. Plain functions: meta asks too.
#pragma once
#include <cstdint>

namespace trireme::cuda {

// Columns of q and k, of v and o. The least that a head fits; {192, 128}: multi-head latent attention.
struct HeadWidths {
  int d = 0, v = 0;
  constexpr bool operator==(const HeadWidths&) const = default;
};
inline constexpr HeadWidths kHeadWidths[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
constexpr HeadWidths head_widths(int64_t d, int64_t v) {  // {}: none
  for (HeadWidths w : kHeadWidths)
    if (d <= w.d && v <= w.v) return w;
  return {};
}

}  // namespace trireme::cuda
