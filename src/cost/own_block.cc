#include "cost/own_block.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

constexpr double kHalfBytes = 2, kSingleBytes = 4;  // of an activation; of a sum, a statistic or an index
// Of matrix products on CUDA: the library's workspace (device/cuda/product_scratch.cc).
constexpr double kProductScratch = (32 << 20) + 256;

// What is held now, and at most.
class Held {
 public:
  void take(double bytes) { now_ += bytes, most_ = std::max(most_, now_); }
  void give(double bytes) { now_ -= bytes; }
  // Taken and given back at once.
  void pass(double bytes) { most_ = std::max(most_, now_ + bytes); }
  void restart() { most_ = now_; }
  double now() const { return now_; }
  double most() const { return most_; }

 private:
  double now_ = 0, most_ = 0;
};

// Sizes of a microbatch's tensors on a rank. Beside tensor parallel ranks there is sequence parallelism:
// between divided layers a rank has its own rows, within them all of them.
struct Rows {
  explicit Rows(const StepCase& c)
      : tp(double(c.tp)),
        all(double(c.micro) * double(c.seq) / double(c.cp)),
        own(all / tp),
        between(kHalfBytes * own * double(c.model.hidden)),
        gathered(c.tp > 1 ? kHalfBytes * all * double(c.model.hidden) : 0),
        statistics(kSingleBytes * own * (c.model.norm == "layer" ? 2 : 1)) {}
  double tp, all, own;
  double between;     // a rank's rows of the hidden state
  double gathered;    // those of all ranks, where they are several
  double statistics;  // of a norm
};

// ---- attention ----

// What stays for the backward pass, and what that takes. `kept` but for `gone` is there until the weight
// gradients.
struct AttentionBytes {
  double kept = 0;
  double gone = 0;   // of it: given back by the input gradient
  double made = 0;   // by that: the gradients of what the projections put out
  double core = 0;   // beside these while attention itself is differentiated
  double early = 0;  // of `gone`: before the projections' own input gradient
};

double local_kv_heads(const ModelSpec& m, double tp) {
  return std::max(1.0, double(m.kv_heads) / tp);
}

// Keys and values go round in pairs of buffers, their gradients with them in f32 and one more, and the
// gradient of queries in f32 (model/context_parallel.cc).
double ring_bytes(const StepCase& c, double rows, double queries, double both) {
  if (c.cp == 1) return 0;
  return rows * (2 * kHalfBytes * both + 3 * kSingleBytes * both + kSingleBytes * queries);
}

AttentionBytes grouped_attention(const StepCase& c, const Rows& r) {
  const ModelSpec& m = c.model;
  const double heads = double(m.heads) / r.tp, kv = local_kv_heads(m, r.tp), d = double(m.head_dim);
  const double qkv = kHalfBytes * r.all * (heads + 2 * kv) * d, out = kHalfBytes * r.all * heads * d;
  const double lse = kSingleBytes * r.all * heads;
  const double normed = m.qk_norm ? r.all * (heads + kv) * (kHalfBytes * d + kSingleBytes) : 0;
  AttentionBytes a;
  a.kept = qkv + out + lse + normed;
  a.made = qkv, a.gone = a.early = qkv + lse + normed;
  a.core = out + std::max(kProductScratch, lse + ring_bytes(c, r.all, heads * d, 2 * kv * d));
  return a;
}

