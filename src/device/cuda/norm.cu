// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), forward and backward, on rows x [N, C] or
// [N, heads, C].
//
// Forward, a block a row: mean (LayerNorm), then the sum of squared deviations in a second pass, then y.
// Backward, with h = (x - mean) * rstd and g = dy * weight:
//   dx = rstd * (g - mean(g) - h * mean(g * h)) [+ add]      RMSNorm: without mean and mean(g)
//   dweight = sum over rows of dy * h,  dbias = sum over rows of dy.
// dweight and dbias first, for dx may be dy: sums down the columns (columns.cuh) into scratch. A second
// launch adds the blocks of rows in order. Rows' sums are fixed trees: the same bits every time. f32 between
// load and store. Traffic with T = bf16: forward 4 B an element (the second and third pass of a row read
// caches), backward 10 B, or 12 with `add`.
#include <algorithm>

#include "device/cuda/columns.cuh"

namespace trireme::cuda {
namespace {

template <class T>
struct NormForward {
  HeadRows<const T> x;
  HeadRows<T> y;
  Rows<const T> weight, bias;  // bias and mean: LayerNorm's alone
  float *mean, *rstd;
  int64_t cols;
  float eps;
};

// f(chunk of a row's elements c, n), the block's threads in turn.
template <class F>
__device__ __forceinline__ void each_of_row(int64_t cols, const F& f) {
  for (int64_t c = int64_t(threadIdx.x) * kChunk; c < cols; c += int64_t(blockDim.x) * kChunk)
    f(c, int(cols - c < kChunk ? cols - c : kChunk));
}

template <bool centered, class T>
__global__ void __launch_bounds__(512) norm_forward(NormForward<T> a) {
  const int64_t row = blockIdx.x;
  const Rows<const T> x = a.x.row(row);
  const Rows<T> y = a.y.row(row);
  float mean = 0;
  if constexpr (centered) {
    float s = 0;
    each_of_row(a.cols, [&](int64_t c, int n) {
      float v[kChunk];
      x.load(0, c, n, v);
#pragma unroll
      for (float e : v) s += e;
    });
    mean = block_sum(s) / float(a.cols);
  }
  float square = 0;
  each_of_row(a.cols, [&](int64_t c, int n) {
    float v[kChunk];
    x.load(0, c, n, v);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const float d = i < n ? v[i] - mean : 0.0f;
      square = fmaf(d, d, square);
    }
  });
  const float rstd = 1 / sqrtf(block_sum(square) / float(a.cols) + a.eps);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if (centered) a.mean[row] = mean;
  }
  each_of_row(a.cols, [&](int64_t c, int n) {
    float v[kChunk], w[kChunk], b[kChunk];
    x.load(0, c, n, v);
    a.weight.load(0, c, n, w);
    if constexpr (centered) a.bias.load(0, c, n, b);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      if constexpr (centered)
        v[i] = fmaf((v[i] - mean) * rstd, w[i], b[i]);
      else
        v[i] = v[i] * rstd * w[i];
    }
    y.store(v, 0, c, n);
  });
}

template <class T>
struct NormBackward {
  HeadRows<const T> dy, x, add;
  HeadRows<T> dx;
  Rows<const T> weight;
  const float *mean, *rstd;  // mean is null without one
  int64_t rows, cols;
};

template <bool centered, class T>
__global__ void __launch_bounds__(512) norm_backward(NormBackward<T> a) {
  const int64_t row = blockIdx.x;
  const Rows<const T> dy = a.dy.row(row), x = a.x.row(row);
  const float mean = centered ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float sum_g = 0, sum_gh = 0;
  each_of_row(a.cols, [&](int64_t c, int n) {
    float d[kChunk], v[kChunk], w[kChunk];
    dy.load(0, c, n, d);
    x.load(0, c, n, v);
    a.weight.load(0, c, n, w);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const float g = d[i] * w[i];  // 0 beyond the row
      if constexpr (centered) sum_g += g;
      sum_gh = fmaf(g, (v[i] - mean) * rstd, sum_gh);
    }
  });
  const float mean_g = centered ? block_sum(sum_g) / float(a.cols) : 0.0f;
  const float mean_gh = block_sum(sum_gh) / float(a.cols);
  each_of_row(a.cols, [&](int64_t c, int n) {
    float d[kChunk], v[kChunk], w[kChunk], other[kChunk] = {};
    dy.load(0, c, n, d);
    x.load(0, c, n, v);
    a.weight.load(0, c, n, w);
    if (a.add.data) a.add.row(row).load(0, c, n, other);
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const float h = (v[i] - mean) * rstd;
      d[i] = fmaf(rstd, fmaf(-h, mean_gh, fmaf(d[i], w[i], -mean_g)), other[i]);
    }
    a.dx.row(row).store(d, 0, c, n);
  });
}

