// y = x / (1 - rate) where the mask keeps it, else 0 (+ residual); and masks as bits for attention.
//
// Elements go in runs of 256: their random words are drawn into L1, then compared as the operands pass. Ten
// rounds of Philox are some 3 instructions an element with 512-bit vectors, about as long as an element takes
// from memory. Traffic with T = bf16: 4 B an element, 6 B with a residual.
#include "device/cpu/dropout.h"

#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/dropout.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/launch.h"
#include "device/cpu/philox-inl.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Which of the lanes whose words lie at w are kept.
HWY_INLINE hn::Mask<DF> kept(const uint32_t* w, uint32_t threshold) {
  const DU d;
  return hn::RebindMask(DF(), hn::Not(hn::Lt(hn::LoadU(d, w), hn::Set(d, threshold))));
}

template <class T>
void drop_range(const DropoutArgs& p, int64_t begin, int64_t end) {
  const T* x = p.x.as<T>() + begin;
  const T* residual = p.residual ? p.residual.as<T>() + begin : nullptr;
  T* y = p.y.as<T>() + begin;
  const VF scale = fill(float(p.mask.scale()));
  const uint32_t threshold = p.mask.threshold();
  each_drawn(
      p.mask.key, uint64_t(p.mask.first + begin), end - begin, [&](int64_t i, const uint32_t* w) HWY_ATTR {
        each_vector(std::min(kRun, end - begin - i), [&](int64_t j, auto part) HWY_ATTR {
          const VF v = hn::IfThenElseZero(kept(w + j, threshold), hn::Mul(load(x + i + j, part), scale));
          store(residual ? hn::Add(v, load(residual + i + j, part)) : v, y + i + j, part);
        });
      });
}

}  // namespace

void dropout(const DropoutArgs& p, int64_t begin, int64_t end) {
  p.x.dtype == DType::bf16 ? drop_range<bf16>(p, begin, end) : drop_range<float>(p, begin, end);
}

void keep_tile(const DropoutMask& mask, const KeepTile& t, uint16_t* bits) {
  const uint32_t threshold = mask.threshold();
  for (int64_t r = 0; r < t.rows; r++, bits += t.words)
    each_drawn(mask.key, t.first + uint64_t(r * t.stride), t.columns,
               [&](int64_t i, const uint32_t* w) HWY_ATTR {
                 const int64_t n = std::min(kRun, t.columns - i);
                 for (int64_t c = 0; c < n; c += 16) {
                   uint32_t sixteen = 0;
                   for (int64_t l = 0; l < 16; l += kLanes) {
                     uint8_t raw[8] = {};
                     hn::StoreMaskBits(DF(), kept(w + c + l, threshold), raw);
                     sixteen |= (raw[0] | uint32_t(raw[1]) << 8) << l;
                   }
                   bits[(i + c) / 16] = uint16_t(sixteen);
                 }
               });
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(dropout);
HWY_EXPORT(keep_tile);

void keep_bits(const DropoutMask& mask, const KeepTile& tile, uint16_t* bits) {
  HWY_DYNAMIC_DISPATCH(keep_tile)(mask, tile, bits);
}

int64_t scratch_bytes(const DropoutArgs&, const Context&) {
  return 0;
}
void launch(const DropoutArgs& p, const Tensor&, const Context& ctx) {
  parallel_for(ctx, p.x.numel(), kGrainElements, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(dropout)(p, begin, end);
  });
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