// model/latent_attention.cc: what is compressed, the same normed, queries, keys without positions and values
// of a rank's heads.
AttentionBytes latent_attention(const StepCase& c, const Rows& r) {
  const ModelSpec& m = c.model;
  const double heads = double(m.heads) / r.tp, q_rank = double(m.q_rank), kv_rank = double(m.kv_rank);
  const double query = heads * double(m.head_dim), key_value = heads * double(m.nope_head_dim + m.v_head_dim);
  const double value = heads * double(m.v_head_dim);
  const double bytes = kHalfBytes * r.all;
  const double down = bytes * ((m.q_rank > 0 ? q_rank : query) + kv_rank + double(m.rope_head_dim));
  const double q = m.q_rank > 0 ? bytes * query : 0, kv = bytes * key_value, out = bytes * value;
  const double normed = bytes * (q_rank + kv_rank), lse = kSingleBytes * r.all * heads;
  const double statistics = kSingleBytes * r.all * (m.q_rank > 0 ? 2 : 1);
  AttentionBytes a;
  a.kept = down + normed + q + kv + out + lse + statistics;
  a.gone = lse + kv + q + down + statistics, a.early = lse + kv + q;
  a.made = down + kv + q;
  // Keys with positions and their gradients.
  a.core =
      out + 2 * bytes * query + std::max(kProductScratch, lse + ring_bytes(c, r.all, query, query + value));
  return a;
}

AttentionBytes attention_of(const StepCase& c, const Rows& r) {
  return c.model.latent() ? latent_attention(c, r) : grouped_attention(c, r);
}

// ---- feed-forward ----

struct InnerBytes {
  double up = 0, activated = 0;  // both products of the input, and what goes into the last one
  double kept() const { return up + activated; }
};
InnerBytes inner_bytes(const StepCase& c, const Rows& r, int64_t ffn) {
  const double each = kHalfBytes * r.all * double(ffn) / r.tp;
  return {(c.model.activation == "swiglu" ? 2 : 1) * each, each};
}

// Behind: the gradient that came in, gathered, and of `up` in the place of `up`.
void mlp_input(Held& h, const Rows& r, const InnerBytes& in) {
  h.take(r.gathered);
  h.take(in.activated), h.pass(kProductScratch), h.take(in.up);
  h.give(in.activated), h.give(in.up);
  h.pass(kProductScratch + r.gathered + r.between), h.take(r.between);
}
void mlp_weight(Held& h, const Rows& r, const InnerBytes& in) {
  h.pass(kProductScratch), h.give(r.gathered);
  h.pass(r.gathered + kProductScratch);
  h.give(in.kept());
}

// ---- experts ----

// model/moe.cc and expert_exchange.cc. Each rank routes its own rows.
struct ExpertBytes {
  bool spread = false;  // rows travel to the experts' ranks
  double router = 0;    // logits, choices and weights, given back by the input gradient
  double tables = 0;    // where rows lie
  double logits = 0;    // of `router`: f32
  double sent = 0;      // rows of all choices of this rank
  double rows = 0;      // of what an expert reads: as many, or as a rank has room for
  double up = 0, activated = 0;
  double kept() const { return router + tables + sent + rows + up + activated; }
  // Room for a further round, whether there is one or not.
  double room(bool back) const {
    return spread ? 6 * rows + up + 2 * activated + (back ? sent : 0) + index : 0;
  }
  double index = 0;  // of a round's tables
};
ExpertBytes expert_bytes(const StepCase& c, const Rows& r) {
  const ModelSpec& m = c.model;
  const double k = double(m.experts_per_token), choices = r.own * k;
  ExpertBytes e;
  e.spread = c.ep > 1;
  const double room = e.spread ? std::min(std::ceil(c.ep_buffer * choices), choices * double(c.ep)) : choices;
  e.logits = kSingleBytes * r.own * double(m.experts);
  e.router = e.logits + 2 * kSingleBytes * choices;
  e.index = e.spread ? 2 * kSingleBytes * room : 0;
  e.tables = 2 * kSingleBytes * choices + e.index;
  e.sent = kHalfBytes * choices * double(m.hidden), e.rows = kHalfBytes * room * double(m.hidden);
  e.up = 2 * kHalfBytes * room * double(m.moe_ffn), e.activated = e.up / 2;
  return e;
}

// What a shared expert's gate keeps: the answers that it weighs.
double gate_bytes(const StepCase& c, const Rows& r) {
  return c.model.shared_gate ? r.between + kSingleBytes * 5 * r.own : 0;
}

