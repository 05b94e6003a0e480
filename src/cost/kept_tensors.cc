#include "cost/kept_tensors.h"

namespace trireme {
namespace {

constexpr double kHalf = 2;

double rows_kept(const StepCase& c) {
  return double(c.micro) * double(c.seq) / double(c.cp);
}

// Attention's products and core, a token: what reads hidden units (divided only with sequence parallelism),
// and what heads hold (divided by tp).
struct AttentionKept {
  double hidden = 0, heads = 0;
};
AttentionKept attention_kept(const StepCase& c) {
  const ModelSpec& m = c.model;
  const double b = product_input_bytes(c.numbers), h = double(m.hidden), out = double(m.o_size());
  // The norm's input, and its output as the products read it.
  AttentionKept a{.hidden = kHalf * h + (c.keeping.redo.norms ? 0 : b * h)};
  const double core = c.keeping.attention8 && c.numbers != NumberType::half ? 1 : kHalf;
  // Attention's result for its own backward pass, and for the projection behind it.
  a.heads = core * out + (c.numbers == NumberType::half ? 0 : b * out);
  if (!m.latent()) {
    a.heads += core * double(m.q_size() + 2 * m.kv_size());
    if (m.qk_norm) a.heads += kHalf * double(m.q_size() + m.kv_size());
    return a;
  }
  // Two products read the norm's output, each with a quantized copy of its own.
  if (c.numbers != NumberType::half && !c.keeping.redo.norms) a.hidden += b * h;
  const double compressed = double(m.q_rank + m.kv_rank);
  a.hidden += kHalf * compressed;
  if (c.keeping.redo.up_projections) return a;
  a.hidden += b * compressed;
  a.heads += core * double(m.heads) * double(2 * (m.nope_head_dim + m.rope_head_dim) + m.v_head_dim);
  return a;
}

// Of a feed-forward of `wide` units: what its first product puts out in 16 bits, what its second reads.
double wide_kept(const StepCase& c, double wide, bool activation_again) {
  const double up = c.model.activation == "swiglu" ? 2 : 1;
  return kHalf * up * wide + (activation_again ? 0 : product_input_bytes(c.numbers) * wide);
}

}  // namespace

double product_input_bytes(NumberType n) {
  constexpr double kEight = 1, kBlock = 32, kFour = 0.5, kSmallBlock = 16;
  switch (n) {
    case NumberType::fp8:
      return kEight;
    case NumberType::mxfp8:
      return kEight + 1 / kBlock;
    case NumberType::fp4:
      return kFour + 1 / kSmallBlock;
    case NumberType::half:
      break;
  }
  return kHalf;
}

double weight_bytes(const StepCase& c) {
  const Keeping& k = c.keeping;
  if (c.numbers == NumberType::half || (!k.weights8 && !k.cast_weights)) return kHalf;
  // One copy for the forward pass and one, read the other way, for the input gradient: scales of blocks
  // differ by the way, and Hopper's 8-bit products read one way only. Blackwell's read a tensor with one
  // scale either way.
  const double ways = c.numbers == NumberType::fp8 && !k.transposed ? 1 : 2;
  const double quantized = ways * product_input_bytes(c.numbers);
  // No parameters in 4 bits: they are cast from 16-bit ones.
  return k.weights8 && c.numbers != NumberType::fp4 ? quantized : kHalf + quantized;
}

double kept_tensors(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp), h = double(m.hidden), b = product_input_bytes(c.numbers);
  const bool half = c.numbers == NumberType::half;
  const AttentionKept a = attention_kept(c);
  double hidden = a.hidden + kHalf * h, heads = a.heads;  // the second norm's input
  if (c.keeping.dropout) hidden += 2 * h;                 // two masks, a byte each
  if (experts) {
    const auto k = double(m.experts_per_token), shared = double(m.shared_ffn);
    // The norm's output, which the router reads in 16 bits, and the shared expert as its products do.
    if (!c.keeping.redo.norms) hidden += kHalf * h + (shared > 0 && !half ? b * h : 0);
    heads += k * (b * h + wide_kept(c, double(m.moe_ffn), c.keeping.redo.expert_activations));
    heads += wide_kept(c, shared, false);
  } else if (!c.keeping.redo.dense_feed_forward) {
    if (!c.keeping.redo.norms) hidden += b * h;
    heads += wide_kept(c, double(m.ffn), false);
  }
  return rows_kept(c) * (hidden / (c.sequence ? t : 1) + heads / t);
}

double saved_products(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp), h = double(m.hidden) / (c.sequence ? t : 1);
  double a_token = double(m.q_size() + 2 * m.kv_size()) / t;
  if (c.saved != SavedProducts::qkv) a_token += h;
  if (c.saved == SavedProducts::all) {
    const double up = m.activation == "swiglu" ? 2 : 1;
    const auto k = double(m.experts_per_token);
    a_token += h + up * double(experts ? m.shared_ffn : m.ffn) / t;
    if (experts) a_token += k * (up * double(m.moe_ffn) + double(m.hidden)) / t;
  }
  return kHalf * rows_kept(c) * a_token;
}

}  // namespace trireme
