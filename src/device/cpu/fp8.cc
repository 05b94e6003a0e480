// 8-bit floats on CPUs, by emulation: no CPU that trireme is built for multiplies them.
//
// quantise: the largest finite magnitude of each block, the scale that follows, one rounding a number.
// Threads share bands of rows; a maximum does not depend on its order.
//
// fp8_matmul: codes become bf16 in scratch, f32 where the bias is f32. With scales that are powers of two
// that is exact, so are products of two, and their sums are matmul's: in f32. So blocks of 128 along the sum
// need no promotion of their own, which tensor cores do (DeepSeek-V3, 2412.19437, section 3.3.2). The price,
// two or four bytes a code of scratch, is booked on meta.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "device/cpu/launch.h"
#include "device/cpu/rows.h"

namespace trireme::cpu {
namespace {

bool is_finite(float f) {
  return std::fabs(f) < HUGE_VALF;
}

void raise_to(std::atomic<float>& most, float to) {
  for (float now = most.load(); now < to && !most.compare_exchange_weak(now, to);) continue;
}

// How columns are cut: blocks of `width`, `across` of them.
struct Cut {
  int64_t cols, width, across;
  explicit Cut(const QuantiseArgs& p)
      : cols(p.x.shape[1]),
        width(p.blocks.cols > 0 ? p.blocks.cols : std::max<int64_t>(1, p.x.shape[1])),
        across(p.scale.shape[1]) {}
};

// most[j]: of block j, raised by a row.
template <class T>
void raise_by_row(const T* x, const Cut& cut, float* most) {
  const auto size = [](T v) { return is_finite(float(v)) ? std::fabs(float(v)) : 0.0f; };
  if (cut.width == 1) {
    for (int64_t c = 0; c < cut.cols; c++) most[c] = std::max(most[c], size(x[c]));
    return;
  }
  for (int64_t j = 0; j < cut.across; j++) {
    float m = most[j];
    const int64_t end = std::min(cut.cols, (j + 1) * cut.width);
    for (int64_t c = j * cut.width; c < end; c++) m = std::max(m, size(x[c]));
    most[j] = m;
  }
}

template <Fp8Format F, class T>
void encode_row(const T* x, const Cut& cut, const float* scale, uint8_t* codes) {
  if (cut.width == 1) {
    for (int64_t c = 0; c < cut.cols; c++) codes[c] = scaled_to_fp8(F, float(x[c]), 1 / scale[c]);
    return;
  }
  for (int64_t j = 0; j < cut.across; j++) {
    const float per_scale = 1 / scale[j];
    const int64_t end = std::min(cut.cols, (j + 1) * cut.width);
    for (int64_t c = j * cut.width; c < end; c++) codes[c] = scaled_to_fp8(F, float(x[c]), per_scale);
  }
}

template <Fp8Format F, class T>
void encode(const QuantiseArgs& p, const Cut& cut, const float* scale, int64_t begin, int64_t end) {
  const Rows<const T> x = rows_of<const T>(p.x);
  for (int64_t i = begin; i < end; i++)
    encode_row<F, T>(x[i], cut, scale, p.codes.as<uint8_t>() + i * cut.cols);
}
template <class T>
void encode(const QuantiseArgs& p, const Cut& cut, const float* scale, int64_t begin, int64_t end) {
  p.format == Fp8Format::e4m3 ? encode<Fp8Format::e4m3, T>(p, cut, scale, begin, end)
                              : encode<Fp8Format::e5m2, T>(p, cut, scale, begin, end);
}

// Bands of rows, each with a row of scales, which are magnitudes until they are scales.
template <class T>
float quantise_bands(const QuantiseArgs& p, const Context& ctx) {
  const Cut cut(p);
  const Rows<const T> x = rows_of<const T>(p.x);
  const int64_t rows = p.x.shape[0], height = p.blocks.rows > 0 ? p.blocks.rows : rows;
  std::atomic<float> most = 0;
  parallel_for(ctx, p.scale.shape[0], std::max<int64_t>(1, row_grain(cut.cols) / height),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t band = begin; band < end; band++) {
                   const int64_t first = band * height, last = std::min(rows, first + height);
                   float* scale = p.scale.as<float>() + band * cut.across;
                   std::fill(scale, scale + cut.across, 0.0f);
                   for (int64_t i = first; i < last; i++) raise_by_row(x[i], cut, scale);
                   raise_to(most, *std::max_element(scale, scale + cut.across));
                   for (int64_t j = 0; j < cut.across; j++)
                     scale[j] = fp8_scale(p.format, scale[j], p.margin);
                   encode<T>(p, cut, scale, first, last);
                 }
               });
  return most;
}

