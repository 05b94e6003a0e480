// How a thread's scratch of the cached attention is laid out, in f32:
// scores [group, keys] | queries [group, dim] | sums [group, v_dim] | 1 / sum of each query.
#pragma once
#include "device/cpu/launch.h"

namespace trireme::cpu {

struct CachedScratch {
  CachedScratch(const CachedAttentionArgs&, const Context&);
  static int64_t up(int64_t n) { return (n + 15) / 16 * 16; }  // whole vectors of every target
  // Queries of a kv head; padded: capacity of the cache, columns of q and k, of v and o.
  int64_t group, keys, dim, v_dim;
  int64_t pieces, floats;  // threads that may work at once; scratch of one
};

}  // namespace trireme::cpu
