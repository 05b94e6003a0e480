#include "cost/phases.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/walls.h"

namespace trireme {
namespace {

constexpr double kPhaseBytes = 2;  // of a number
constexpr double kTrainingPasses = 3;

double passes_of(const PhaseCase& c) {
  return c.phase == Phase::training ? kTrainingPasses : 1;
}
double rows_in(const PhaseCase& c) {
  return c.phase == Phase::decode ? c.batch : c.batch * c.tokens;
}

// A product [rows, in] x [in, out].
void add_product(PhasePart& p, double rows, double in, double out) {
  p.flops += 2 * rows * in * out;
  p.bytes += kPhaseBytes * (rows * in + in * out + rows * out);
}

void add_attention_products(PhasePart& p, const PhaseCase& c) {
  const ModelSpec& m = c.model;
  const double rows = rows_in(c), t = c.tp, h = double(m.hidden);
  if (!m.latent()) {
    add_product(p, rows, h, double(m.q_size() + 2 * m.kv_size()) / t);
  } else {
    const double q = double(m.q_size()) / t,
                 nope_and_v = double(m.heads * (m.nope_head_dim + m.v_head_dim)) / t;
    if (m.q_rank > 0) add_product(p, rows, h, double(m.q_rank)), add_product(p, rows, double(m.q_rank), q);
    if (m.q_rank == 0) add_product(p, rows, h, q);
    add_product(p, rows, h, double(m.kv_rank + m.rope_head_dim));
    add_product(p, rows, double(m.kv_rank), nope_and_v);
  }
  add_product(p, rows, double(m.o_size()) / t, h);
}

void add_feed_forward(PhasePart& p, const PhaseCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double rows = rows_in(c), t = c.tp, h = double(m.hidden), up = m.activation == "swiglu" ? 2 : 1;
  if (!experts) {
    add_product(p, rows, h, up * double(m.ffn) / t);
    return add_product(p, rows, double(m.ffn) / t, h);
  }
  const auto all = double(m.experts), k = double(m.experts_per_token), f = double(m.moe_ffn);
  const double touched = all * (1 - std::pow(1 - k / all, rows));
  p.flops += 2 * rows * k * 3 * h * f / t;
  p.bytes += kPhaseBytes * (touched * 3 * h * f + rows * k * (2 * h + 3 * f)) / t;
  add_product(p, rows, h, all + (m.shared_gate ? 1 : 0));
  if (m.shared_ffn > 0) {
    add_product(p, rows, h, 2 * double(m.shared_ffn) / t);
    add_product(p, rows, double(m.shared_ffn) / t, h);
  }
}

// Scores and their sum of values. Over half of the sequence on average, or over the whole cache.
PhasePart core_of(const PhaseCase& c) {
  const ModelSpec& m = c.model;
  const double rows = rows_in(c), layers = double(m.layers), q = double(m.q_size()), o = double(m.o_size());
  PhasePart p{"attention"};
  if (c.phase != Phase::decode) {
    p.flops = layers * rows * 2 * (c.tokens / 2) * (q + o) / c.tp;
    const double kv = m.latent() ? q + o : 2 * double(m.kv_size());
    p.bytes = layers * kPhaseBytes * rows * (q + kv + o) / c.tp;
    return p;
  }
  const double width = m.latent() ? double(m.heads) * double(2 * m.kv_rank + m.rope_head_dim) : q + o;
  p.flops = layers * rows * 2 * c.tokens * width / c.tp;
  // A latent cache is one for all heads: no device has less of it. Else heads are divided, as far as there
  // are some.
  const double divided = m.latent() ? 1 : std::min(c.tp, double(m.kv_heads));
  p.bytes = kv_cache_bytes(m, c.tokens, c.batch) / divided + layers * kPhaseBytes * rows * (q + o) / c.tp;
  return p;
}

}  // namespace

std::string_view name_of(Phase p) {
  return p == Phase::training ? "training" : p == Phase::prefill ? "prefill" : "decode";
}

std::vector<PhasePart> phase_parts(const PhaseCase& c) {
  require(c.tokens > 0 && c.batch > 0 && c.tp > 0, "a pass over nothing");
  const ModelSpec& m = c.model;
  const auto layers = double(m.layers), with = double(m.expert_blocks());
  const double rows = rows_in(c), h = double(m.hidden), t = c.tp;
  PhasePart products{"products"};
  const auto add_layers = [&](bool experts, double n) {
    PhasePart one;
    add_attention_products(one, c), add_feed_forward(one, c, experts);
    products.flops += n * one.flops, products.bytes += n * one.bytes;
  };
  if (with > 0) add_layers(true, with);
  if (layers > with) add_layers(false, layers - with);
  PhasePart head{"head"};  // of a prompt's last token alone
  add_product(head, c.phase == Phase::prefill ? c.batch : rows, h, double(m.vocab) / t);
  // Norms and residuals read and write rows five times each; the activation its inputs and output.
  const double up = m.activation == "swiglu" ? 2 : 1;
  const double inner = (with * (double(m.experts_per_token * m.moe_ffn) + double(m.shared_ffn)) +
                        (layers - with) * double(m.ffn)) *
                       (up + 1);
  PhasePart elementwise{"elementwise", 0, kPhaseBytes * rows * (10 * h * layers + inner) / t};
  std::vector<PhasePart> all = {products, core_of(c), head, elementwise};
  for (PhasePart& p : all) p.flops *= passes_of(c), p.bytes *= passes_of(c);
  if (c.phase == Phase::training) {
    constexpr double kUpdate = 2 + 2 * 12 + 2;  // gradient read, master and moments both ways, weight written
    all.push_back({"optimizer", 0, kUpdate * double(parameters(m)) / t / c.microbatches});
  }
  return all;
}

PhasePart sum_of(const std::vector<PhasePart>& parts) {
  PhasePart all{"all"};
  for (const PhasePart& p : parts) all.flops += p.flops, all.bytes += p.bytes;
  return all;
}

double tensor_wire_bytes(const PhaseCase& c) {
  const double calls = (c.phase == Phase::training ? 4 : 2) * double(c.model.layers);
  return calls * 2 * (c.tp - 1) / c.tp * kPhaseBytes * rows_in(c) * double(c.model.hidden);
}
double gradient_wire_bytes(const PhaseCase& c, double replicas) {
  if (c.phase != Phase::training) return 0;
  return 2 * (replicas - 1) / replicas * kPhaseBytes * double(parameters(c.model)) / c.tp / c.microbatches;
}

}  // namespace trireme
