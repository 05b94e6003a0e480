// fp8_matmul, c (+)= op(a) op(b) + bias + residual, 2 M N K FLOPs, one of three ways:
//   on tensor cores of 8 bits (codes_in_library), c bf16 or f32: both operands with one scale (sm_89 and up),
//     or with one for 128 codes along k, at most one of them for 128 x 128 (sm_90); they are turned so that k
//     is in rows, a byte in and out a code, and their scales are laid as the library reads them;
//   as bf16 numbers in scratch, which is exact, and matmul's product of those, whose sums are f32: where bias
//     and c are of its types. So blocks of 128 need no promotion of their own, as on CPUs;
//   else (f32 bias, f16) by matmul_simt.cuh straight from the codes.
// Hopper's tensor cores cut a sum of 8-bit products off at some 14 bits until it is promoted, 128 of k later:
// about 1e-4 of what a sum of so many is large, far below what rounding to 8 bits did to its terms.
#include <utility>

#include "device/cuda/fp8.h"
#include "device/cuda/kernel_names.h"
#include "device/cuda/matmul_simt.cuh"

namespace trireme::cuda {
namespace {

// Codes with their scales: element (i, k), i of the dim that stays; blocks of i_block x k_block have a scale.
struct CodeFactor {
  const uint8_t* data = nullptr;
  const float* scale = nullptr;
  int64_t outer = 0, summed = 0, i_block = 1, k_block = 1, i_scale = 0, k_scale = 0;
  Fp8Format format = Fp8Format::e4m3;

  __device__ __forceinline__ float at(int64_t i, int64_t k) const {
    return from_fp8(format, data[i * outer + k * summed]) *
           scale[i / i_block * i_scale + k / k_block * k_scale];
  }
};
// summed_rows: rows of the codes are of the summed dim.
CodeFactor code_factor(const Tensor& codes, Fp8Format format, const Tensor& scale, const Fp8Blocks& blocks,
                       bool summed_rows) {
  const int64_t cols = codes.shape[1], across = scale.shape[1];
  const int64_t height = blocks.rows > 0 ? blocks.rows : codes.shape[0];
  const int64_t width = blocks.cols > 0 ? blocks.cols : cols;
  CodeFactor f{codes.as<uint8_t>(), scale.as<float>(), cols, 1, height, width, across, 1, format};
  if (summed_rows)
    std::swap(f.outer, f.summed), std::swap(f.i_block, f.k_block), std::swap(f.i_scale, f.k_scale);
  return f;
}
template <class Bias, class Out>
void product_of_codes(const Fp8MatmulArgs& a, cudaStream_t stream) {
  SimtMatmul<CodeFactor, Bias, Out> p;
  p.a = code_factor(a.a, a.format_a, a.scale_a, a.blocks_a, a.trans_a);
  p.b = code_factor(a.b, a.format_b, a.scale_b, a.blocks_b, !a.trans_b);
  p.k = a.a.shape[a.trans_a ? 0 : 1];
  run_matmul_simt(p, a, stream);
}

struct NumbersChunk {
  CodeFactor from;
  bf16* to;
  int64_t cols;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    bf16 v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = narrow<bf16>(i < n ? from.at(row, c + i) : 0.0f);
    bf16* out = to + row * cols + c;
    store8(v, out, reinterpret_cast<uintptr_t>(out) % 16 == 0, n);
  }
};
void numbers_of(const CodeFactor& from, const Tensor& to, cudaStream_t stream) {
  each_chunk(to.shape[0], to.shape[1], stream, NumbersChunk{from, to.as<bf16>(), to.shape[1]});
}

// ---- on tensor cores of 8 bits ----

// to[c, r] = from[r, c] of rows and cols that are multiples of 4: block (128 columns, 128 rows), 4 x 4 codes
// a thread at once. Words lie a place further every 4 columns, so that neither a warp's stores (a word of
// every fourth column) nor its loads (one column) meet in a bank.
constexpr int kTurn = 128, kTurnThreads = 256, kTurnWords = kTurn / 4;
__device__ __forceinline__ int turned_word(int column, int word) {
  return column * kTurnWords + (word + column / 4) % kTurnWords;
}
__global__ void __launch_bounds__(kTurnThreads)
    turn(const uint8_t* from, uint8_t* to, int64_t rows, int64_t cols) {
  __shared__ uint32_t tile[kTurn * kTurnWords];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t r0 = int64_t(blockIdx.y) * kTurn, c0 = int64_t(blockIdx.x) * kTurn;
  for (int word = warp; word < kTurnWords; word += kTurnThreads / 32) {  // of rows 4 word ..
    if (r0 + 4 * word >= rows || c0 + 4 * lane >= cols) continue;
    const uint8_t* at = from + (r0 + 4 * word) * cols + c0 + 4 * lane;
    uint32_t row[4], column[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) row[i] = *reinterpret_cast<const uint32_t*>(at + i * cols);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) column[j] |= (row[i] >> (8 * j) & 0xff) << (8 * i);
      tile[turned_word(4 * lane + j, word)] = column[j];
    }
  }
  __syncthreads();
  if (r0 + 4 * lane >= rows) return;
  for (int c = warp; c < kTurn && c0 + c < cols; c += kTurnThreads / 32)
    *reinterpret_cast<uint32_t*>(to + (c0 + c) * rows + r0 + 4 * lane) = tile[turned_word(c, lane)];
}

