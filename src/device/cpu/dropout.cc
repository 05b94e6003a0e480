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

// Elements [begin, end) of the operands, the first of which has the number `first`.
template <class T>
void drop_run(const DropoutArgs& p, uint64_t first, int64_t begin, int64_t end) {
  const T* x = p.x.as<T>() + begin;
  const T* residual = p.residual ? p.residual.as<T>() + begin : nullptr;
  T* y = p.y.as<T>() + begin;
  const VF scale = fill(float(p.mask.scale()));
  const uint32_t threshold = p.mask.threshold();
  each_drawn(p.mask.key, first, end - begin, [&](int64_t i, const uint32_t* w) HWY_ATTR {
    each_vector(std::min(kRun, end - begin - i), [&](int64_t j, auto part) HWY_ATTR {
      const VF v = hn::IfThenElseZero(kept(w + j, threshold), hn::Mul(load(x + i + j, part), scale));
      store(residual ? hn::Add(v, load(residual + i + j, part)) : v, y + i + j, part);
    });
  });
}

template <class T>
void drop_range(const DropoutArgs& p, int64_t begin, int64_t end) {
  const DropoutMask& m = p.mask;
  if (m.seq == 0) return drop_run<T>(p, uint64_t(m.first + begin), begin, end);
  const int64_t columns = p.x.cols();
  for (int64_t next; begin < end; begin = next) {
    const int64_t row = begin / columns, of_sequence = (m.rows.first + row) % m.part;
    const int64_t side_by_side =
        std::min(m.part - of_sequence, PositionRuns{m.rows.length}.neighbours(of_sequence));
    next = std::min(end, (row + side_by_side) * columns);
    drop_run<T>(p, uint64_t(m.of_row(row, columns) + begin % columns), begin, next);
  }
}

// words[0, n) = the words of elements first + places.at(c) for columns c from `begin` on, n at most kRun.
HWY_INLINE void draw_columns(uint64_t key, uint64_t first, const PositionRuns& places, int64_t begin,
                             int64_t n, uint32_t* words) {
  for (int64_t i = 0, run; i < n; i += run) {
    run = std::min(n - i, places.neighbours(begin + i));
    uint64_t at = first + uint64_t(places.at(begin + i));
    if (places.length != 1 || n - i == 1) {
      each_drawn(key, at, run, [&](int64_t j, const uint32_t* w) HWY_ATTR {
        std::copy(w, w + std::min(kRun, run - j), words + i + j);
      });
      continue;
    }
    // Lone columns: all numbers from the first to the last are drawn, and every step-th taken.
    run = n - i;
    each_drawn(key, at, (run - 1) * places.step + 1, [&](int64_t j, const uint32_t* w) HWY_ATTR {
      const int64_t end = std::min(j + kRun, (run - 1) * places.step + 1);
      for (int64_t c = (j + places.step - 1) / places.step; c * places.step < end; c++)
        words[i + c] = w[c * places.step - j];
    });
  }
}

}  // namespace

void dropout(const DropoutArgs& p, int64_t begin, int64_t end) {
  p.x.dtype == DType::bf16 ? drop_range<bf16>(p, begin, end) : drop_range<float>(p, begin, end);
}

void keep_tile(const DropoutMask& mask, const KeepTile& t, uint16_t* bits) {
  const uint32_t threshold = mask.threshold();
  auto compare = [&](int64_t i, const uint32_t* w) HWY_ATTR {
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
  };
  const bool side_by_side = t.column_places.neighbours(0) >= t.columns;
  HWY_ALIGN uint32_t words[kRun] = {};
  for (int64_t r = 0; r < t.rows; r++, bits += t.words) {
    const uint64_t row = t.first + uint64_t(t.row_places.at(r) * t.stride);
    if (side_by_side) {
      each_drawn(mask.key, row + uint64_t(t.column_places.at(0)), t.columns, compare);
      continue;
    }
    for (int64_t i = 0; i < t.columns; i += kRun) {
      draw_columns(mask.key, row, t.column_places, i, std::min(kRun, t.columns - i), words);
      compare(i, words);
    }
  }
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
