// FlashAttention-2 (2307.08691) without tensor cores: any type, any head size, forward and backward.
//
//   forward   S = scale Q K^T; m' = max(m, rowmax S); P = e^(S - m'); l' = e^(m - m') l + rowsum P;
//             O <- e^(m - m') O + P V;   in the end O / l and L = m + log l
//   backward  D = rowsum(dO o O); P = e^(S - L); dS = P o (dO V^T - D);
//             dV = P^T dO, dK = scale dS^T Q (one block a key block, all heads that share it in order);
//             dQ = scale dS K (one block a query block, scores recomputed)
//
// A tile is R rows of q against R keys, R at most 32 and so that the tile fits the block's shared memory; 8
// neighbouring threads own a row of it. Everything in the tile is f32 (f64 for f64), probabilities too. A
// tile's bytes from memory: R (D + DV) elements for 2 R^2 (D + DV) FLOPs. Every sum is one chain in ascending
// key (query) order, in a thread of its own, but for rows' sums of P over 8 threads by a fixed tree: no
// atomics, the same bits every time. Three products of five are computed twice in the backward pass: that is
// what dQ costs without atomics.
#pragma once
#include "device/cuda/attention_problem.cuh"

namespace trireme::cuda {

inline constexpr int kSimtRowThreads = 8;

// Elements of shared memory, of a tile of r rows.
__host__ __device__ inline int64_t forward_tile(int r, int dim, int v_dim) {
  return int64_t(r) * (2 * (dim + 1) + v_dim + (v_dim + 1) + (r + 1));
}
__host__ __device__ inline int64_t key_gradient_tile(int r, int dim, int v_dim) {
  return int64_t(r) * (3 * (dim + 1) + 3 * (v_dim + 1) + 2 * (r + 1) + 2);
}
__host__ __device__ inline int64_t query_gradient_tile(int r, int dim, int v_dim) {
  return int64_t(r) * (3 * (dim + 1) + 2 * (v_dim + 1) + (r + 1) + 2);
}

// Rows [row, row + n) of head h into shared rows `stride` apart, widened; the rest of r rows is 0.
template <class T, class Acc>
__device__ void load_rows(Acc* to, int stride, const AttentionRows<const T>& from, int b, int64_t row, int h,
                          int n, int r, int columns) {
  const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  for (int i = int(threadIdx.x) / 32; i < r; i += warps) {
    const T* x = from.at(b, row + i, h);
    for (int c = lane; c < columns; c += 32) to[i * stride + c] = i < n ? widen_to<Acc>(x[c]) : Acc(0);
  }
}

template <class Acc>
__device__ Acc dot(const Acc* a, const Acc* b, int n) {
  Acc sum = 0;
  for (int i = 0; i < n; i++) sum = fma_of(a[i], b[i], sum);
  return sum;
}

// Over the 8 threads of a row.
template <class Acc>
__device__ Acc row_max(Acc x) {
  for (int step = kSimtRowThreads / 2; step > 0; step /= 2) {
    const Acc other = __shfl_xor_sync(0xffffffffu, x, step);
    x = other > x ? other : x;
  }
  return x;
}
template <class Acc>
__device__ Acc row_sum(Acc x) {
  for (int step = kSimtRowThreads / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Block (query block, head, sequence) of kSimtRowThreads r threads. Late query blocks, which see the most
// keys, come first.
template <class T, class Acc>
__global__ void attention_forward_simt(AttentionProblem<T, Acc> p, int r) {
  const int b = int(blockIdx.z), h = int(blockIdx.y), kv = p.kv_head(h);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * r, rows = p.seq - q0 < r ? p.seq - q0 : r;
  const int row = int(threadIdx.x) / kSimtRowThreads, lane = int(threadIdx.x) % kSimtRowThreads;
  const int dim = p.dim, v_dim = p.v_dim;
  Acc* q = dynamic_shared<Acc>();
  Acc* k = q + r * (dim + 1);
  Acc* v = k + r * (dim + 1);
  Acc* o = v + r * v_dim;
  Acc* prob = o + r * (v_dim + 1);
  Acc *own_o = o + row * (v_dim + 1), *own_p = prob + row * (r + 1);
  const bool mine = row < rows;

  load_rows(q, dim + 1, p.q, b, q0, h, rows, r, dim);
  Acc most = Acc(kNoScore), sum = 0;
  if (p.accumulate && mine) {  // m = L, l = 1, O as it is
    const Acc before = *p.lse_at(b, h, q0 + row);
    if (before != -infinity<Acc>()) most = before, sum = 1;
  }
  for (int d = lane; d < v_dim; d += kSimtRowThreads)
    own_o[d] = sum > 0 ? static_cast<const Acc*>(p.out.data)[p.out.at(b, q0 + row, h) + d] : Acc(0);
  const int begin = mine ? p.begin_of(b, q0 + row) : 0, end = mine ? p.end_of(q0 + row) : 0;

  const int last = p.end_of(q0 + rows - 1);
  for (int k0 = p.begin_of_rows(b, q0, rows) / r * r; k0 < last; k0 += r) {
    const int kn = p.keys - k0 < r ? p.keys - k0 : r;
    __syncthreads();  // the block before is used up
    load_rows(k, dim + 1, p.k, b, k0, kv, kn, r, dim);
    load_rows(v, v_dim, p.v, b, k0, kv, kn, r, v_dim);
    __syncthreads();
    Acc largest = -infinity<Acc>();
    for (int c = lane; c < r; c += kSimtRowThreads) {
      const bool seen = k0 + c >= begin && k0 + c < end;
      const Acc s = seen ? p.scale * dot(q + row * (dim + 1), k + c * (dim + 1), dim) : -infinity<Acc>();
      own_p[c] = s;
      largest = s > largest ? s : largest;
    }
    largest = row_max(largest);
    const Acc now = largest > most ? largest : most, keep = exp_of(most - now);
    Acc added = 0;
    for (int c = lane; c < r; c += kSimtRowThreads) {
      Acc x = exp_of(own_p[c] - now);
      added += x;
      if (p.mask.on) x *= p.mask.template factor<Acc>(b, h, q0 + row, k0 + c);
      own_p[c] = x;
    }
    sum = sum * keep + row_sum(added);
    most = now;
    __syncwarp();  // a row's threads are of one warp
    for (int d = lane; d < v_dim; d += kSimtRowThreads) {
      Acc x = own_o[d] * keep;
      for (int c = 0; c < kn; c++) x = fma_of(own_p[c], v[c * v_dim + d], x);
      own_o[d] = x;
    }
  }
  if (!mine) return;
  const Acc inverse = sum > 0 ? 1 / sum : Acc(0);
  const int64_t at = p.out.at(b, q0 + row, h);
  for (int d = lane; d < v_dim; d += kSimtRowThreads) p.out.put(at + d, own_o[d] * inverse);
  if (lane == 0) *p.lse_at(b, h, q0 + row) = sum > 0 ? most + log_of(sum) : -infinity<Acc>();
}

// delta[b,h,i] = dO_i . O_i, a warp a row.
template <class T, class Acc>
__global__ void attention_delta(AttentionProblem<T, Acc> p) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= int64_t(p.batch) * p.heads * p.seq) return;
  const int i = int(row % p.seq), h = int(row / p.seq % p.heads), b = int(row / p.seq / p.heads);
  const T *o = p.o.at(b, i, h), *dout = p.dout.at(b, i, h);
  Acc sum = 0;
  for (int d = lane; d < p.v_dim; d += 32) sum = fma_of(widen_to<Acc>(o[d]), widen_to<Acc>(dout[d]), sum);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) p.delta[row] = sum;
}