// One block: all threads look for its largest before any encodes.
template <class T>
float quantise_whole(const QuantiseArgs& p, const Context& ctx) {
  const Cut cut(p);
  const Rows<const T> x = rows_of<const T>(p.x);
  const bool given = p.amax && *p.amax.as<float>() > 0;
  std::atomic<float> most = 0;
  if (!given || p.seen)
    parallel_for(ctx, p.x.shape[0], row_grain(cut.cols), [&](int64_t begin, int64_t end, int) {
      float m = 0;
      for (int64_t i = begin; i < end; i++) raise_by_row(x[i], cut, &m);
      raise_to(most, m);
    });
  const float largest = given ? *p.amax.as<float>() : most.load();
  const float scale = fp8_scale(p.format, largest, p.margin);
  *p.scale.as<float>() = scale;
  parallel_for(ctx, p.x.shape[0], row_grain(cut.cols),
               [&](int64_t begin, int64_t end, int) { encode<T>(p, cut, &scale, begin, end); });
  return most;
}

template <class T>
void quantise(const QuantiseArgs& p, const Context& ctx) {
  const float most = p.scale.numel() == 1 ? quantise_whole<T>(p, ctx) : quantise_bands<T>(p, ctx);
  if (!p.seen) return;
  float& seen = *p.seen.as<float>();
  seen = std::max(seen, most);
}

// Numbers of codes, exactly, as T; of both operands, one behind the other in scratch.
template <class T>
void numbers_of(const Tensor& codes, Fp8Format format, const Tensor& scale, const Fp8Blocks& blocks,
                const Tensor& to, const Context& ctx) {
  std::array<float, 256> value;
  for (int code = 0; code < 256; code++) value[size_t(code)] = from_fp8(format, uint8_t(code));
  const int64_t rows = codes.shape[0], cols = codes.shape[1], across = scale.shape[1];
  const int64_t height = blocks.rows > 0 ? blocks.rows : rows, width = blocks.cols > 0 ? blocks.cols : cols;
  parallel_for(ctx, rows, row_grain(cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const uint8_t* from = codes.as<uint8_t>() + i * cols;
      const float* s = scale.as<float>() + i / height * across;
      T* out = to.as<T>() + i * cols;
      for (int64_t j = 0; j < across; j++)
        for (int64_t c = j * width; c < std::min(cols, (j + 1) * width); c++)
          out[c] = T(value[from[c]] * s[j]);
    }
  });
}
void widen_codes(const Tensor& codes, Fp8Format format, const Tensor& scale, const Fp8Blocks& blocks,
                 const Tensor& to, const Context& ctx) {
  to.dtype == DType::f32 ? numbers_of<float>(codes, format, scale, blocks, to, ctx)
                         : numbers_of<bf16>(codes, format, scale, blocks, to, ctx);
}

// The product of what codes stand for; base: of the numbers, null where only sizes matter.
struct Emulated {
  Emulated(const Fp8MatmulArgs& p, std::byte* base) {
    auto* at = base ? base : reinterpret_cast<std::byte*>(64);
    const DType type = p.bias && p.bias.dtype == DType::f32 ? DType::f32 : DType::bf16;
    auto place = [&](const Tensor& codes) {
      Tensor t(at + bytes, codes.shape, type);
      bytes += round_up(t.bytes(), 64);
      return t;
    };
    product = {.a = place(p.a),
               .b = place(p.b),
               .c = p.c,
               .trans_a = p.trans_a,
               .trans_b = p.trans_b,
               .bias = p.bias,
               .residual = p.residual,
               .accumulate = p.accumulate};
  }
  MatmulArgs product;
  int64_t bytes = 0;
};

}  // namespace

int64_t scratch_bytes(const QuantiseArgs&, const Context&) {
  return 0;
}
void launch(const QuantiseArgs& p, const Tensor&, const Context& ctx) {
  p.x.dtype == DType::bf16 ? quantise<bf16>(p, ctx) : quantise<float>(p, ctx);
}

int64_t scratch_bytes(const Fp8MatmulArgs& p, const Context& ctx) {
  const Emulated e(p, nullptr);
  return e.bytes + scratch_bytes(e.product, ctx);
}
void launch(const Fp8MatmulArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.c.numel() == 0) return;
  const Emulated e(p, scratch.data);
  widen_codes(p.a, p.format_a, p.scale_a, p.blocks_a, e.product.a, ctx);
  widen_codes(p.b, p.format_b, p.scale_b, p.blocks_b, e.product.b, ctx);
  const int64_t rest = scratch.numel() - e.bytes;
  launch(e.product, rest > 0 ? Tensor(scratch.data + e.bytes, {rest}, DType::u8) : Tensor(), ctx);
}

}  // namespace trireme::cpu
