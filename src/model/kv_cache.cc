#include "model/kv_cache.h"

namespace trireme {

// In memory [slots, KV, capacity, D]: the rows that one head streams past lie one behind the other.
KvCache::KvCache(Arena& arena, const Sizes& s) : sizes_(s) {
  auto hold = [&](int64_t columns) {
    memory_.emplace_back(arena, Bucket::activations, Shape{s.slots, s.kv_heads, s.capacity, columns},
                         s.dtype);
    Tensor t = *memory_.back();
    std::swap(t.shape.dim[1], t.shape.dim[2]);
    std::swap(t.stride[1], t.stride[2]);
    return t;
  };
  for (int64_t b = 0; b < s.blocks; b++) {
    Tensor k = hold(s.head_dim);
    parts_.push_back({k, hold(s.v_head_dim)});
  }
}

void KvCache::begin(int64_t first, int64_t texts, bool fresh) {
  require(first >= 0 && texts > 0 && first + texts <= sizes_.slots, "a pass over slots the cache has not");
  first_ = first, texts_ = texts, fresh_ = fresh, next_ = 0;
}

KvCache::Part KvCache::next() {
  require(next_ < parts_.size(), "more attention layers than the cache has parts");
  const Part& p = parts_[next_++];
  return {p.k.narrow(0, first_, texts_), p.v.narrow(0, first_, texts_)};
}

KvCache::Part KvCache::slot(int64_t block, int64_t slot, int64_t length) const {
  const Part& p = parts_.at(size_t(block));
  return {p.k.narrow(0, slot, 1).narrow(1, 0, length), p.v.narrow(0, slot, 1).narrow(1, 0, length)};
}

}  // namespace trireme