// L and D of rows [q0, q0 + n); rows behind them see nothing.
template <class T, class Acc>
__device__ void load_statistics(const AttentionProblem<T, Acc>& p, int b, int h, int q0, int n, int r,
                                Acc* lse, Acc* delta) {
  for (int i = int(threadIdx.x); i < r; i += int(blockDim.x)) {
    const Acc l = i < n ? *p.lse_at(b, h, q0 + i) : -infinity<Acc>();
    lse[i] = l == -infinity<Acc>() ? Acc(kSeesNothing) : l;
    delta[i] = i < n ? p.delta[p.delta_at(b, h, q0 + i)] : Acc(0);
  }
}

template <class Acc>
struct Gradients {
  Acc p, ds;  // probability as dropped out; gradient of the score, not yet times scale
};
// Of row i and key j, whose vectors lie in shared memory.
template <class T, class Acc>
__device__ Gradients<Acc> gradients_of(const AttentionProblem<T, Acc>& p, int b, int h, int i, int j,
                                       const Acc* q, const Acc* k, const Acc* dout, const Acc* v, Acc lse,
                                       Acc delta) {
  if (i >= p.seq || j < p.begin_of(b, i) || j >= p.end_of(i)) return {0, 0};
  const Acc prob = exp_of(p.scale * dot(q, k, p.dim) - lse);
  const Acc factor = p.mask.on ? p.mask.template factor<Acc>(b, h, i, j) : Acc(1);
  return {prob * factor, prob * (factor * dot(dout, v, p.v_dim) - delta)};
}

