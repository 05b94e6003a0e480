// What the attention kernels share: the problem in plain numbers, and who sees whom.
//
// q [B,S,H,D]; k [B,Sk,KV,D]; v [B,Sk,KV,DV]; o, dout [B,S,H,DV]; lse [B,H,S]: outer strides free, stride 1
// in the last dim. Row i of a sequence sees keys j with first[b,i] <= j and, when causal, j <= i + offset.
#pragma once
#include "device/cuda/dropout.cuh"
#include "device/cuda/numbers.cuh"
#include "device/ops.h"

namespace trireme::cuda {

// Rows of [B, rows, heads, columns]; strides in elements.
template <class T>
struct AttentionRows {
  T* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;

  __device__ T* at(int64_t b, int64_t i, int64_t h) const { return data + b * batch + i * row + h * head; }
};

// Where results go: T, or unrounded sums, to which `add` adds.
template <class T, class Acc>
struct AttentionSink {
  void* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;
  bool sums = false, add = false;

  __device__ int64_t at(int64_t b, int64_t i, int64_t h) const { return b * batch + i * row + h * head; }
  __device__ void put(int64_t index, Acc value) const {
    if (sums) {
      Acc* out = static_cast<Acc*>(data) + index;
      *out = (add ? *out : Acc(0)) + value;
    } else {
      static_cast<T*>(data)[index] = narrow_to<T>(value);
    }
  }
  // Of elements index and index + 1, both of a chunk of 16 bytes.
  __device__ void put_pair(int64_t index, float low, float high) const {
    if (sums) {
      put(index, low), put(index + 1, high);
    } else {
      T* out = static_cast<T*>(data) + index;
      *reinterpret_cast<uint32_t*>(out) = uint32_t(narrow<T>(low).bits) | uint32_t(narrow<T>(high).bits)
                                                                              << 16;
    }
  }
};

// DropoutMask for a kernel: probability (b, head, row, key) is numbered as AttentionArgs says.
struct ProbabilityMask {
  Dropout dropout;
  uint64_t first = 0, heads = 0, seq = 0;  // heads, seq: of whole sequences
  bool on = false;
  double scale = 1;  // of what is kept
  PositionRuns rows, keys;

  __device__ bool keeps(int64_t b, int64_t head, int64_t row, int64_t column) const {
    const uint64_t of_row = (uint64_t(b) * heads + uint64_t(head)) * seq + uint64_t(place_of(rows, row));
    return dropout.keeps(first + of_row * seq + uint64_t(place_of(keys, column)));
  }
  // What the probability is multiplied with.
  template <class Acc>
  __device__ Acc factor(int64_t b, int64_t head, int64_t row, int64_t column) const {
    return keeps(b, head, row, column) ? Acc(scale) : Acc(0);
  }
};

template <class T, class Acc>
struct AttentionProblem {
  AttentionRows<const T> q, k, v, o, dout;
  AttentionSink<T, Acc> out, dq, dk, dv;  // out: o of the forward pass
  Acc* lse = nullptr;
  int64_t lse_batch = 0, lse_head = 0;
  Acc* delta = nullptr;  // [B,H,S] of the backward pass: rowsum(dO o O)
  const int32_t* first = nullptr;
  int64_t offset = 0;
  int batch = 0, seq = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0, v_dim = 0;
  Acc scale = 1;
  bool causal = false, accumulate = false;
  ProbabilityMask mask;

