// Causal self-attention with grouped queries: q, k, v in one product, norms of the heads of q and k where
// there are any, rope, FlashAttention, output projection.
#pragma once
#include <optional>

#include "model/dropout.h"
#include "model/head_norm.h"
#include "model/linear.h"

namespace trireme {

// Angles of the rotary embedding for every position, f32 [positions, pairs that turn]; shared by all layers.
struct RopeTable {
  Tensor cos, sin;
};

class Attention {
 public:
  struct Sizes {
    int64_t hidden, heads, kv_heads, head_dim;
    bool qkv_bias, out_bias;
    std::optional<float> qk_norm_eps;  // empty: heads are not normalised
    float init_std, out_init_std;
    double attn_pdrop, resid_pdrop;  // of probabilities; of what is added to the residual stream
  };
  // rope: null when positions are learned; it outlives the layer. Heads are divided over the ranks of tp;
  // where there are fewer key/value heads than ranks, several ranks compute the same one, each for its own
  // query heads.
  Attention(const std::string& name, const Sizes&, const RopeTable* rope, TensorPlace tp = {});

  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> residual + attention(x).
  Owned forward(Ctx&, const Tensor& x, const Tensor& residual, Saved&) const;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;
  // "qkv" (with the normalised q and k) and "o" (Layer::let_go).
  void let_go(const Recompute&, Saved&) const;
  void again(Ctx&, const Tensor& x, Saved&) const;
  // What forward returned, from a saved "o".
  Owned output_again(Ctx&, const Tensor& residual, const Saved&) const;

  // x need not stay alive beyond forward (Linear::keeps_codes).
  bool keeps_input(const Ctx& ctx) const { return qkv_.keeps_codes(ctx); }

 private:
  struct Heads {
    Tensor q, k, v;  // views [B, S, heads, D]
  };
  // q and k lie side by side in the first columns of qk; v in the last of the fused matrix, which may be qk.
  Heads split(const Ctx&, const Tensor& qk, const Tensor& qkv) const;
  // Columns of q, of k, as [N, heads, D].
  Tensor q_heads(const Tensor& qk) const;
  Tensor k_heads(const Tensor& qk) const;
  void rotate(Ctx&, const Tensor& qk, bool inverse) const;
  AttentionArgs attention(const Ctx&, const Tensor& qk, const Tensor& qkv, const Tensor& o,
                          const Tensor& lse) const;
  Owned normalise(Ctx&, const Tensor& qkv, Saved&) const;

  DropoutMask mask(const Ctx&) const;  // of the probabilities

  Sizes sizes_;  // heads of this rank
  TensorPlace tp_;
  const RopeTable* rope_;
  Linear qkv_, out_;
  std::optional<HeadNorm> q_norm_, k_norm_;
  Dropout probs_, resid_;
};

}  // namespace trireme
