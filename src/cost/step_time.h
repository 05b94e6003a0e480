// Seconds of a training step in closed form: an extended roofline (compute,
// memory, network) with a few named constants, for runs that nobody will
// execute here: other people's, on other people's machines. What this machine
// will run is priced op by op instead (measure/price.h). docs/score.md derives
// every term.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "base/interned.h"
#include "cost/device_curves.h"
#include "cost/pipeline_held.h"
#include "spec/model_spec.h"
#include "spec/software_profile.h"

namespace trireme {

// Constants that measurements give, each of one of three layers
// (docs/score.md).
enum class Fit {
  gemm,       // device: share of the bf16 peak that a large product reaches
  gemm_soft,  // software: the same, relative to the device's
  gemm8,      // software: share of the fp8 peak
  gemm4,      // software: share of the fp4 peak
  blocks8,    // software: fp8 with a scale for every 32 numbers (MXFP8), relative
              // to one for a tensor
  attention,  // software: of DeviceFigures::attention
  host,       // software: seconds that a layer's launches take, a microbatch
  host_moe,   // software: the same of a layer with experts
  memory,     // software: elementwise traffic, relative to the closed form
  routing,    // software: traffic of tokens on their way to and from experts,
              // relative to the closed form
  softmax,    // software: bytes a score, unfused attention
  tp,         // software: exposed share of tensor parallel collectives
  pp,         // software: exposed share of messages between stages
  cp,         // software: exposed share of context parallel exchange
  ep,         // software: exposed share of experts' all-to-all
  ep_far,     // software: of what of it leaves the node where stages have one chunk: no other
              // microbatch's compute hides it
  expert,     // software: rate of experts' products relative to dense ones
  each,       // software: seconds that launching the products of one expert more takes, a layer
              // and microbatch
  dp,         // site: exposed share of gradients' and weights' collectives
  jitter,     // site: growth of the step for each doubling of nodes
  step,       // software: seconds a step beside all that
  ring,       // site: seconds that a collective of gradients or weights takes for
              // each further rank
  pace,       // site: the whole step, relative (clocks, power limits, stragglers)
  kept,       // software, memory: activations relative to the closed form
  base,       // software, memory: bytes beside states and activations
  count
};
inline constexpr size_t kFits = size_t(Fit::count);
std::string_view name_of(Fit);
using FitValues = std::array<double, kFits>;

enum class NumberType {
  half,
  fp8,
  mxfp8,
  fp4
};  // of the blocks' products; head and attention stay in 16 bits

// Whose ranks are neighbours: tp's always come before others in the first two.
enum class Nearest {
  tensor,   // "pp dp cp tp": then replicas; stages are far apart
  stages,   // "dp pp cp tp": then stages; replicas are far apart
  replicas  // "pp tp cp dp": replicas first; tp's ranks are far apart
};
inline constexpr size_t kOrders = 3;  // of Nearest

// How blocks are cut into stages.
enum class StageCut {
  even,     // as many for each; where they do not divide, those with the embedding and the head have one less
            // (Qi et al. 2024, Llama 3)
  by_cost,  // the dearest stage costs as little as it can, the head beside its blocks (model/stages.h)
  by_share  // a stage ends behind the block that brings the blocks so far above its share of the whole cost,
            // the head's with it (nanotron)
};

// Messages between stages that compute waits for, but where the pipeline fills and drains.
enum class StageMessages {
  by_schedule,  // all of each where stages have one chunk; none behind other chunks' compute (Megatron Core:
                // "non-interleaved pipeline parallelism does not support overlapping p2p communication")
  waited,       // all of each
  in_turn,  // all of each, and of the opposite one: a pass begins when neighbors have sent each other what
            // the last pass made, one after another (DeepSpeed's pipeline engine, deepspeed/runtime/pipe)
  hidden    // none
};

// Modules of a block that are done again, and what they put out is not kept (Megatron Core's
// recompute_modules).
struct RedoneModules {
  bool norms = false, up_projections = false;                   // of latent attention
  bool dense_feed_forward = false, expert_activations = false;  // of blocks without experts; of experts
  bool operator==(const RedoneModules&) const = default;
};

// Of a block that is done again, what is kept beside its input.
enum class SavedProducts {
  by_share,  // the share that StepCase::recompute leaves
  all,       // what its products put out
  qkv_out,   // queries, keys, values and attention's projection
  qkv
};

// What a software keeps on a device, where it is not as others (docs/score.md has the sources).
struct Keeping {
  double hidden = 18;         // bytes of a hidden unit of a block: 2 of them are dropout's masks
  double ffn = 4;             // of a feed-forward unit
  double loss = 4;            // of a logit in the loss, beside its 16 bits
  double loss_parts = 0;      // the same where tensor parallel ranks have parts of the logits; 0 = as `loss`
  bool whole_logits = false;  // each tensor parallel rank has the logits of all words, and their loss
  bool gathered = false;      // what tensor parallel products read stays as it was gathered, whole
  bool products = false;      // recompute of a share keeps attention's result and every second product's
  bool gradients = false;     // 16-bit gradients of a whole stage; where replicas divide nothing, also the
                              // buckets that they are summed in
  bool fsdp = false;   // weights are 16-bit only where gathered: of a pipeline's stage all and for the whole
                       // step, as are its gradients, in f32; else two blocks and the tables
  bool split = false;  // a pipeline's microbatches are as many as its stages, however many a row says
  bool first = false;  // said of the first stage, not of the fullest
  bool tensors =
      false;  // tensor by tensor, in the type of the products (kept_tensors.h), not `hidden`, `ffn`
  bool dropout = false;            // with `tensors`: and dropout's two masks
  bool weights8 = false;           // parameters of blocks are 8-bit where products are
  bool cast_weights = false;       // or stay 16-bit, with what products read beside them for a whole step
  bool transposed = false;         // 8-bit weights lie there twice, read either way
  bool divided_gradients = false;  // gradients are divided as optimizer state is, whatever `zero`
  bool inputs_elsewhere = false;   // blocks' inputs wait for their backward pass in the host's memory
  double optimizer = 12;           // bytes of a parameter: f32 master copy and two moments
  double offloaded = 0;  // blocks whose activations wait in the host's memory, where ZeRO 3 divides all
  bool attention8 =
      false;           // with `tensors`: attention's core keeps queries, keys, values and result in 8 bits
  RedoneModules redo;  // with `tensors`
};

// One run: model and layout. cp divides sequences, tp matrices, ep experts;
// world = pp dp cp tp.
struct StepCase {
  ModelSpec model;  // finish()ed
  int64_t seq = 0;
  int64_t window = 0;        // of some layers' attention, in keys; 0 = all
  double window_share = 0;   // which share of layers that is
  bool expert_bias = false;  // experts' products have biases, of which the second's is added expert by expert
  int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int64_t expert_tp = 1;   // ranks that divide each expert: tp, or none, where tp's ranks divide its rows
  bool grouped = true;     // products of a rank's experts run together and fill the device as one
  double ep_buffer = 1.5;  // layout.ep_buffer
  int64_t micro = 1, microbatches = 1, chunks = 1;
  int zero = 0;                      // 3: weights gathered for every microbatch
  int64_t shards = 0;                // zero 3: ranks that divide the state; 0 = dp
  bool sequence = true;              // what lies between tp's products is divided too
  bool fused_norms = true;           // a norm is one kernel; else one of PyTorch's operations after another
  double recompute = 0;              // share of a block's forward that is done again
  bool recompute_attention = false;  // and of unfused attention its core
  double bubble = 1;                 // the pipeline's idle time relative to 1F1B's
  double grad_bytes = 4;             // of a gradient on the wire
  double grad_stored = 4;            // of a gradient in memory
  PipelineOrder order = PipelineOrder::one_f_one_b;
  StageCut cut = StageCut::even;
  const NumberList* stage_layers = nullptr;  // interned; trireme's runs: blocks per stage, instead of `cut`
  Keeping keeping;
  int64_t sliced = 0;  // tensors of a block that ZeRO's sums and gathers cut into every replica's slices one
                       // by one, where others move one flat buffer; 0 = so
  Nearest nearest = Nearest::tensor;
  SavedProducts saved = SavedProducts::by_share;
  bool renorm = false;            // what norms and activations put out is computed again (selective)
  double offload = 0;             // bytes/s of a device to where optimizer state waits; 0 = it stays
  bool offload_each_way = false;  // both ways at once, each at that rate: the host's link; a disk shares it
  double tp_exposed = 1;          // of tensor parallel collectives, beside Fit::tp: less
                                  // where products are cut to hide them
  StageMessages messages = StageMessages::by_schedule;
  bool scatters = false;  // a message between stages travels in as many parts as tensor parallel ranks
                          // (sequence parallelism: always), which gather it where it arrives
  // Weight gradients are added to those of earlier microbatches by separate operations, not by the
  // products that compute them.
  bool adds_gradients = false;
  // Gate and up projections are two products, and each sums the gradient of its input over tensor parallel
  // ranks, unless sequences are divided (`sequence`).
  bool reduces_gate = false;
  bool blocking = false;      // the host waits for each kernel that it launches: launches take time too
  bool sums_whole = false;    // below ZeRO 3 every replica sums all gradients, also where state is divided
  bool sums_hidden = false;   // of gradients and weights but those of one chunk, behind the others' passes
  bool side_by_side = false;  // attention and feed-forward read the same norm: half of the tensor parallel
                              // collectives
  SoftwareProfile software = kElsewhere;
  // Of trireme's own runs:
  bool cast = true;        // gradients travel in another type than they are summed in
  bool cp_overlap = true;  // keys and values of the next block travel while one is computed
  double cp_busiest = 1;   // pairs of attention that the busiest rank of cp computes, over the mean
  double ep_load = 1;      // rows of the most loaded rank's experts, over the mean
  // zero 3: units gathered ahead; weights are released after the forward pass, and also those of the
  // last layer if its backward pass is next.
  int64_t prefetch = 1;
  bool reshard_after_forward = true, reshard_last = true;
  NumberType numbers = NumberType::half;
  AttentionKind attention = AttentionKind::flash;
  int64_t gpus() const { return tp * pp * dp * cp; }
};

// Parts of a step, in seconds; they add up to `total`.
struct StepSeconds {
  double products = 0, attention = 0, elementwise = 0,
         host = 0;  // of the busiest stage, all microbatches
  double tp = 0, cp = 0, ep = 0, head = 0;
  double bubble = 0, messages = 0, gradients = 0, optimizer = 0, offload = 0, jitter = 0;
  double total = 0;
};
StepSeconds step_time(const StepCase&, const DeviceFigures&, const FitValues&);

// Seconds that a device computes one layer of one microbatch, by pass. Cases that differ in anything but
// the microbatch, tp, cp, ep and expert_tp have the same.
struct LayerCompute {
  // Forward, and backward: the gradients of what went in, and of the weights.
  struct Pass {
    double forward = 0, input = 0, weight = 0;
    double backward() const { return input + weight; }
    double both() const { return forward + backward(); }
    Pass& operator+=(const Pass& o) {
      forward += o.forward;
      input += o.input;
      weight += o.weight;
      return *this;
    }
  };
  Pass products, core, traffic;  // core: of attention
  Pass shared;                   // the shared expert's part of `products`
};
LayerCompute layer_compute(const StepCase&, const DeviceFigures&, const FitValues&, bool experts);

// Parts that the layouts of one division have alike. They depend neither on the number of microbatches nor on
// ZeRO, offload and the schedule, but for whether stages have one chunk or several.
struct StepParts {
  double products = 0, attention = 0, elementwise = 0, tp = 0, cp = 0, ep = 0, host = 0,
         total = 0;               // seconds of all blocks and a microbatch
  double head = 0;                // seconds a microbatch
  double dense = 0, experts = 0;  // parameters of the fullest rank
};
StepParts step_parts(const StepCase&, const DeviceFigures&, const FitValues&);
// dense, experts: layer_compute() of blocks without and with experts.
StepParts step_parts(const StepCase&, const DeviceFigures&, const FitValues&, const LayerCompute& dense,
                     const LayerCompute& experts);
StepSeconds step_time(const StepCase&, const DeviceFigures&, const FitValues&, const StepParts&);

// FLOPs of a step over all devices, causal attention at half: `recomputed` adds
// what is done again.
double step_flops(const StepCase&, bool recomputed);

}  // namespace trireme
