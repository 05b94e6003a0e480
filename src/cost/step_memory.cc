#include "cost/step_memory.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"
#include "cost/kept_tensors.h"
#include "cost/pipeline_layers.h"

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
  const double all = block_expert_parameters(m);
  b.dense -= all / double(c.tp), b.experts = all / double(c.ep * c.expert_tp);
  return b;
}

// tables: which of the dense ones are the embedding's and the head's, 16-bit in any case.
double state_bytes_of(const StepCase& c, double dense, double experts, double tables) {
  const bool gathered = c.keeping.fsdp && c.zero >= 3;  // FSDP2's are 16-bit where they are gathered
  const double optimizer = c.offload > 0 ? 0 : c.keeping.optimizer;
  const bool divided = c.zero == 2 || (c.zero >= 1 && c.keeping.divided_gradients);
  const double replicas = double(c.dp * c.cp);
  const double expert_replicas = std::max(1.0, replicas * double(c.tp) / double(c.ep * c.expert_tp));
  const auto of = [&](double parameters, double all, double weights) {
    const double owners = c.shards > 0 ? std::min(double(c.shards), all) : all;
    if (c.zero >= 3) return parameters * (weights + c.grad_stored + optimizer) / owners;
    const double grads = divided ? c.grad_stored / owners : c.grad_stored;
    return parameters * (weights + grads + optimizer / (c.zero >= 1 ? owners : 1));
  };
  constexpr double kHalf = 2;
  const double weights = gathered ? 0 : weight_bytes(c);
  return of(dense - tables, replicas, weights) + of(tables, replicas, gathered ? 0 : kHalf) +
         of(experts, expert_replicas, weights);
}

// Where the first blocks are dense, the fullest rank has experts in all of its layers.
double experts_of(const StepCase& c, double layers) {
  const ModelSpec& m = c.model;
  const auto with = double(m.expert_blocks());
  if (m.expert_step > 1) return with / double(m.layers) * layers;
  return std::min(with, layers);
}

// Of a layer's activations what norms put out, and the feed-forward's activation: what `renorm` does not
// keep.
double renormed(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp),
               wide = experts ? double(m.experts_per_token * m.moe_ffn + m.shared_ffn) : double(m.ffn);
  return memory_rows(c) * (4 * double(m.hidden) / (c.sequence ? t : 1) + 2 * wide / t);
}

// Between layers: what a layer's backward pass begins with, and all that stays of one that is done again.
double boundary_bytes(const StepCase& c) {
  return 2 * memory_rows(c) * double(c.model.hidden) / (c.sequence ? double(c.tp) : 1);
}

// A layer's gradients of weights in 16 bits, before they are added to those of the step.
double layer_gradients(const StepCase& c, bool experts) {
  constexpr double kHalf = 2;
  const BlockParameters b = block_of(c, experts);
  return kHalf * (b.dense + b.experts);
}

// Of unfused attention: probabilities, dropped ones and the mask.
double score_bytes(const StepCase& c) {
  if (c.attention != AttentionKind::unfused) return 0;
  return memory_rows(c) * 5 * double(c.model.heads) * double(c.seq) / double(c.tp);
}

}  // namespace

double layer_activations(const StepCase& c, bool experts) {
  if (c.keeping.tensors) return kept_tensors(c, experts) + score_bytes(c);
  const ModelSpec& m = c.model;
  const double t = double(c.tp), h = double(m.hidden);
  // A norm of single operations keeps its input in f32 and the result before its weight.
  const double norms = c.fused_norms ? 0 : 2 * 4;
  // Queries, keys, values and what attention's projection reads are a rank's own heads in any case.
  constexpr double kHeads = 8;
  const double between = (c.keeping.hidden - kHeads + norms) * h / (c.sequence ? t : 1) + kHeads * h / t;
  // Two inputs of products, whole for the part that they are otherwise.
  double inner = c.keeping.gathered && c.sequence ? 4 * h * (1 - 1 / t) : 0;
  if (m.latent())
    inner += 2 * double(m.heads) * double(2 * m.head_dim + m.nope_head_dim + 2 * m.v_head_dim) / t;
  if (experts) {
    const auto k = double(m.experts_per_token);
    inner += k * (c.keeping.ffn * double(m.moe_ffn) + 4 * h) / t + c.keeping.ffn * double(m.shared_ffn) / t;
  } else {
    inner += c.keeping.ffn * double(m.ffn) / t;
  }
  return memory_rows(c) * (between + inner) + score_bytes(c);
}

