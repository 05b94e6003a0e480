// What only a device runs, without one: of any product the kernel that takes what cuBLASLt does not; of codes
// what its documentation says of operands and scales (cuBLAS 13, section 3.1.4), with sums as Hopper's tensor
// cores are known to keep them (DeepSeek-V3, 2412.19437, section 3.5.2).
#include <cmath>

#include "device/cuda/fp8.h"
#include "device/cuda/kernel_names.h"
#include "device/cuda/matmul_gelu.h"
#include "device/cuda/matmul_simt.h"
#include "device/cuda/numbers.cuh"

namespace trireme::cuda {
namespace {

// Codes [I,K] and their scales.
class Factor {
 public:
  Factor(const Tensor& codes, const Codes& besides, const Codes& other) : codes_(codes), besides_(besides) {
    const bool blocks = besides.kind != CodeScales::one;
    require(codes.shape[0] % 16 == 0 && k() % 16 == 0, "8-bit tensor cores want multiples of 16");
    require(besides.format == Fp8Format::e4m3 || other.format == Fp8Format::e4m3, "e5m2 times e5m2");
    require(blocks == (other.kind != CodeScales::one) &&
                (besides.kind != CodeScales::squares || other.kind != CodeScales::squares),
            "scales that no product takes together");
    for (const void* p : {static_cast<const void*>(codes.data), static_cast<const void*>(besides.scales)})
      require(reinterpret_cast<uintptr_t>(p) % (p == codes.data || blocks ? 16 : 4) == 0,
              "an operand at an odd address");
  }
  int64_t k() const { return codes_.shape[1]; }
  float code(int64_t i, int64_t k) const {
    return from_fp8(besides_.format, codes_.as<uint8_t>()[i * codes_.shape[1] + k]);
  }
  float scale(int64_t i, int64_t k) const {
    const int64_t block = k / 128, blocks = (codes_.shape[1] + 127) / 128;
    const int64_t at = besides_.kind == CodeScales::one       ? 0
                       : besides_.kind == CodeScales::vectors ? block * codes_.shape[0] + i
                                                              : i / 128 * round_up(blocks, 4) + block;
    return besides_.scales[at];
  }

 private:
  const Tensor& codes_;
  const Codes& besides_;
};

// To 13 bits behind the first, towards zero.
double cut(double v) {
  int exponent = 0;
  const double m = std::frexp(v, &exponent);
  return std::ldexp(std::trunc(std::ldexp(m, 14)), exponent - 14);
}
float product(const Factor& a, int64_t i, const Factor& b, int64_t j) {
  float sum = 0;
  for (int64_t k = 0; k < a.k(); k += 128) {
    double block = 0;
    for (int64_t step = k; step < std::min(k + 128, a.k()); step += 32) {
      for (int64_t at = step; at < std::min(step + 32, a.k()); at++)
        block += double(a.code(i, at)) * double(b.code(j, at));
      block = cut(block);
    }
    sum += float(block) * a.scale(i, k) * b.scale(j, k);
  }
  return sum;
}

}  // namespace

void cuda_launch(const MatmulArgs& a, const Tensor&, CudaContext& ctx, cudaStream_t stream) {
  if (a.c.numel() == 0) return;
  ctx.last_kernel = kSimtKernel;
  simt_matmul(a, stream);
}

bool gelu_in_library(const MatmulGeluArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  return false;
}
bool gelu_in_library(const MatmulGeluBackwardArgs&, const Tensor&, CudaContext&, cudaStream_t) {
  return false;
}

bool codes_in_library(const MatmulArgs& p, const Codes& a, const Codes& b, const Tensor&, CudaContext&,
                      cudaStream_t) {
  require(!p.trans_a && p.trans_b && p.a.contiguous() && p.b.contiguous(), "k is in the rows of codes");
  const Factor left(p.a, a, b), right(p.b, b, a);
  by_type(p.c.dtype, [&]<class Out>(Out) {
    for (int64_t i = 0; i < p.c.shape[0]; i++)
      for (int64_t j = 0; j < p.c.shape[1]; j++) {
        auto of = [&](const Tensor& t) { return widen(t.as<Out>()[i * t.stride[0] + j]); };
        float sum = product(left, i, right, j);
        if (p.bias) sum += widen(p.bias.as<bf16>()[j]);
        if (p.residual) sum += of(p.residual);
        if (p.accumulate) sum += of(p.c);
        p.c.as<Out>()[i * p.c.stride[0] + j] = narrow<Out>(sum);
      }
  });
  return true;
}

}  // namespace trireme::cuda