// dK, dV: block (key block, kv head, sequence).
template <class T, class Acc>
__global__ void attention_key_gradients_simt(AttentionProblem<T, Acc> p, int r) {
  const int b = int(blockIdx.z), kv = int(blockIdx.y), group = p.heads / p.kv_heads;
  const int k0 = int(blockIdx.x) * r, kn = p.keys - k0 < r ? p.keys - k0 : r;
  const int row = int(threadIdx.x) / kSimtRowThreads, lane = int(threadIdx.x) % kSimtRowThreads;
  const int dim = p.dim, v_dim = p.v_dim;
  Acc* k = dynamic_shared<Acc>();
  Acc* q = k + r * (dim + 1);
  Acc* dk = q + r * (dim + 1);
  Acc* v = dk + r * (dim + 1);
  Acc* dout = v + r * (v_dim + 1);
  Acc* dv = dout + r * (v_dim + 1);
  Acc* prob = dv + r * (v_dim + 1);  // [query][key]
  Acc* ds = prob + r * (r + 1);
  Acc* lse = ds + r * (r + 1);
  Acc* delta = lse + r;

  load_rows(k, dim + 1, p.k, b, k0, kv, kn, r, dim);
  load_rows(v, v_dim + 1, p.v, b, k0, kv, kn, r, v_dim);
  for (int d = lane; d < dim; d += kSimtRowThreads) dk[row * (dim + 1) + d] = 0;
  for (int d = lane; d < v_dim; d += kSimtRowThreads) dv[row * (v_dim + 1) + d] = 0;
  for (int h = kv * group; h < (kv + 1) * group; h++)
    for (int q0 = p.first_row(k0) / r * r; q0 < p.seq; q0 += r) {
      const int rows = p.seq - q0 < r ? p.seq - q0 : r;
      if (p.begin_of_rows(b, q0, rows) >= k0 + kn) continue;  // documents begin behind these keys
      __syncthreads();
      load_rows(q, dim + 1, p.q, b, q0, h, rows, r, dim);
      load_rows(dout, v_dim + 1, p.dout, b, q0, h, rows, r, v_dim);
      load_statistics(p, b, h, q0, rows, r, lse, delta);
      __syncthreads();
      for (int c = lane; c < r; c += kSimtRowThreads) {
        const auto g = gradients_of(p, b, h, q0 + row, k0 + c, q + row * (dim + 1), k + c * (dim + 1),
                                    dout + row * (v_dim + 1), v + c * (v_dim + 1), lse[row], delta[row]);
        prob[row * (r + 1) + c] = g.p, ds[row * (r + 1) + c] = g.ds;
      }
      __syncthreads();  // from here on `row` is a key
      for (int d = lane; d < v_dim; d += kSimtRowThreads) {
        Acc x = dv[row * (v_dim + 1) + d];
        for (int i = 0; i < rows; i++) x = fma_of(prob[i * (r + 1) + row], dout[i * (v_dim + 1) + d], x);
        dv[row * (v_dim + 1) + d] = x;
      }
      for (int d = lane; d < dim; d += kSimtRowThreads) {
        Acc x = dk[row * (dim + 1) + d];
        for (int i = 0; i < rows; i++) x = fma_of(ds[i * (r + 1) + row], q[i * (dim + 1) + d], x);
        dk[row * (dim + 1) + d] = x;
      }
    }
  if (row >= kn) return;
  const int64_t dk_at = p.dk.at(b, k0 + row, kv), dv_at = p.dv.at(b, k0 + row, kv);
  for (int d = lane; d < dim; d += kSimtRowThreads) p.dk.put(dk_at + d, p.scale * dk[row * (dim + 1) + d]);
  for (int d = lane; d < v_dim; d += kSimtRowThreads) p.dv.put(dv_at + d, dv[row * (v_dim + 1) + d]);
}