struct ScalesChunk {
  const float* from;
  int64_t down, right;  // strides of `from`
  float* to;
  int64_t cols, there;  // of a row; those behind `there` are 0
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    for (int64_t i = c; i < c + n; i++) to[row * cols + i] = i < there ? from[row * down + i * right] : 0.0f;
  }
};

// An operand as the library wants it: what is not so already is put into `place`.
struct LaidOperand {
  Tensor codes;  // [I,K]
  Codes besides;

  LaidOperand(const Tensor& t, const CodeFactor& f, CodeScales kind, bool turned, std::byte* place,
              cudaStream_t stream)
      : codes(t), besides{f.format, kind, f.scale} {
    if (turned) {
      codes = Tensor(place, {t.shape[1], t.shape[0]}, DType::u8);
      run_blocks(turn, Grid(ceil_div(t.shape[1], kTurn), ceil_div(t.shape[0], kTurn)), kTurnThreads, 0,
                 stream, t.as<uint8_t>(), codes.as<uint8_t>(), t.shape[0], t.shape[1]);
    }
    if (kind == CodeScales::one) return;
    const int64_t outer = codes.shape[0], deep = ceil_div(codes.shape[1], kCodeBlock);
    const bool vectors = kind == CodeScales::vectors;
    const int64_t rows = vectors ? deep : ceil_div(outer, kCodeBlock);
    const int64_t there = vectors ? outer : deep, cols = round_up(there, 4);
    const int64_t down = vectors ? f.k_scale : f.i_scale, right = vectors ? f.i_scale : f.k_scale;
    const bool laid = right == 1 && (rows == 1 || down == cols) && there == cols &&
                      reinterpret_cast<uintptr_t>(f.scale) % 16 == 0;
    if (laid) return;
    // Behind the codes, in the other half of what their bf16 numbers would take.
    auto* to = reinterpret_cast<float*>(place + round_up(codes.numel(), 256));
    each_chunk(rows, cols, stream, ScalesChunk{f.scale, down, right, to, cols, there});
    besides.scales = to;
  }
};

// False: tensor cores know no such blocks.
bool kind_of(const CodeFactor& f, const Fp8Blocks& blocks, CodeScales& kind) {
  if (blocks == Fp8Blocks{})
    kind = CodeScales::one;
  else if (f.k_block == kCodeBlock && f.i_block == 1)
    kind = CodeScales::vectors;
  else if (f.k_block == kCodeBlock && f.i_block == kCodeBlock)
    kind = CodeScales::squares;
  else
    return false;
  return true;
}

