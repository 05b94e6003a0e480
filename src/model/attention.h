// Causal self-attention with grouped queries: q, k, v in one product, rope, FlashAttention, output
// projection.
#pragma once
#include "model/linear.h"

namespace trireme {

// Angles of the rotary embedding for every position, f32 [positions, head_dim / 2]; shared by all layers.
struct RopeTable {
  Tensor cos, sin;
};

class Attention {
 public:
  struct Sizes {
    int64_t hidden, heads, kv_heads, head_dim;
    bool bias;
    float init_std, out_init_std;
  };
  // rope: null when positions are learned; it outlives the layer.
  Attention(const std::string& name, const Sizes&, const RopeTable* rope);

  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> residual + attention(x).
  Owned forward(Ctx&, const Tensor& x, const Tensor& residual, Saved&) const;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;

 private:
  struct Heads {
    Tensor q, k, v;  // views [B, S, heads, D] into the fused matrix
  };
  Heads split(const Ctx&, const Tensor& qkv) const;
  void rotate(Ctx&, const Tensor& qkv, bool inverse) const;
  bool attend_to_cache(Ctx&, const Heads&, const Tensor& o) const;

  Sizes sizes_;
  const RopeTable* rope_;
  Linear qkv_, out_;
};

}  // namespace trireme
