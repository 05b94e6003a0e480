// How a thread's scratch of the cached attention is laid out, in f32:
// scores [group, keys] | queries [group, dim] | sums [group, dim] | 1 / sum of each query.
#pragma once
#include "device/cpu/launch.h"

namespace trireme::cpu {

struct CachedScratch {
  CachedScratch(const CachedAttentionArgs&, const Context&);
  static int64_t up(int64_t n) { return (n + 15) / 16 * 16; }  // whole vectors of every target
  int64_t group, keys, dim;  // queries of a kv head; padded capacity of the cache; padded head size
  int64_t pieces, floats;    // threads that may work at once; scratch of one
};

}  // namespace trireme::cpu