bool fits_tensor_cores(const Fp8MatmulArgs& a, CodeScales of_a, CodeScales of_b, const CudaContext& ctx) {
  const bool blocks = of_a != CodeScales::one;
  bool ok = blocks ? ctx.major == 9 : ctx.major * 10 + ctx.minor >= 89;
  ok &= blocks == (of_b != CodeScales::one);
  ok &= of_a != CodeScales::squares || of_b != CodeScales::squares;
  ok &= a.format_a == Fp8Format::e4m3 || a.format_b == Fp8Format::e4m3;
  ok &= a.bias ? a.c.dtype == DType::bf16 && a.bias.dtype == DType::bf16 : a.c.dtype != DType::f16;
  for (const Tensor* t : {&a.a, &a.b, &a.c}) ok &= t->shape[0] % 16 == 0 && t->shape[1] % 16 == 0;
  for (const Tensor* t : {&a.a, &a.b, &a.c, &a.residual})
    ok &= !*t ||
          (reinterpret_cast<uintptr_t>(t->data) % 16 == 0 && (t->stride[0] * size_of(t->dtype)) % 16 == 0);
  return ok;
}

// False, and nothing done but in scratch, where tensor cores cannot do what Fp8MatmulArgs says.
bool on_tensor_cores(const Fp8MatmulArgs& p, const Fp8AsBf16& as, const Tensor& scratch, CudaContext& ctx,
                     cudaStream_t stream) {
  const CodeFactor a = code_factor(p.a, p.format_a, p.scale_a, p.blocks_a, p.trans_a),
                   b = code_factor(p.b, p.format_b, p.scale_b, p.blocks_b, !p.trans_b);
  CodeScales of_a, of_b;
  if (!kind_of(a, p.blocks_a, of_a) || !kind_of(b, p.blocks_b, of_b) ||
      !fits_tensor_cores(p, of_a, of_b, ctx))
    return false;
  // In the place of the bf16 numbers, which takes twice as much.
  const LaidOperand left(p.a, a, of_a, p.trans_a, as.product.a.data, stream),
      right(p.b, b, of_b, !p.trans_b, as.product.b.data, stream);
  ctx.last_kernel = of_a == CodeScales::one                                      ? kFp8OneScale
                    : of_a == CodeScales::squares || of_b == CodeScales::squares ? kFp8Squares
                                                                                 : kFp8Vectors;
  MatmulArgs product = as.product;
  product.a = left.codes, product.trans_a = false;
  product.b = right.codes, product.trans_b = true;
  return codes_in_library(product, left.besides, right.besides, as.rest(scratch), ctx, stream);
}

// The product goes to `kernel`, which has no 8-bit tensor cores: an error where they are required.
void refuse_other_kernels(const Fp8MatmulArgs& a, const CudaContext& ctx, std::string_view kernel) {
  if (!ctx.require_fp8) return;
  run_failed(
      "precision.fp8_kernels = \"required\": op 'fp8_matmul', c {} {}, {} summed: no 8-bit tensor cores take "
      "it on {} (sm_{}{}), and '{}' would; give \"auto\"",
      name_of(a.c.dtype), to_string(a.c.shape), a.a.shape[a.trans_a ? 0 : 1],
      ctx.gpu.empty() ? "this GPU" : ctx.gpu, ctx.major, ctx.minor, kernel);
}

}  // namespace

void cuda_launch(const Fp8MatmulArgs& a, const Tensor& scratch, CudaContext& ctx, cudaStream_t stream) {
  ctx.last_kernel = {};
  if (a.c.numel() == 0) return;
  if (const Fp8AsBf16 as(a, scratch.data); as.possible) {
    if (on_tensor_cores(a, as, scratch, ctx, stream)) return;
    refuse_other_kernels(a, ctx, kFp8InBf16);
    numbers_of(code_factor(a.a, a.format_a, a.scale_a, a.blocks_a, false), as.product.a, stream);
    numbers_of(code_factor(a.b, a.format_b, a.scale_b, a.blocks_b, false), as.product.b, stream);
    cuda_launch(as.product, as.rest(scratch), ctx, stream);
    ctx.last_kernel = kFp8InBf16;  // in place of the product's own
    return;
  }
  refuse_other_kernels(a, ctx, kSimtKernel);
  ctx.last_kernel = kSimtKernel;
  by_type(a.c.dtype, [&]<class Out>(Out) {
    by_type(a.bias ? a.bias.dtype : a.c.dtype,
            [&]<class Bias>(Bias) { product_of_codes<Bias, Out>(a, stream); });
  });
}

}  // namespace trireme::cuda
