// Attention whose sequences lie divided over ranks (docs/context_parallel.md).
//
// What it rests on: attention over a set of keys is known by (o, lse), and of two sets
//   lse = log(e^lse1 + e^lse2)    o = e^(lse1 - lse) o1 + e^(lse2 - lse) o2,
// so blocks of keys may be attended to one after the other, wherever they lie.
#pragma once
#include "model/layer.h"

namespace trireme {

// softmax(q k^T) v of this rank's rows against the keys of all ranks that they may see. The arguments are
// those of one rank alone, of its own rows: q [B, S/P, H, D], k [B, S/P, KV, D], lse [B, H, S/P]; v and o
// like them, of heads of another width where attention is latent; what documents allow is the batch's.
// Returns what the backward pass wants besides; with one rank nothing.
//   ring     k and v travel from rank to rank, those of the next block while one is computed (Liu et al.
//            2023, arXiv 2310.01889); o and lse are merged in f32
//   ulysses  all_to_all: each rank gets H / P heads of whole sequences (Jacobs et al. 2023, arXiv 2309.14509)
Owned attend(Ctx&, const AttentionArgs&);
// The same of its gradient. kept: what attend() returned.
void attend_backward(Ctx&, const AttentionBackwardArgs&, const Tensor& kept);

// Bytes that a rank sends for one layer and microbatch of `tokens` local tokens, both passes: the closed
// form.
struct ContextBytes {
  int64_t p2p = 0, all_to_all = 0;
};
ContextBytes context_bytes(bool ulysses, int ranks, int64_t tokens, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t value_dim, DType);

}  // namespace trireme