// dQ: block (query block, head, sequence).
template <class T, class Acc>
__global__ void attention_query_gradient_simt(AttentionProblem<T, Acc> p, int r) {
  const int b = int(blockIdx.z), h = int(blockIdx.y), kv = p.kv_head(h);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * r, rows = p.seq - q0 < r ? p.seq - q0 : r;
  const int row = int(threadIdx.x) / kSimtRowThreads, lane = int(threadIdx.x) % kSimtRowThreads;
  const int dim = p.dim, v_dim = p.v_dim;
  Acc* q = dynamic_shared<Acc>();
  Acc* k = q + r * (dim + 1);
  Acc* dq = k + r * (dim + 1);
  Acc* dout = dq + r * (dim + 1);
  Acc* v = dout + r * (v_dim + 1);
  Acc* ds = v + r * (v_dim + 1);
  Acc* lse = ds + r * (r + 1);
  Acc* delta = lse + r;
  Acc *own = dq + row * (dim + 1), *own_ds = ds + row * (r + 1);

  load_rows(q, dim + 1, p.q, b, q0, h, rows, r, dim);
  load_rows(dout, v_dim + 1, p.dout, b, q0, h, rows, r, v_dim);
  load_statistics(p, b, h, q0, rows, r, lse, delta);
  for (int d = lane; d < dim; d += kSimtRowThreads) own[d] = 0;
  const int last = p.end_of(q0 + rows - 1);
  for (int k0 = p.begin_of_rows(b, q0, rows) / r * r; k0 < last; k0 += r) {
    const int kn = p.keys - k0 < r ? p.keys - k0 : r;
    __syncthreads();
    load_rows(k, dim + 1, p.k, b, k0, kv, kn, r, dim);
    load_rows(v, v_dim + 1, p.v, b, k0, kv, kn, r, v_dim);
    __syncthreads();
    for (int c = lane; c < r; c += kSimtRowThreads)
      own_ds[c] = gradients_of(p, b, h, q0 + row, k0 + c, q + row * (dim + 1), k + c * (dim + 1),
                               dout + row * (v_dim + 1), v + c * (v_dim + 1), lse[row], delta[row])
                      .ds;
    __syncwarp();
    for (int d = lane; d < dim; d += kSimtRowThreads) {
      Acc x = own[d];
      for (int c = 0; c < kn; c++) x = fma_of(own_ds[c], k[c * (dim + 1) + d], x);
      own[d] = x;
    }
  }
  if (row >= rows) return;
  const int64_t at = p.dq.at(b, q0 + row, h);
  for (int d = lane; d < dim; d += kSimtRowThreads) p.dq.put(at + d, p.scale * own[d]);
}

}  // namespace trireme::cuda