namespace {

// What PyTorch's selective checkpointing of operations keeps (torchtitan's policy: attention's result, and of
// the products query, key, value, output, gate, up, down every second): the block's input, queries, values,
// attention's result and the gate; with tensor parallelism also what the reduce-scatters put out.
double product_bytes(const StepCase& c) {
  const ModelSpec& m = c.model;
  const double t = double(c.tp), scattered = c.tp > 1 ? 4 * double(m.hidden) : 0;
  const auto q = double(m.heads * m.head_dim), kv = double(m.kv_heads * m.head_dim);
  return boundary_bytes(c) + memory_rows(c) * (scattered + 4 * q + 2 * kv + 2 * double(m.ffn)) / t;
}

// Of a layer and a microbatch: behind the forward pass; in the backward pass; behind its input gradient,
// where what weight gradients read is left: of each product what went in and the gradient of what came out,
// for which its own size of what was kept has gone (Qi et al. 2024, table 1: M_B and M_W).
struct LayerBytes {
  double kept = 0, backward = 0, waiting = 0;
};
LayerBytes layer_bytes(const StepCase& c, bool experts) {
  const double whole = layer_activations(c, experts), between = boundary_bytes(c);
  const double stays =
      whole - (c.renorm ? renormed(c, experts) : 0) - (c.recompute_attention ? score_bytes(c) : 0);
  const bool products = c.keeping.products && c.recompute > 0 && c.recompute < 1 && !experts;
  if (c.saved != SavedProducts::by_share)
    return {std::min(whole, between + saved_products(c, experts)), whole + between,
            whole - score_bytes(c) + between};
  const double inputs = c.keeping.inputs_elsewhere ? 0 : between;
  const double kept =
      products ? std::min(whole, product_bytes(c)) : (1 - c.recompute) * stays + c.recompute * inputs;
  return {kept, whole + between, whole - score_bytes(c) + between};
}

}  // namespace

PipelinePlaces pipeline_places(const StepCase& c) {
  PipelinePlaces all;
  const PipelineBlocks blocks(c);
  const auto put = [&](int64_t rank, double tables) {
    all.at[size_t(all.count++)] = {rank, blocks.own(rank), blocks.held(rank), tables};
  };
  const double both = c.model.tied ? 1 : 2;
  if (c.pp == 1) {
    put(0, both);
    return all;
  }
  const bool v = is_v(c.order);
  put(0, v ? both : 1), put(c.pp - 1, v ? 0 : 1);
  const auto above = [&](int place, int64_t rank) { return blocks.own(rank) > all.at[size_t(place)].layers; };
  if (c.pp > 2 && (above(0, 1) || (v && above(1, 1)))) put(1, 0);
  if (v) return all;
  // ZB-H's later ranks hold more: as many microbatches, of which more wait.
  const bool later = c.order == PipelineOrder::zb_h1 || c.order == PipelineOrder::zb_h2;
  if (c.pp > 3 && (above(0, c.pp - 2) || (later && above(1, c.pp - 2)))) put(c.pp - 2, 0);
  if (!later) return all;
  const int64_t last = blocks.last_fullest();
  const auto there = [&](const PipelinePlace& p) { return p.rank == last; };
  if (std::none_of(all.begin(), all.end(), there)) put(last, 0);
  return all;
}

namespace {

double table_parameters(const StepCase& c, const PipelinePlace& p) {
  return p.tables * double(c.model.vocab) * double(c.model.hidden) / double(c.tp);
}
BlockParameters rank_parameters(const StepCase& c, const PipelinePlace& p) {
  const double with = experts_of(c, p.layers), without = p.layers - with;
  BlockParameters all;
  if (with > 0) {
    const BlockParameters b = block_of(c, true);
    all.dense += with * b.dense, all.experts += with * b.experts;
  }
  if (without > 0) all.dense += without * block_of(c, false).dense;
  all.dense += table_parameters(c, p);
  return all;
}

// Gradients of weights on their way to the step's, and weights that are gathered. freed: activations of the
// microbatch whose backward pass ends.
double passing_bytes(const StepCase& c, const PipelinePlace& p, double freed) {
  constexpr double kHalf = 2, kSingle = 4;
  const double layer = layer_gradients(c, c.model.expert_blocks() > 0);
  if (c.keeping.fsdp && c.zero >= 3) {
    const BlockParameters all = rank_parameters(c, p);
    // And messages: torch's pipeline stages have room for each microbatch's of either way from the beginning,
    // and keep what they put out until its backward pass.
    if (c.pp > 1)
      return (kHalf + kSingle) * (all.dense + all.experts) + layer +
             double(2 * c.microbatches + std::min(c.microbatches, c.pp)) * boundary_bytes(c);
    // Of a block: its weights and the next one's, both as they arrive and as they are read; its gradients in
    // 16 bits and in f32 for their sum.
    return kHalf * table_parameters(c, p) + (3 + 1 + kSingle / kHalf) * layer;
  }
  if (!c.keeping.gradients) return layer;
  // They come as activations go.
  const BlockParameters all = rank_parameters(c, p);
  const double stage = kHalf * (all.dense + all.experts);
  const bool buckets = c.zero == 0 && c.dp * c.cp > 1;
  return std::max(layer, stage - freed) + (buckets ? stage : 0);
}

}  // namespace

