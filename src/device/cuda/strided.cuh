// Where the elements of a tensor with any strides lie.
#pragma once
#include "device/cuda/gpu.cuh"

namespace trireme::cuda {

struct StridedPlaces {
  int rank = 0;
  int64_t dim[kMaxDims] = {}, stride[kMaxDims] = {};

  StridedPlaces() = default;
  // Of the first `dims` dims (all where it is negative); a contiguous tensor is one dim.
  explicit StridedPlaces(const Tensor& t, int dims = -1) : rank(dims < 0 ? t.shape.rank : dims) {
    if (dims < 0 && t.contiguous()) {
      rank = 1, dim[0] = t.numel(), stride[0] = 1;
      return;
    }
    for (int d = 0; d < rank; d++) dim[d] = t.shape[d], stride[d] = t.stride[size_t(d)];
  }

  // Offset in elements of element i, counted row by row.
  __device__ __forceinline__ int64_t at(int64_t i) const {
    if (rank == 1) return i * stride[0];
    int64_t offset = 0;
#pragma unroll
    for (int d = kMaxDims - 1; d >= 0; d--)
      if (d < rank) offset += i % dim[d] * stride[d], i /= dim[d];
    return offset;
  }
};

}  // namespace trireme::cuda
