#include "cost/step_memory.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"

namespace trireme {
namespace {

double memory_rows(const StepCase& c) {
  return double(c.micro) * double(c.seq) / double(c.cp);
}

// Parameters of one block on a rank: dense, and experts'.
struct BlockParameters {
  double dense = 0, experts = 0;
};
BlockParameters block_of(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  BlockParameters b{.dense = double(block_parameters(m, 1, experts)) / double(c.tp)};
  if (!experts) return b;
  const double all = double(m.experts) * 3 * double(m.hidden) * double(m.moe_ffn);
  b.dense -= all / double(c.tp), b.experts = all / double(c.ep);
  return b;
}

double state_bytes_of(const StepCase& c, double dense, double experts) {
  constexpr double kWeights = 2;
  const double optimizer = c.offload > 0 ? 0 : 12;  // f32 master copy and two moments
  const double replicas = double(c.dp * c.cp);
  const double expert_replicas = std::max(1.0, replicas * double(c.tp) / double(c.ep));
  const auto of = [&](double parameters, double owners) {
    if (c.zero >= 3) {
      const double n = c.shards > 0 ? std::min(double(c.shards), owners) : owners;
      return parameters * (kWeights + c.grad_stored + optimizer) / n;
    }
    const double grads = c.zero == 2 ? c.grad_stored / owners : c.grad_stored;
    return parameters * (kWeights + grads + optimizer / (c.zero >= 1 ? owners : 1));
  };
  return of(dense, replicas) + of(experts, expert_replicas);
}

// Layers of the fullest stage, those with experts among them.
double stage_layers(const StepCase& c) {
  return std::ceil(double(c.model.layers) / double(c.pp));
}

// Where the first blocks are dense, the last stage has none of them.
double stage_experts(const StepCase& c) {
  const ModelSpec& m = c.model;
  const auto with = double(m.expert_blocks());
  if (m.expert_step > 1) return with / double(m.layers) * stage_layers(c);
  return std::min(with, stage_layers(c));
}

double stage_states(const StepCase& c) {
  const double with = stage_experts(c), without = stage_layers(c) - with;
  double dense = 0, experts = 0;
  if (with > 0) {
    const BlockParameters b = block_of(c, true);
    dense += with * b.dense, experts += with * b.experts;
  }
  if (without > 0) dense += without * block_of(c, false).dense;
  const double table = double(c.model.vocab) * double(c.model.hidden) / double(c.tp);
  const bool both = c.pp == 1;
  dense += table * (both && !c.model.tied ? 2 : 1);
  return state_bytes_of(c, dense, experts);
}

// Microbatches whose activations the first stage holds, of its whole share
// (1F1B: p; interleaved: p + (p-1)/v).
double in_flight(const StepCase& c) {
  const double p = double(c.pp), v = double(c.chunks), m = double(c.microbatches);
  const double held = v > 1 ? p + (p - 1) / v : p;
  return std::min(m, held * c.held);
}

// Of a layer's activations what norms put out, and the feed-forward's activation: what `renorm` does not
// keep.
double renormed(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp),
               wide = experts ? double(m.experts_per_token * m.moe_ffn + m.shared_ffn) : double(m.ffn);
  return memory_rows(c) * (4 * double(m.hidden) / (c.sequence ? t : 1) + 2 * wide / t);
}

// A layer's gradients of weights in 16 bits, before they are added to those of the step.
double layer_gradients(const StepCase& c, bool experts) {
  constexpr double kHalf = 2;
  const BlockParameters b = block_of(c, experts);
  return kHalf * (b.dense + b.experts);
}

}  // namespace

double layer_activations(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp), h = double(m.hidden);
  const double between = 18 * h / (c.sequence ? t : 1);
  double inner = 0;
  if (m.latent())
    inner += 2 * double(m.heads) * double(2 * m.head_dim + m.nope_head_dim + 2 * m.v_head_dim) / t;
  if (experts) {
    const auto k = double(m.experts_per_token);
    inner += k * (4 * double(m.moe_ffn) + 4 * h) / t + 4 * double(m.shared_ffn) / t;
  } else {
    inner += 4 * double(m.ffn) / t;
  }
  if (c.attention == AttentionKind::unfused) inner += 5 * double(m.heads) * double(c.seq) / t;
  return memory_rows(c) * (between + inner);
}

double least_memory(const StepCase& c) {
  return stage_states(c);
}

double state_bytes(const StepCase& c, double dense, double experts) {
  return state_bytes_of(c, dense, experts);
}
double kept_bytes(const StepCase& c, const FitValues& f, bool experts) {
  const double whole = layer_activations(c, experts) - (c.renorm ? renormed(c, experts) : 0);
  const double input = 2 * memory_rows(c) * double(c.model.hidden) / (c.sequence ? double(c.tp) : 1);
  return f[size_t(Fit::kept)] * ((1 - c.recompute) * whole + c.recompute * input);
}
double backward_bytes(const StepCase& c, const FitValues& f, bool experts) {
  return layer_gradients(c, experts) +
         (c.recompute > 0 ? f[size_t(Fit::kept)] * layer_activations(c, experts) : 0);
}
double logit_bytes(const StepCase& c, const FitValues& f) {
  constexpr double kBytes = 6;  // 16 bits, and a f32 copy in the loss
  return f[size_t(Fit::kept)] * kBytes * memory_rows(c) * double(c.model.vocab) / double(c.tp);
}

StepMemory step_memory(const StepCase& c, const FitValues& f) {
  const double rows = memory_rows(c), layers = stage_layers(c);
  const double with = double(c.model.expert_blocks()) / double(c.model.layers);
  double whole = 0;
  if (with > 0) whole += with * layer_activations(c, true);
  if (with < 1) whole += (1 - with) * layer_activations(c, false);
  double kept_whole = whole;
  if (c.renorm) kept_whole -= with * renormed(c, true) + (1 - with) * renormed(c, false);
  const double input = 2 * rows * double(c.model.hidden) / (c.sequence ? double(c.tp) : 1);
  const double kept_layer = (1 - c.recompute) * kept_whole + c.recompute * input;
  StepMemory s;
  s.states = stage_states(c);
  const double kept = f[size_t(Fit::kept)];
  s.activations = kept * (in_flight(c) * layers * kept_layer + (c.recompute > 0 ? whole : 0));
  s.gradients = layer_gradients(c, with > 0);
  if (c.pp == 1) s.logits = logit_bytes(c, f);
  s.base = f[size_t(Fit::base)];
  s.total = s.states + s.activations + s.gradients + s.logits + s.base;
  return s;
}

}  // namespace trireme
