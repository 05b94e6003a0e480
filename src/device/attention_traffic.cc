#include "device/attention_traffic.h"

#include <algorithm>

namespace trireme {
namespace {

struct Sizes {
  int64_t heads, kv_heads, rows, keys, dim, v_dim;  // heads of all sequences together
};
Sizes sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {q.shape[0] * q.shape[2], k.shape[0] * k.shape[2], q.shape[1], k.shape[1], q.shape[3], v.shape[3]};
}

int64_t blocks(int64_t rows, int64_t block) {
  return (rows + block - 1) / block;
}

// Keys loaded by the query blocks of one head: block i ends at row e = min(N, (i+1) bq) and, when causal,
// loads the keys below e + offset; whole blocks of it before the last, and the last one up to the diagonal.
template <class Args>
int64_t keys_per_query_blocks(const Args& p, int64_t bq) {
  const int64_t n = p.q.shape[1], keys = p.k.shape[1], t = blocks(n, bq);
  if (!p.causal) return t * keys;
  if (keys == n && p.offset == 0) return bq * t * (t - 1) / 2 + n;  // ends at bq, 2 bq, ...; the last at n
  int64_t sum = 0;
  for (int64_t i = 0; i < t; i++) sum += std::clamp<int64_t>(std::min(n, (i + 1) * bq) + p.offset, 0, keys);
  return sum;
}

// Rows of the query blocks that see keys from k0 on: all N, or, when causal, those from the block of row
// k0 - offset on, if there is such a row.
template <class Args>
int64_t rows_from(const Args& p, int64_t k0, AttentionBlocks b) {
  const int64_t n = p.q.shape[1], first = p.causal ? std::max<int64_t>(0, k0 - p.offset) : 0;
  return first >= n ? 0 : n - first / b.q * b.q;
}

// Query rows that meet key block j, summed over j.
template <class Args>
int64_t rows_per_key_blocks(const Args& p, AttentionBlocks b) {
  const int64_t t = blocks(p.k.shape[1], b.k);
  int64_t sum = 0;
  for (int64_t j = 0; j < t; j++) sum += rows_from(p, j * b.k, b);
  return sum;
}

}  // namespace

TileTraffic flash_traffic(const AttentionArgs& p, AttentionBlocks b) {
  Sizes s = sizes(p.q, p.k, p.v);
  TileTraffic t;
  if (p.version == FlashVersion::fa1) {
    int64_t rows = rows_per_key_blocks(p, b);
    t.loads = (s.rows + rows) * (s.dim + s.v_dim);  // k, v once; q, o each time
    t.stores = rows * s.v_dim;                      // o each time
    t.row_loads = 2 * rows;                         // m, l
    t.row_stores = 2 * rows + s.rows;               // m, l; in the end the logsumexp
  } else {
    t.loads = s.rows * s.dim + keys_per_query_blocks(p, b.q) * (s.dim + s.v_dim);
    t.stores = s.rows * s.v_dim;
    t.row_stores = s.rows;
    if (p.accumulate) t.loads += s.rows * s.v_dim, t.row_loads += s.rows;  // o, logsumexp so far
  }
  t.loads *= s.heads, t.stores *= s.heads, t.row_loads *= s.heads, t.row_stores *= s.heads;
  return t;
}

TileTraffic flash_traffic(const AttentionBackwardArgs& p, AttentionBlocks b) {
  Sizes s = sizes(p.q, p.k, p.v);
  int64_t rows = rows_per_key_blocks(p, b), both = s.dim + s.v_dim, kd = s.keys * both;
  // Rows that the first key block meets, whose sums begin there.
  int64_t met = s.keys == 0 ? 0 : rows_from(p, 0, b);
  TileTraffic t;
  t.loads = 2 * s.rows * s.v_dim                // o, dout for D = rowsum(dout o)
            + kd                                // k, v once
            + rows * both                       // q, dout each time
            + (rows - met) * s.dim;             // dq each time but the first
  if (p.accumulate) t.loads += s.rows * s.dim;  // dq so far
  t.stores = rows * s.dim + kd;                 // dq each time; dk, dv once
  t.row_loads = 2 * rows;                       // logsumexp, D
  t.row_stores = s.rows;                        // D
  t.loads *= s.heads, t.stores *= s.heads, t.row_loads *= s.heads, t.row_stores *= s.heads;
  t.loads += kd * (s.heads - s.kv_heads);  // heads that share k, v go on from the sums of the one before
  if (p.accumulate) t.loads += kd * s.kv_heads;  // dk, dv so far
  return t;
}

TileTraffic standard_traffic(const AttentionArgs& p) {
  Sizes s = sizes(p.q, p.k, p.v);
  int64_t nd = s.rows * s.dim, nv = s.rows * s.v_dim, nn = s.rows * s.rows;
  TileTraffic t;
  t.loads = s.heads * (2 * nd + nn + nn + nv);
  t.stores = s.heads * (nn + nn + nv);
  return t;
}

TileTraffic standard_traffic(const AttentionBackwardArgs& p) {
  Sizes s = sizes(p.q, p.k, p.v);
  int64_t nd = s.rows * s.dim, nv = s.rows * s.v_dim, nn = s.rows * s.rows;
  TileTraffic t;
  t.loads = s.heads * ((nn + nv) + 2 * nv + 2 * nn + 2 * (nn + nd));
  t.stores = s.heads * (nv + 2 * nn + 2 * nd);
  return t;
}

}  // namespace trireme
