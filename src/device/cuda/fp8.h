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

// Puts the product on tensor cores of 8 bits where these can do what Fp8MatmulArgs says: sm_89 on, one scale
// an operand, not both e5m2, sizes multiples of 16, c and bias bf16. False, and nothing done, where not.
bool fp8_on_tensor_cores(const Fp8MatmulArgs&, const Tensor& scratch, CudaContext&, cudaStream_t);

// to[C,R] = from[R,C] transposed, u8.
void turn_codes(const Tensor& from, const Tensor& to, cudaStream_t);

}  // namespace trireme::cuda