// Behind: rows' gradients in the place of the answers, those of `up` in its place, and, where rows travelled,
// gradients of what was computed here.
void experts_input(Held& h, const StepCase& c, const Rows& r, const ExpertBytes& e,
                   const InnerBytes& shared) {
  const double k = double(c.model.experts_per_token);
  h.take(e.logits), h.pass(kSingleBytes * r.own * k);
  h.give(e.router);
  if (e.spread) {
    h.pass(2 * e.rows), h.take(e.rows);
    h.take(e.sent), h.pass(e.activated), h.pass(2 * e.rows), h.pass(e.room(true));
    h.give(e.index);
  } else {
    h.pass(e.activated), h.take(e.sent);
  }
  if (c.model.shared_ffn > 0) mlp_input(h, r, shared);
  h.take(r.between), h.give(e.sent);
  h.take(e.logits / 2), h.give(e.logits);
  if (c.model.shared_ffn > 0) h.give(r.between);
}
void experts_weight(Held& h, const StepCase& c, const Rows& r, const ExpertBytes& e,
                    const InnerBytes& shared) {
  h.pass(e.room(true));
  if (e.spread) h.give(e.rows + e.rows + e.up + e.activated);
  if (c.model.shared_ffn > 0) mlp_weight(h, r, shared);
}

}  // namespace

OwnBlock own_block(const StepCase& c, bool experts) {
  const Rows r(c);
  const ModelSpec& m = c.model;
  const AttentionBytes attn = attention_of(c, r);
  const InnerBytes inner = inner_bytes(c, r, experts ? m.shared_ffn : m.ffn);
  const ExpertBytes e = experts ? expert_bytes(c, r) : ExpertBytes();
  // Input, both norms' outputs and what lies between attention and feed-forward.
  const double outer = 4 * r.between + 2 * r.statistics;
  const double feed = experts ? e.kept() + inner.kept() + gate_bytes(c, r) : inner.kept();
  const double whole = outer + attn.kept + feed;
  OwnBlock b;
  b.between = r.between;
  b.kept = c.recompute > 0 ? r.between : whole;
  // What norms put out, and a dense feed-forward's activation.
  if (c.renorm) b.kept -= 2 * r.between + (experts ? 0 : inner.activated);

  Held h;
  h.take(whole), h.take(r.between);
  if (c.recompute > 0 && experts) h.pass(e.room(false) + e.sent - r.between);  // the forward pass once more
  if (experts)
    experts_input(h, c, r, e, inner);
  else
    mlp_input(h, r, inner);
  h.take(r.between), h.give(2 * r.between);  // of the norm; what came of the feed-forward, and its input
  h.take(r.gathered), h.take(attn.made), h.pass(attn.core);
  h.give(attn.early);
  h.pass(kProductScratch + r.gathered + r.between), h.take(r.between);
  h.give(attn.gone - attn.early);
  h.take(r.between), h.give(r.between);
  h.give(2 * r.statistics);
  b.input = h.most(), b.waiting = h.now() - r.between;

  h.restart();
  if (experts)
    experts_weight(h, c, r, e, inner);
  else
    mlp_weight(h, r, inner);
  h.give(r.gathered), h.pass(r.gathered + kProductScratch);
  b.weight = h.most();
  return b;
}

OwnHead own_head(const StepCase& c) {
  constexpr int64_t kLine = 64;  // columns of logits begin on cache lines
  const Rows r(c);
  const int64_t columns = (c.model.vocab + c.tp - 1) / c.tp;
  const double logits = kHalfBytes * r.all * double((columns + kLine - 1) / kLine * kLine);
  OwnHead h;
  h.inner = r.between + r.statistics + logits, h.kept = h.inner + r.between;
  const double statistics = c.tp > 1 ? 3 * kSingleBytes * r.all * r.tp : 0;
  h.input = std::max({statistics, r.gathered + r.between + kProductScratch, 2 * r.between});
  h.weight = r.between + r.gathered + kProductScratch;
  return h;
}

double own_embedding(const StepCase& c) {
  const Rows r(c);
  return r.between + r.gathered;
}

double own_batch(const StepCase& c) {
  return 4 * kSingleBytes * Rows(c).all;
}

}  // namespace trireme
