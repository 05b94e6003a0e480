// Multi-head latent attention (DeepSeek-V2, 2405.04434 section 2.1; docs/latent_attention.md): keys and
// values of all heads are made from one compressed row a token, queries too where q_rank > 0; positions turn
// a part of each query and one key part that all heads share.
#pragma once
#include <optional>

#include "model/attention.h"

namespace trireme {

class LatentAttention {
 public:
  struct Sizes {
    int64_t hidden, heads;
    int64_t q_rank, kv_rank;    // of what is compressed; q_rank = 0: queries straight from x
    int64_t nope, rope, value;  // columns of a head: of q and k without positions, with; of v
    bool rope_interleaved;
    double scores = 1;  // factor on them beside 1 / sqrt(columns of a head of q) (yarn)
    bool bias;          // on what compresses, and on o
    float init_std, out_init_std;
    double attn_pdrop, resid_pdrop;
  };
  // rope outlives the layer. Heads are divided over the ranks of tp; what is compressed each of them makes
  // whole from the input, and has a summand of its gradient.
  LatentAttention(const std::string& name, const Sizes&, const RopeTable* rope, TensorPlace tp = {});

  void declare(std::vector<ParamDecl>&) const;
  void bind(ParamSet&);
  // x [N, hidden] -> residual + attention(x).
  Owned forward(Ctx&, const Tensor& x, const Tensor& residual, Saved&) const;
  Owned backward_input(Ctx&, const Tensor& dy, Saved&) const;
  void backward_weight(Ctx&, Saved&) const;
  // "qkv" (q if it is made from compressed rows, k without positions, v) and "o" (Layer::let_go). Compressed
  // rows are kept.
  void let_go(const Recompute&, Saved&) const;
  void again(Ctx&, const Tensor& x, Saved&) const;
  // residual + attention's projection, of "o".
  Owned output_again(Ctx&, const Tensor& residual, const Saved&) const;
  bool keeps_input(const Ctx&) const { return false; }

 private:
  int64_t key() const { return sizes_.nope + sizes_.rope; }  // columns of a head of q and k
  int64_t first() const { return sizes_.q_rank > 0 ? sizes_.q_rank : sizes_.heads * key(); }
  // Columns of `down`, the product of x with q_a (or q) and kv_a side by side: the first, c_kv, the key part.
  Tensor compressed_kv(const Tensor& down) const;  // [N, 1, kv_rank]
  Tensor shared_key(const Tensor& down) const;     // [N, 1, rope]
  Tensor turned_of(const Tensor& q) const;         // [N, heads, rope]
  void rotate(Ctx&, const Tensor& x, bool inverse) const;
  Owned keys(Ctx&, const Tensor& kv, const Tensor& down) const;  // [N, heads (nope + rope)]
  struct Heads {
    Tensor q, k, v;  // views [B, S, heads, columns]
  };
  Heads split(const Ctx&, const Tensor& q, const Tensor& k, const Tensor& kv) const;
  Owned attend_heads(Ctx&, const Heads&, const Tensor& o, const Tensor& lse) const;
  float scale() const;
  DropoutMask mask(const Ctx&) const;  // of the probabilities

  Sizes sizes_;  // heads of this rank
  TensorPlace tp_;
  const RopeTable* rope_;
  Linear down_, kv_up_, out_;
  std::optional<Linear> q_up_;
  HeadNorm kv_norm_;
  std::optional<HeadNorm> q_norm_;
  Dropout probs_, resid_;
};

}  // namespace trireme
