// Closed forms of the elements that attention moves between large and tile memory (TileTraffic in ops.h):
// what the kernels' counters must equal, and standard attention to hold them against (2205.14135 section 3,
// 2307.08691).
#pragma once
#include "device/ops.h"

namespace trireme {

struct AttentionBlocks {
  int64_t q = 0, k = 0;  // rows of a block of queries, of keys and values; the last of each may be shorter
};

// Tiled attention in the loop order of args.version, parts of a longer one included (documents without:
// what they skip is data). Per head, with N rows of d elements and causal blocks skipped:
//   FA1 (outer loop over keys):     loads 2Nd + 2d R, stores d R, R = rows of all (query block, key block)
//   pairs; FA2 (outer loop over queries):  loads  Nd + 2d C, stores Nd,  C = keys seen by each query block,
//   summed.
TileTraffic flash_traffic(const AttentionArgs&, AttentionBlocks);
TileTraffic flash_traffic(const AttentionBackwardArgs&, AttentionBlocks);

// Attention with S and P written out whole, N x N per head: Q, K read, S written; S read, P written; P, V
// read, O written. Masks save nothing: the matrices are whole. Backward: P, dO read, dV written; dO, V read,
// dP written; P, dP read, dS written; dS, K read, dQ written; dS, Q read, dK written.
TileTraffic standard_traffic(const AttentionArgs&);
TileTraffic standard_traffic(const AttentionBackwardArgs&);

}  // namespace trireme
