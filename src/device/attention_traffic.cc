#include "device/attention_traffic.h"

#include <algorithm>

namespace trireme {
namespace {

struct Sizes {
  int64_t heads, kv_heads, rows, dim;  // heads of all sequences together
};
Sizes sizes(const Tensor& q, const Tensor& k) {
  return {q.shape[0] * q.shape[2], k.shape[0] * k.shape[2], q.shape[1], q.shape[3]};
}

int64_t blocks(int64_t rows, int64_t block) {
  return (rows + block - 1) / block;
}

// Keys loaded by the query blocks of one head: block i ends at row e = min(N, (i+1) bq) and, when causal,
// loads the keys below e; whole blocks of it before the last, and the last one up to the diagonal.
int64_t keys_per_query_blocks(int64_t n, int64_t bq, bool causal) {
  int64_t t = blocks(n, bq);
  if (!causal) return t * n;
  return bq * t * (t - 1) / 2 + n;  // the blocks before the last end at bq, 2 bq, ...; the last at n
}

// Query rows that meet key block j, summed over j: all N, or, when causal, those from the block of row j bk
// on.
int64_t rows_per_key_blocks(int64_t n, int64_t bq, int64_t bk, bool causal) {
  int64_t t = blocks(n, bk), sum = t * n;
  if (causal)
    for (int64_t j = 0; j < t; j++) sum -= j * bk / bq * bq;
  return sum;
}

}  // namespace

TileTraffic flash_traffic(const AttentionArgs& p, AttentionBlocks b) {
  Sizes s = sizes(p.q, p.k);
  TileTraffic t;
  if (p.version == FlashVersion::fa1) {
    int64_t rows = rows_per_key_blocks(s.rows, b.q, b.k, p.causal);
    t.loads = 2 * s.rows * s.dim + 2 * rows * s.dim;  // k, v once; q, o each time
    t.stores = rows * s.dim;                          // o each time
    t.row_loads = 2 * rows;                           // m, l
    t.row_stores = 2 * rows + s.rows;                 // m, l; in the end the logsumexp
  } else {
    t.loads = s.rows * s.dim + 2 * keys_per_query_blocks(s.rows, b.q, p.causal) * s.dim;
    t.stores = s.rows * s.dim;
    t.row_stores = s.rows;
  }
  t.loads *= s.heads, t.stores *= s.heads, t.row_loads *= s.heads, t.row_stores *= s.heads;
  return t;
}

TileTraffic flash_traffic(const AttentionBackwardArgs& p, AttentionBlocks b) {
  Sizes s = sizes(p.q, p.k);
  int64_t rows = rows_per_key_blocks(s.rows, b.q, b.k, p.causal), nd = s.rows * s.dim;
  TileTraffic t;
  t.loads = 2 * nd                   // o, dout for D = rowsum(dout o)
            + 2 * nd                 // k, v once
            + 2 * rows * s.dim       // q, dout each time
            + rows * s.dim - nd;     // dq each time but the first
  t.stores = rows * s.dim + 2 * nd;  // dq each time; dk, dv once
  t.row_loads = 2 * rows;            // logsumexp, D
  t.row_stores = s.rows;             // D
  t.loads *= s.heads, t.stores *= s.heads, t.row_loads *= s.heads, t.row_stores *= s.heads;
  t.loads += 2 * nd * (s.heads - s.kv_heads);  // heads that share k, v go on from the sums of the one before
  return t;
}

TileTraffic standard_traffic(const AttentionArgs& p) {
  Sizes s = sizes(p.q, p.k);
  int64_t nd = s.rows * s.dim, nn = s.rows * s.rows;
  TileTraffic t;
  t.loads = s.heads * (2 * nd + nn + nn + nd);
  t.stores = s.heads * (nn + nn + nd);
  return t;
}

TileTraffic standard_traffic(const AttentionBackwardArgs& p) {
  Sizes s = sizes(p.q, p.k);
  int64_t nd = s.rows * s.dim, nn = s.rows * s.rows;
  TileTraffic t;
  t.loads = s.heads * ((nn + nd) + 2 * nd + 2 * nn + 2 * (nn + nd));
  t.stores = s.heads * (nd + 2 * nn + 2 * nd);
  return t;
}

}  // namespace trireme
