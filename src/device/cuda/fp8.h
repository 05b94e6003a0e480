// The ways of fp8_matmul on CUDA, and what scratch each takes. Plain C++: meta asks too.
#pragma once
#include "base/rounding.h"
#include "device/cuda/launches.h"

namespace trireme::cuda {

// The product as one of bf16 numbers, one operand behind the other in scratch. base: of the scratch, null
// where only sizes matter.
struct Fp8AsBf16 {
  Fp8AsBf16(const Fp8MatmulArgs& p, std::byte* base) {
    possible = p.c.dtype != DType::f16 && (!p.bias || p.bias.dtype == DType::bf16);
    if (!possible) return;
    auto* at = base ? base : reinterpret_cast<std::byte*>(64);
    auto place = [&](const Tensor& codes) {
      Tensor t(at + bytes, codes.shape, DType::bf16);
      bytes += round_up(t.bytes(), 256);
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
  // Scratch of the product itself.
  Tensor rest(const Tensor& scratch) const {
    const int64_t n = scratch.numel() - bytes;
    return n > 0 ? Tensor(scratch.data + bytes, {n}, DType::u8) : Tensor();
  }

  bool possible = false;  // bias and c are of matmul's types
  MatmulArgs product;
  int64_t bytes = 0;
};

inline constexpr int64_t kCodeBlock = 128;  // the edge of blocks that tensor cores know

// How the scales of codes [I,K], K summed, lie where tensor cores read them; 16-byte aligned. Numbered as
// cublasLtMatmulMatrixScale_t.
enum class CodeScales : int32_t {
  one = 0,
  vectors = 4,  // of 128 codes of a row: [K/128, I]
  squares = 5,  // of 128 x 128 codes: [I/128, K/128 and up to a multiple of 4]
};
// What such codes are besides.
struct Codes {
  Fp8Format format = Fp8Format::e4m3;
  CodeScales kind = CodeScales::one;
  const float* scales = nullptr;
};

// The product of codes a u8 [M,K] and b u8 [N,K] (trans_b), their scales' multiples of c bf16 or f32, on
// tensor cores of 8 bits; sums are promoted to f32 every 128 of K. False, and nothing done, where the library
// has no algorithm.
bool codes_in_library(const MatmulArgs&, const Codes& a, const Codes& b, const Tensor& scratch, CudaContext&,
                      cudaStream_t);

}  // namespace trireme::cuda
