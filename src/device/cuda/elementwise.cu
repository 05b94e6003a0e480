// Add, cast, zero and dropout. A thread takes eight elements, f32 between load and store, one rounding;
// traffic is the operands'. Add and cast look their types up at run time: 9 and 27 kernels would differ in a
// conversion.
//
// dropout: y = x / (1 - rate) where the mask keeps it, else 0 (+ residual): a product and a sum, not fused,
// as on the CPU; elements are numbered as dropout_mask.h says and drawn four at a time.
#include "device/cuda/dropout.cuh"
#include "device/cuda/strided.cuh"
#include "device/cuda/values.cuh"

namespace trireme::cuda {
namespace {

// A row of elements of a type known at run time.
struct AnyRow {
  void* data = nullptr;
  DType type = DType::f32;
  bool whole = false;

  AnyRow() = default;
  explicit AnyRow(const Tensor& t) : data(t.data), type(t.dtype), whole(aligned16(t.data, 0)) {}
  template <class T>
  __device__ __forceinline__ Rows<T> as(int64_t from) const {
    return {static_cast<T*>(data) + from, 0, whole};
  }
  // From element `from` on, which must be a multiple of 8 where whole.
  __device__ __forceinline__ void load(int64_t from, int n, float (&v)[kChunk]) const {
    switch (type) {
      case DType::f32:
        return as<float>(from).load(0, 0, n, v);
      case DType::bf16:
        return as<bf16>(from).load(0, 0, n, v);
      default:
        return as<f16>(from).load(0, 0, n, v);
    }
  }
  __device__ __forceinline__ void store(const float (&v)[kChunk], int64_t from, int n) const {
    switch (type) {
      case DType::f32:
        return as<float>(from).store(v, 0, 0, n);
      case DType::bf16:
        return as<bf16>(from).store(v, 0, 0, n);
      default:
        return as<f16>(from).store(v, 0, 0, n);
    }
  }
};

struct AddChunk {
  AnyRow a, b, y;
  __device__ void operator()(int64_t, int64_t c, int n) const {
    float v[kChunk], w[kChunk];
    a.load(c, n, v);
    b.load(c, n, w);
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = v[i] + w[i];
    y.store(v, c, n);
  }
};

// Rows lie at any places: row r of src at from.at(r), of dst at to.at(r).
struct CastChunk {
  AnyRow src, dst;
  StridedPlaces from, to;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float v[kChunk];
    src.load(from.at(row) + c, n, v);
    dst.store(v, to.at(row) + c, n);
  }
};

template <class T>
struct DropoutChunk {
  Rows<const T> x, residual;
  Rows<T> y;
  Dropout drop;
  int64_t first, seq, part, columns;  // seq = 0: elements are numbered as they lie
  PositionRuns rows;

  // Number of element c of row `row`.
  __device__ __forceinline__ uint64_t number(int64_t row, int64_t c) const {
    if (seq == 0) return uint64_t(first + row * columns + c);
    const int64_t r = rows.first + row;
    const PositionRuns of_sequence{rows.length, rows.begin, rows.step};
    return uint64_t(first + (r / part * seq + place_of(of_sequence, r % part)) * columns + c);
  }
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    float v[kChunk], other[kChunk];
    x.load(row, c, n, v);
    const unsigned keep = drop.keeps8(number(row, c));
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = keep >> i & 1 ? v[i] * drop.scale : 0.0f;
    if (residual.data) {
      residual.load(row, c, n, other);
#pragma unroll
      for (int i = 0; i < kChunk; i++) v[i] = v[i] + other[i];
    }
    y.store(v, row, c, n);
  }
};

}  // namespace

void cuda_launch(const AddArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  each_chunk(1, p.a.numel(), stream, AddChunk{AnyRow(p.a), AnyRow(p.b), AnyRow(p.y)});
}

void cuda_launch(const CastArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  if (p.src.numel() == 0) return;
  const bool dense = p.src.contiguous() && p.dst.contiguous();
  if (p.src.dtype == p.dst.dtype) {
    Tensor src = p.src;  // of as many elements, perhaps of another shape
    if (dense) src = p.src.view(p.dst.shape);
    return copy_strided(p.dst, src, stream);
  }
  AnyRow src(p.src), dst(p.dst);
  if (dense)
    return each_chunk(1, p.src.numel(), stream,
                      CastChunk{src, dst, StridedPlaces(p.src), StridedPlaces(p.dst)});
  const int last = p.src.shape.rank - 1;
  const int64_t cols = p.src.shape[last];
  src.whole = dst.whole = false;  // rows begin anywhere
  each_chunk(p.src.numel() / cols, cols, stream,
             CastChunk{src, dst, StridedPlaces(p.src, last), StridedPlaces(p.dst, last)});
}

void cuda_launch(const ZeroArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  set_bytes(p.y.data, 0, p.y.bytes(), stream);
}

void cuda_launch(const DropoutArgs& p, const Tensor&, CudaContext&, cudaStream_t stream) {
  by_type(p.x.dtype, [&]<class T>(T) {
    const DropoutMask& m = p.mask;
    DropoutChunk<T> f{flat_of<const T>(p.x),
                      flat_of<const T>(p.residual),
                      flat_of<T>(p.y),
                      Dropout(m),
                      m.first,
                      m.seq,
                      m.part,
                      p.x.numel(),
                      m.rows};
    if (m.seq == 0) return each_chunk(1, p.x.numel(), stream, f);
    f.columns = p.x.shape[1];
    for (Rows<const T>* r : {&f.x, &f.residual})
      if (r->data) r->stride = f.columns, r->whole = aligned16(r->data, f.columns * int64_t(sizeof(T)));
    f.y.stride = f.columns, f.y.whole = aligned16(f.y.data, f.columns * int64_t(sizeof(T)));
    each_chunk(p.x.shape[0], f.columns, stream, f);
  });
}

}  // namespace trireme::cuda