double rank_states(const StepCase& c, const PipelinePlace& p) {
  const BlockParameters all = rank_parameters(c, p);
  return state_bytes_of(c, all.dense, all.experts, table_parameters(c, p));
}

double least_memory(const StepCase& c) {
  double most = 0;
  for (const PipelinePlace& p : pipeline_places(c)) most = std::max(most, rank_states(c, p));
  return most;
}

double state_bytes(const StepCase& c, double dense, double experts) {
  return state_bytes_of(c, dense, experts, 0);
}
double kept_bytes(const StepCase& c, const FitValues& f, bool experts) {
  return f[size_t(Fit::kept)] * layer_bytes(c, experts).kept;
}
double waiting_bytes(const StepCase& c, const FitValues& f, bool experts) {
  const LayerBytes l = layer_bytes(c, experts);
  return f[size_t(Fit::kept)] * (l.waiting - l.kept);
}
double backward_bytes(const StepCase& c, bool experts) {
  return layer_gradients(c, experts);
}
double logit_bytes(const StepCase& c, const FitValues& f) {
  constexpr double kHalf = 2;
  const double parts = c.keeping.whole_logits ? 1 : double(c.tp);
  return f[size_t(Fit::kept)] * kHalf * memory_rows(c) * double(c.model.vocab) / parts;
}
double loss_bytes(const StepCase& c, const FitValues& f) {
  constexpr double kHalf = 2;
  const Keeping& k = c.keeping;
  return (c.tp > 1 && k.loss_parts > 0 ? k.loss_parts : k.loss) / kHalf * logit_bytes(c, f);
}

StepMemory rank_memory(const StepCase& c, const FitValues& f, const PipelinePlace& p) {
  if (const int64_t n = c.micro * c.microbatches, stages = c.pp * c.chunks;
      c.keeping.split && c.pp > 1 && n % stages == 0) {
    StepCase split = c;
    split.keeping.split = false, split.microbatches = stages, split.micro = n / stages;
    return rank_memory(split, f, p);
  }
  const double share = double(c.model.expert_blocks()) / double(c.model.layers);
  LayerBytes layer;
  const auto add = [&](double n, const LayerBytes& l) {
    layer.kept += n * l.kept, layer.backward += n * l.backward, layer.waiting += n * l.waiting;
  };
  if (share > 0) add(share, layer_bytes(c, true));
  if (share < 1) add(1 - share, layer_bytes(c, false));
  StepMemory s;
  for (const HeldMoment& at : held_moments(c.order, c.pp, c.chunks, c.microbatches, p.rank)) {
    const double here = std::max(0.0, p.held_layers - (c.zero >= 3 ? c.keeping.offloaded : 0));
    double held = here * (at.before * layer.kept + at.waiting * layer.waiting);
    if (at.waiting == 0) held += layer.backward - layer.kept;  // of one layer
    held *= f[size_t(Fit::kept)];
    const double logits = at.logits > 0 ? at.logits * logit_bytes(c, f) + loss_bytes(c, f) : 0;
    if (held + logits > s.activations + s.logits) s.activations = held, s.logits = logits;
  }
  s.states = rank_states(c, p);
  s.gradients = passing_bytes(c, p, f[size_t(Fit::kept)] * p.held_layers * layer.kept + s.logits);
  s.base = f[size_t(Fit::base)];
  s.total = s.states + s.activations + s.gradients + s.logits + s.base;
  return s;
}

StepMemory step_memory(const StepCase& c, const FitValues& f) {
  StepMemory most;
  for (const PipelinePlace& p : pipeline_places(c))
    if (const StepMemory m = rank_memory(c, f, p); m.total > most.total && (p.rank == 0 || !c.keeping.first))
      most = m;
  return most;
}

}  // namespace trireme
