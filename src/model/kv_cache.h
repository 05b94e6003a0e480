// Keys and values that attention keeps of the tokens before, so that a text goes on without running them
// again (Pope et al. 2022, section 2). A forward pass with Ctx::cache set reads and writes it; layers stay
// the same.
#pragma once
#include <vector>

#include "model/layer.h"

namespace trireme {

// `slots` texts of up to `capacity` tokens each. One part a block; attention layers take theirs in the order
// data travels.
class KvCache {
 public:
  struct Part {
    Tensor k,
        v;  // T [texts of the pass, capacity, KV, D], v of its own width; position p of a text lies at row p
  };
  struct Sizes {
    int64_t blocks, slots, capacity, kv_heads, head_dim, v_head_dim;
    DType dtype;
    int64_t bytes() const {
      return blocks * slots * capacity * kv_heads * (head_dim + v_head_dim) * size_of(dtype);
    }
  };
  KvCache(Arena&, const Sizes&);

  const Sizes& sizes() const { return sizes_; }
  // Before a forward pass of texts in slots [first, first + texts). fresh: these texts start here, so their
  // new tokens see each other alone. tokens: new ones of each text; rows beyond complete a division over cp.
  void begin(int64_t first, int64_t texts, int64_t tokens, bool fresh);
  int64_t tokens() const { return tokens_; }
  bool fresh() const { return fresh_; }
  Part next();  // of the attention layer that runs now
  // One slot of a part, for copies between slots: [1, length, KV, D].
  Part slot(int64_t block, int64_t slot, int64_t length) const;

 private:
  Sizes sizes_;
  std::vector<Owned> memory_;  // k and v of each block in turn
  std::vector<Part> parts_;
  int64_t first_ = 0, texts_ = 0, tokens_ = 0;
  bool fresh_ = false;
  size_t next_ = 0;
};

// Appends the new tokens' keys and values k, v [B, S, KV, D or DV] to ctx.cache, at the attention layer that
// runs now. Ranks of cp that have parts of a text gather them, and each keeps all. Returns true if o [B, S,
// H, DV] was computed from the cache; false without a cache, and if no token comes before these: then
// attention is that of training, with its bits.
bool attend_to_cache(Ctx&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, float scale);

}  // namespace trireme