// dweight of some columns, and with a mean dbias.
template <bool centered, class T, int width>
struct NormColumns {
  static constexpr int kWidth = width, kSums = centered ? 2 : 1, kAtOnce = 4;
  HeadRows<const T> dy, x;
  const float *mean, *rstd;

  struct Row {
    Piece<T, width> dy, x;
    float mean, rstd;
  };
  struct Walk {
    RowWalk<T, 2> rows;
    const float *mean, *rstd;
    __device__ __forceinline__ Walk(const NormColumns& f, int64_t row, int64_t c)
        : rows({f.dy, f.x}, row, c), mean(centered ? f.mean + row : nullptr), rstd(f.rstd + row) {}
    __device__ __forceinline__ Row next() {
      const T* at[2];
      rows.next(at);
      Row r{Piece<T, width>::load(at[0]), Piece<T, width>::load(at[1]), 0.0f, *rstd};
      if constexpr (centered) r.mean = *mean, mean += kRowStride;
      rstd += kRowStride;
      return r;
    }
  };
  static __device__ __forceinline__ void add(const Row& r, float (&s)[kSums][width]) {
#pragma unroll
    for (int i = 0; i < width; i++) {
      const float d = widen(r.dy.t[i]);
      s[0][i] = fmaf(d, (widen(r.x.t[i]) - r.mean) * r.rstd, s[0][i]);
      if constexpr (centered) s[1][i] += d;
    }
  }
};

template <class Args>
inline constexpr bool kCentered = requires(const Args& a) {
  a.mean;
};

template <class Args>
void launch_forward(const Args& a, cudaStream_t stream) {
  by_type(a.x.dtype, [&]<class T>(T) {
    constexpr bool centered = kCentered<Args>;
    NormForward<T> f{head_rows_of<const T>(a.x),
                     head_rows_of<T>(a.y),
                     flat_of<const T>(a.weight),
                     {},
                     nullptr,
                     a.rstd.template as<float>(),
                     a.weight.numel(),
                     a.eps};
    if constexpr (centered) f.bias = flat_of<const T>(a.bias), f.mean = a.mean.template as<float>();
    run_blocks(norm_forward<centered, T>, a.rstd.numel(), row_threads(f.cols), 0, stream, f);
  });
}

template <class Args>
void launch_backward(const Args& a, const Tensor& scratch, cudaStream_t stream) {
  by_type(a.x.dtype, [&]<class T>(T) {
    constexpr bool centered = kCentered<Args>;
    NormBackward<T> b{head_rows_of<const T>(a.dy),
                      head_rows_of<const T>(a.x),
                      head_rows_of<const T>(a.add),
                      head_rows_of<T>(a.dx),
                      flat_of<const T>(a.weight),
                      nullptr,
                      a.rstd.template as<float>(),
                      a.rstd.numel(),
                      a.weight.numel()};
    if constexpr (centered) b.mean = a.mean.template as<float>();
    const RowBlocks blocks(b.rows, b.cols);
    float* partial = reinterpret_cast<float*>(scratch.data);
    run_sum_down<T>(b.dy.whole && b.x.whole, std::max(b.dy.stride, b.x.stride), b.rows, b.cols, partial,
                    stream, [&]<int width>(std::integral_constant<int, width>) {
                      return NormColumns<centered, T, width>{b.dy, b.x, b.mean, b.rstd};
                    });
    const PartialRows sums{partial, blocks.blocks, blocks.padded * (centered ? 2 : 1), blocks.padded, false};
    if constexpr (centered)
      add_partials(sums, a.dweight, a.dbias, stream);
    else
      add_partials(sums, a.dweight, {}, stream);
    run_blocks(norm_backward<centered, T>, b.rows, row_threads(b.cols), 0, stream, b);
  });
}

}  // namespace

void cuda_launch(const LayerNormArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  launch_forward(a, stream);
}
void cuda_launch(const RmsNormArgs& a, const Tensor&, CudaContext&, cudaStream_t stream) {
  launch_forward(a, stream);
}
void cuda_launch(const LayerNormBackwardArgs& a, const Tensor& scratch, CudaContext&, cudaStream_t stream) {
  launch_backward(a, scratch, stream);
}
void cuda_launch(const RmsNormBackwardArgs& a, const Tensor& scratch, CudaContext&, cudaStream_t stream) {
  launch_backward(a, scratch, stream);
}

}  // namespace trireme::cuda