  __device__ int kv_head(int head) const { return head / (heads / kv_heads); }
  __device__ Acc* lse_at(int b, int head, int64_t row) const {
    return lse + b * lse_batch + head * lse_head + row;
  }
  __device__ int64_t delta_at(int b, int head, int64_t row) const {
    return (int64_t(b) * heads + head) * seq + row;
  }
  // Row i sees keys [begin_of(b, i), end_of(i)).
  __device__ int begin_of(int b, int i) const { return first ? first[int64_t(b) * seq + i] : 0; }
  __device__ int end_of(int64_t i) const {
    const int64_t end = causal ? i + offset + 1 : keys;
    return int(end < 0 ? 0 : end > keys ? keys : end);
  }
  // The first key that one of the rows [row, row + n) sees, if any sees one.
  __device__ int begin_of_rows(int b, int row, int n) const {
    if (!first) return 0;
    int least = keys;
    for (int i = row; i < row + n; i++) least = begin_of(b, i) < least ? begin_of(b, i) : least;
    return least;
  }
  // The first row that may see keys from k0 on.
  __device__ int first_row(int k0) const {
    const int64_t row = causal ? k0 - offset : 0;
    return int(row < 0 ? 0 : row > seq ? seq : row);
  }
};

// A logsumexp that makes every probability of a row exactly 0, and a maximum that any score exceeds, from
// which a masked score, -inf, still differs by an infinity rather than by NaN.
inline constexpr float kSeesNothing = 1e30f, kNoScore = -1e30f;

template <class T>
AttentionRows<const T> attention_rows(const Tensor& t) {
  return {reinterpret_cast<const T*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
}
template <class T, class Acc>
AttentionSink<T, Acc> attention_sink(const Tensor& t, bool add) {
  return {t.data, t.stride[0], t.stride[1], t.stride[2], t.dtype == dtype_of<Acc>, add};
}
inline ProbabilityMask mask_of(const DropoutMask& m, int64_t heads, int64_t seq) {
  if (!m) return {};
  ProbabilityMask mask;
  mask.dropout = Dropout(m), mask.first = uint64_t(m.first), mask.on = true;
  mask.heads = uint64_t(m.heads ? m.heads : heads), mask.seq = uint64_t(m.seq ? m.seq : seq);
  mask.rows = m.rows, mask.keys = m.keys, mask.scale = m.scale();
  return mask;
}

// What both passes say alike.
template <class T, class Acc, class Args>
AttentionProblem<T, Acc> problem_of(const Args& a) {
  AttentionProblem<T, Acc> p;
  p.q = attention_rows<T>(a.q), p.k = attention_rows<T>(a.k), p.v = attention_rows<T>(a.v);
  p.lse = reinterpret_cast<Acc*>(a.lse.data), p.lse_batch = a.lse.stride[0], p.lse_head = a.lse.stride[1];
  p.first = a.first ? reinterpret_cast<const int32_t*>(a.first.data) : nullptr;
  p.offset = a.causal ? a.offset : 0;
  p.batch = int(a.q.shape[0]), p.seq = int(a.q.shape[1]), p.keys = int(a.k.shape[1]);
  p.heads = int(a.q.shape[2]), p.kv_heads = int(a.k.shape[2]);
  p.dim = int(a.q.shape[3]), p.v_dim = int(a.v.shape[3]);
  p.scale = Acc(a.scale), p.causal = a.causal, p.accumulate = a.accumulate;
  p.mask = mask_of(a.dropout, a.q.shape[2], a.q.shape[1]);
  return p;
}
template <class T, class Acc>
AttentionProblem<T, Acc> problem_of_forward(const AttentionArgs& a) {
  auto p = problem_of<T, Acc>(a);
  p.out = attention_sink<T, Acc>(a.o, false);  // accumulation rescales what is there, and is not an addition
  return p;
}
template <class T, class Acc>
AttentionProblem<T, Acc> problem_of_backward(const AttentionBackwardArgs& a, const Tensor& scratch) {
  auto p = problem_of<T, Acc>(a);
  p.o = attention_rows<T>(a.o), p.dout = attention_rows<T>(a.dout);
  p.dq = attention_sink<T, Acc>(a.dq, a.accumulate), p.dk = attention_sink<T, Acc>(a.dk, a.accumulate),
  p.dv = attention_sink<T, Acc>(a.dv, a.accumulate);
  p.delta = reinterpret_cast<Acc*>(scratch.data);
  return p;
}

}  // namespace trireme::cuda
