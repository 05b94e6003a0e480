#include "cost/step_time.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"
#include "cost/pipeline_layers.h"
#include "cost/ring_waits.h"
#include "cost/stage_time.h"
#include "cost/stated_links.h"
#include "cost/step_state.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, kFits> kFitNames = {
    "gemm",    "gemm_soft", "gemm8", "gemm4", "blocks8", "attention", "host",   "host_moe", "memory",
    "routing", "softmax",   "tp",    "pp",    "cp",      "ep",        "ep_far", "expert",   "each",
    "dp",      "jitter",    "step",  "ring",  "pace",    "kept",      "base"};

using Passes = LayerCompute::Pass;
Passes times(double n, const Passes& p) {
  return {n * p.forward, n * p.input, n * p.weight};
}

struct StepRoof {
  const StepCase& c;
  const DeviceFigures& d;
  const FitValues& f;
  double of(Fit x) const { return f[size_t(x)]; }
  ProductRate gemm_rate(bool blocks) const {
    const double reached = of(Fit::gemm) * of(Fit::gemm_soft);
    if (!blocks || c.numbers == NumberType::half) return {d.bf16 * reached, 2};
    if (c.numbers == NumberType::fp4) return {d.fp4 * reached * of(Fit::gemm4), 0.5};
    return {d.fp8 * reached * of(Fit::gemm8) * (c.numbers == NumberType::mxfp8 ? of(Fit::blocks8) : 1), 1};
  }
  Passes linear(double rows, double in, double out, ProductRate rate, double group = 1) const {
    return {product_seconds(d, rows, out, in, rate, group), product_seconds(d, rows, in, out, rate, group),
            product_seconds(d, in, out, rows, rate, group)};
  }
  // Seconds by the cluster file's own constants: the least that trireme's own runs take.
  double stated(CollectiveKind kind, double bytes, double n, double stride) const {
    if (!c.software.ordered() || !d.links || n <= 1) return 0;
    return d.links->seconds(kind, bytes, int64_t(n), int64_t(stride));
  }
  // What a rank moves of a buffer of `bytes` in an all-gather or reduce-scatter
  // among n ranks, `stride` apart. An all-reduce counts the buffer twice.
  double gathered(double bytes, double n, double stride, bool all_reduce = false) const {
    if (n <= 1) return 0;
    const double moved = bytes * (n - 1) / n / link(n, stride);
    return std::max(moved, all_reduce ? stated(CollectiveKind::all_reduce, bytes / 2, n, stride)
                                      : stated(CollectiveKind::all_gather, bytes, n, stride));
  }
  // How much longer a round to far devices takes than on a usual network, of 3 us.
  double slower_rounds() const {
    constexpr double kUsual = 3e-6;
    return d.latency > 0 ? d.latency / kUsual : 1;
  }
  // Ranks between neighbours of a group, by the order of the axes.
  double tensor_stride() const { return c.nearest == Nearest::replicas ? double(c.dp * c.cp) : 1; }
  double replica_stride() const {
    return c.nearest == Nearest::replicas ? 1 : double(c.tp) * stages_between();
  }
  // Tensor parallel ranks divide each expert. Then ep's ranks are replicas of the dense layers (Megatron Core
  // before separate expert tensor parallelism).
  bool divided_experts() const { return c.software.divides_experts && c.expert_tp > 1; }
  // Ranks between two neighbours that exchange choices of experts.
  double exchange_stride() const {
    if (divided_experts()) return replica_stride() * double(c.cp);
    return c.ep > c.tp * c.cp ? stages_between() : 1;
  }
  // Experts' ranks are the stage's, numbered without gaps (mesh/mesh.h): ep of them hold different experts.
  double expert_stride() const {
    return double(c.ep) * (divided_experts() ? exchange_stride() : stages_between());
  }
  // A stage's ranks are runs of tp * cp neighbours. Returns the number of stages whose runs share a node.
  double stages_between() const {
    if (c.nearest != Nearest::stages) return 1;
    return std::clamp(d.near / double(c.tp * c.cp), 1.0, double(c.pp));
  }
  double context_stride() const { return double(c.nearest == Nearest::replicas ? c.dp : c.tp); }
  bool stages_near() const {
    return double(c.nearest == Nearest::stages ? c.tp * c.cp * c.pp : c.gpus()) <= d.near;
  }
  // Bandwidth that a rank sees of a ring over n ranks, `stride` apart: near
  // devices' own, else the node's network divided among its rings.
  double link(double n, double stride) const {
    constexpr double kReached = 0.85;
    if (n * stride <= d.near) return d.bus;
    const double ranks_near = std::max(1.0, d.near / stride);
    return std::min(d.bus, d.nic * ranks_near * kReached);
  }
};

double rows_of(const StepCase& c) {
  return double(c.micro) * double(c.seq) / double(c.cp);
}

Passes attention_products(const StepRoof& r) {
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c), t = double(r.c.tp), h = double(m.hidden);
  const ProductRate rate = r.gemm_rate(true);
  Passes p;
  if (m.latent()) {
    if (m.q_rank > 0) {
      p += r.linear(rows, h, double(m.q_rank), rate);
      p += r.linear(rows, double(m.q_rank), double(m.q_size()) / t, rate);
    } else {
      p += r.linear(rows, h, double(m.q_size()) / t, rate);
    }
    p += r.linear(rows, h, double(m.kv_rank + m.rope_head_dim), rate);
    p += r.linear(rows, double(m.kv_rank), double(m.heads * (m.nope_head_dim + m.v_head_dim)) / t, rate);
  } else {
    p += r.linear(rows, h, double(m.q_size() + 2 * m.kv_size()) / t, rate);
  }
  p += r.linear(rows, double(m.o_size()) / t, h, rate);
  return p;
}

Passes feed_forward(const StepRoof& r, bool experts) {
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c), t = double(r.c.tp), h = double(m.hidden);
  const ProductRate rate = r.gemm_rate(true);
  const double up = m.activation == "swiglu" ? 2 : 1;
  Passes p;
  if (!experts) {
    p += r.linear(rows, h, up * double(m.ffn) / t, rate);
    p += r.linear(rows, double(m.ffn) / t, h, rate);
    return p;
  }
  // Balanced: each of E experts sees rows k / E of every ep group's choices; tp
  // ranks divide the rows.
  const double parts = double(r.c.expert_tp), local = double(m.experts) / double(r.c.ep);
  const double choices = rows / t * parts * double(m.experts_per_token) * r.c.ep_load;
  const double each = choices * double(r.c.ep) / double(m.experts);
  const ProductRate expert_rate = {rate.flops * r.of(Fit::expert), rate.bytes};
  const double wide = double(m.moe_ffn) / parts;
  const double together = r.c.grouped ? local : 1;
  const Passes one_up = r.linear(each, h, 2 * wide, expert_rate, together),
               one_down = r.linear(each, wide, h, expert_rate, together);
  p += times(local, one_up);
  p += times(local, one_down);
  p += r.linear(rows / t, h, double(m.experts), r.gemm_rate(false));
  if (m.shared_ffn > 0) {
    p += r.linear(rows, h, 2 * double(m.shared_ffn) / t, rate);
    p += r.linear(rows, double(m.shared_ffn) / t, h, rate);
  }
  return p;
}

// The core: scores, softmax, weighted values. Fused: the causal half, by a kernel's curve. Unfused: all
// scores, two batched products and the softmax's traffic; heads that are no multiple of 8 fall off the tensor
// cores.
Passes attention_core(const StepRoof& r) {
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c), t = double(r.c.tp), s = double(r.c.seq);
  const double windowed = r.c.window > 0 ? r.c.window_share : 0;
  const double keys =
      r.c.cp_busiest * ((1 - windowed) * s / 2 + windowed * std::min(double(r.c.window), s / 2));
  const double width = double(m.q_size() + m.o_size()) / t;
  if (r.c.attention != AttentionKind::unfused) {
    const AttentionSeconds a = attention_seconds(r.d, r.c.attention, 2 * rows * keys * width, s,
                                                 double(m.head_dim), r.of(Fit::attention));
    return {a.forward, a.backward, 0};
  }
  constexpr double kBatched = 0.62, kHalfHead = 50, kMisaligned = 0.11, kBackwardTraffic = 1.5;
  const auto dim = double(m.head_dim);
  const double rate =
      r.gemm_rate(false).flops * kBatched * dim / (dim + kHalfHead) * (m.head_dim % 8 != 0 ? kMisaligned : 1);
  const double products = 2 * rows * s * width / rate;
  const double traffic =
      traffic_seconds(r.d, Traffic::elementwise, r.of(Fit::softmax) * double(m.heads) / t * rows * s);
  return {products + traffic, 2 * products + kBackwardTraffic * traffic, 0};
}

// Norms, activations, residuals: bytes of a row's pass, forward.
Passes elementwise(const StepRoof& r, bool experts) {
  const ModelSpec& m = r.c.model;
  constexpr double kBackward = 1.7;
  const double t = double(r.c.tp), h = double(m.hidden), up = m.activation == "swiglu" ? 2 : 1;
  // Side by side: one norm and one sum of residuals less two reads and two writes.
  const double residual = r.c.attention == AttentionKind::unfused ? 24 : r.c.side_by_side ? 12 : 16;
  // A norm of single operations in f32 moves 36 bytes of a unit for a kernel's 4 (docs/score.md).
  const double norms = r.c.fused_norms ? 0 : 2 * (36 - 4);
  double bytes = h * (residual + norms) / (r.c.sequence ? t : 1) + 12 * double(m.q_size()) / t;
  if (experts) {
    const auto k = double(m.experts_per_token);
    bytes += 10 * double(m.shared_ffn) / t;
    // The bias of an expert's second product, times the router's f32 share: multiplied, added, joined,
    // rounded (Megatron-LM, TEGroupedMLP._apply_bias): 4 + 10 + 8 + 6 bytes.
    const double outer = r.c.expert_bias ? 12 + 28 : 12;
    bytes +=
        r.of(Fit::routing) / r.of(Fit::memory) * k * r.c.ep_load * (10 * double(m.moe_ffn) + outer * h) / t;
  } else {
    bytes += (4 * up + 2) * double(m.ffn) / t;
  }
  const double seconds = traffic_seconds(r.d, Traffic::elementwise, r.of(Fit::memory) * bytes * rows_of(r.c));
  return {seconds, kBackward * seconds, 0};
}

// Two sums over the tp ranks' rows each way (all-reduce, or all-gather and
// reduce-scatter: the same bytes).
double tensor_collective(const StepRoof& r) {
  const auto t = double(r.c.tp);
  if (t <= 1) return 0;
  const bool is_near = t * r.tensor_stride() <= r.d.near;
  const double bytes = 2 * (t - 1) / t * rows_of(r.c) * double(r.c.model.hidden) * 2;
  const double stride = r.tensor_stride();
  const double bus = is_near ? r.d.bus * std::min(1.0, 0.65 + 0.05 * t) : r.link(t, stride);
  // A start and each further rank. NCCL's ring has a protocol for short messages, at a quarter of the
  // bandwidth, and one for long messages (src/graph/tuning.cc). The first gives the measured 12.9 us of 8
  // ranks in a node. The second gives all_reduce of 8 H200 from 4 to 32 MiB, and far ranks 55.5 us of 16 on
  // two nodes (docs/score.md, curves).
  const double others = t - 1;
  const double far = bytes / bus + (10e-6 + others * 3e-6) * r.slower_rounds();
  const double near =
      std::min(4 * bytes / bus + 6e-6 + others * 1e-6, bytes / bus + 8.4e-6 + others * 6.8e-6);
  const double share = r.of(Fit::tp) * r.c.tp_exposed * (r.c.side_by_side ? 0.5 : 1);
  const double buffer = rows_of(r.c) * double(r.c.model.hidden) * 2;
  const double stated = r.c.sequence ? r.stated(CollectiveKind::all_gather, buffer, t, stride) +
                                           r.stated(CollectiveKind::reduce_scatter, buffer, t, stride)
                                     : r.stated(CollectiveKind::all_reduce, buffer, t, stride);
  return std::max(share * (is_near ? near : far), stated);
}

// Keys and values to every rank of the context, and their gradients back. core: of attention, which the
// blocks on their way hide behind.
Passes context_exchange(const StepRoof& r, const Passes& core) {
  const auto n = double(r.c.cp);
  if (n <= 1) return {};
  const double kv = 2 * double(r.c.model.kv_size()) / double(std::min(r.c.tp, r.c.model.kv_heads));
  const double seconds = r.of(Fit::cp) * rows_of(r.c) * (n - 1) * kv * 2 / r.link(n, r.context_stride());
  if (r.c.software.ordered()) {
    constexpr double kSums = 2;  // gradients are f32 where keys and values are 16 bits
    const double hop = std::max(seconds / (n - 1),
                                r.stated(CollectiveKind::p2p, rows_of(r.c) * kv * 2, n, r.context_stride()));
    if (!r.c.cp_overlap) return {(n - 1) * hop, (n - 1) * hop + n * kSums * hop, 0};
    return {ring_forward_waits(r.c.cp, core.forward, hop),
            ring_backward_waits(r.c.cp, core.input + core.weight, hop, kSums * hop), 0};
  }
  return {seconds, 2 * seconds, 0};
}

// Choices to their experts and back, both ways: four all-to-alls of a layer.
// Across nodes a row travels to a node once, whatever number of its experts
// live there. Between nodes it hides behind another microbatch's compute, which a rank has at hand where its
// stages have several chunks.
double expert_exchange(const StepRoof& r) {
  const auto n = double(r.c.ep);
  if (n <= 1) return 0;
  constexpr double kReached = 0.65, kHalf = 2;
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c) / double(r.c.tp) * r.c.ep_load, h = double(m.hidden),
               k = double(m.experts_per_token);
  const double apart = r.exchange_stride();
  const double in_node = std::max(1.0, r.d.near / apart);
  const double near = std::min(n, in_node), nodes = std::max(1.0, n / in_node);
  const double near_seconds = rows * k * h * kHalf * (near - 1) / near / (kReached * r.d.bus);
  const double copies = nodes * (1 - std::pow(1 - 1 / nodes, k));
  const double far_seconds =
      nodes > 1 ? rows * copies * (nodes - 1) / nodes * h * kHalf / (kReached * r.d.nic) : 0;
  const double far_exposed = r.of(r.c.chunks > 1 ? Fit::ep : Fit::ep_far);
  return 2 * std::max(r.of(Fit::ep) * near_seconds + far_exposed * far_seconds,
                      r.stated(CollectiveKind::all_to_all, rows * k * h * kHalf, n, apart));
}

// The shared expert computes while choices travel to theirs.
Passes shared_products(const StepRoof& r) {
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c), t = double(r.c.tp), h = double(m.hidden);
  const ProductRate rate = r.gemm_rate(true);
  if (m.shared_ffn == 0) return {};
  Passes p = r.linear(rows, h, 2 * double(m.shared_ffn) / t, rate);
  p += r.linear(rows, double(m.shared_ffn) / t, h, rate);
  return p;
}

// One layer on one microbatch, by pass; collectives once each: tp twice forward
// and twice backward, experts' exchange once each way.
struct LayerPasses {
  Passes products, core, traffic, context;
  double tp = 0;
  double tp_weight = 0;  // for weight gradients: trireme gathers rows that lie divided once more
  Passes ep;
};
LayerPasses layer_passes(const StepRoof& r, bool experts, const LayerCompute& compute) {
  LayerPasses p{.products = compute.products,
                .core = compute.core,
                .traffic = compute.traffic,
                .context = {},
                .tp = tensor_collective(r),
                .ep = {}};
  // Ranks that divide each expert gather and sum a row for each of its choices, of attention a row once.
  if (experts && r.divided_experts()) p.tp *= (1 + double(r.c.model.experts_per_token)) / 2;
  p.context = context_exchange(r, p.core);
  const double exchange = experts ? expert_exchange(r) : 0;
  p.ep = {exchange, exchange, 0};
  if (!r.c.software.ordered()) return p;
  if (r.c.sequence) p.tp_weight = p.tp;  // as many bytes as a gather in and a sum out of both halves
  if (exchange > 0) {
    p.ep.forward -= std::min(exchange / 2, compute.shared.forward);
    p.ep.input -= std::min(exchange / 2, compute.shared.input);
  }
  return p;
}
double core_again(const StepCase& c) {
  return std::max(c.recompute, c.recompute_attention ? 1.0 : 0.0);
}
double traffic_again(const StepCase& c) {
  return std::max(c.recompute, c.renorm ? 1.0 : 0.0);
}

// Tensor parallel collectives of the input gradients, per layer.
double input_collectives(const StepCase& c, bool experts) {
  const bool gate = c.reduces_gate && !c.sequence && !experts && c.model.activation == "swiglu";
  return gate ? 3 : 2;
}

// The same with what is done again, by what the time goes to.
struct LayerTime {
  double products = 0, attention = 0, elementwise = 0, tp = 0, cp = 0, ep = 0, host = 0, total = 0;
};
LayerTime layer_time(const StepRoof& r, bool experts, const LayerPasses& p) {
  const double again = r.c.recompute;
  LayerTime l;
  l.products = p.products.both() + again * p.products.forward;
  l.attention = p.core.both() + core_again(r.c) * p.core.forward;
  l.elementwise = p.traffic.both() + traffic_again(r.c) * p.traffic.forward;
  l.cp = p.context.both() + again * p.context.forward;
  l.tp = p.tp * (2 + input_collectives(r.c, experts) + 2 * again) + p.tp_weight;
  l.ep = p.ep.both() + again * p.ep.forward;
  constexpr double kAgain = 0.33;
  // Every expert that lives here has products, and casts, of its own to launch.
  const double local = experts ? double(r.c.model.experts) / double(r.c.ep) : 0;
  l.host = (r.of(experts ? Fit::host_moe : Fit::host) + r.of(Fit::each) * local) * (1 + kAgain * again);
  const double device = l.products + l.attention + l.elementwise + l.tp + l.cp + l.ep;
  // Launches run ahead of the device while it is busy.
  l.total = r.c.blocking ? device + l.host : std::hypot(device, l.host);
  l.host = l.total - device;
  return l;
}

// Logits and loss: three products in 16 bits that are never done again, and
// what the loss reads and writes.
Passes head_passes(const StepRoof& r) {
  constexpr double kLossBytes = 24, kForward = 0.5;
  const ModelSpec& m = r.c.model;
  const double rows = rows_of(r.c), logits = double(m.vocab) / double(r.c.tp);
  const double loss = kLossBytes * rows * logits / r.d.bandwidth;
  Passes p = r.linear(rows, double(m.hidden), logits, r.gemm_rate(false));
  p += {kForward * loss, (1 - kForward) * loss, 0};
  return p;
}

// Gradients' sums, and weights' gathers: behind the step, or (zero 3) around
// every microbatch.
double gradient_time(const StepRoof& r, const StepParts& s, double compute) {
  const StepCase& c = r.c;
  const double replicas = double(c.dp * c.cp), stride = r.replica_stride();
  const double expert_replicas = std::max(1.0, replicas * double(c.tp) / double(c.ep * c.expert_tp));
  constexpr double kHalf = 2;
  // A layer's collective starts at every rank in turn; microbatches gather and
  // reduce their own.
  const double layers = std::ceil(double(c.model.layers) / double(c.pp));
  const bool far = replicas * stride > r.d.near;
  const double starts = r.of(Fit::ring) * (far ? r.slower_rounds() : 1) * (replicas - 1) * layers;
  if (c.zero < 3) {
    // ZeRO 2 has nowhere to keep whole gradients: each microbatch's are reduced.
    const double sums = c.zero == 2 ? double(c.microbatches) : 1;
    const double each = (c.sums_whole ? 2 : 1) * c.grad_bytes;  // an all_reduce, or a reduce_scatter
    const double bytes = c.zero == 0 ? 2 * c.grad_bytes : sums * each + kHalf;
    const double share = r.of(Fit::dp) * (c.sums_hidden ? 1 / double(c.chunks) : 1);
    // Groups of replicas that divide the state sum their parts of the gradients among one another.
    const auto grouped = [&](double parameters, double all, double apart) {
      const double n = c.zero > 0 && c.shards > 0 ? std::min(double(c.shards), all) : all;
      return r.gathered(parameters * bytes, n, apart) +
             r.gathered(parameters / n * 2 * sums * c.grad_bytes, all / n, apart * n);
    };
    return share *
               (grouped(s.dense, replicas, stride) + grouped(s.experts, expert_replicas, r.expert_stride())) +
           sums * starts + sliced_time(c, layers);
  }
  const double m = double(c.microbatches), bytes = 2 * kHalf + c.grad_bytes;
  // Per microbatch within a shard group; per step between shard groups, a rank's own shard of the gradients
  // (Zhao et al. 2023, section 3.2.2). Replicas of an expert are further apart than replicas of the rest.
  const auto sharded = [&](double parameters, double all, double apart) {
    const double n = std::min(all, sharers(c));
    return m * r.gathered(parameters * bytes, n, apart) +
           r.gathered(parameters / n * 2 * c.grad_bytes, all / n, apart * n);
  };
  // Gathers and sums run while the device computes. Compute hides them if they are much shorter. If they are
  // much longer, they hide compute. Between the two, compute waits for a part of them.
  constexpr double kBeside = 3;
  const double moved = r.of(Fit::dp) * (sharded(s.dense, replicas, stride) +
                                        sharded(s.experts, expert_replicas, r.expert_stride()) + m * starts);
  const double waits = std::pow(std::pow(compute, kBeside) + std::pow(moved, kBeside), 1 / kBeside) - compute;
  // Each microbatch gathers for both passes, gathers again for recompute, and sums.
  const double lists = c.recompute > 0 ? 4 : 3;
  return waits + m * lists * sliced_time(c, layers);
}

// Weight gradients are read, and added to their sums, for each microbatch but the first.
double added_time(const StepRoof& r, double dense, double experts) {
  constexpr double kHalf = 2;
  if (!r.c.adds_gradients || r.c.zero >= 3) return 0;
  const double sum = r.c.grad_stored > kHalf ? 4 : kHalf;
  return double(r.c.microbatches - 1) *
         traffic_seconds(r.d, Traffic::elementwise, (kHalf + 2 * sum) * (dense + experts));
}

double update_time(const StepRoof& r, double dense, double experts) {
  constexpr double kBytes = 34;  // reads and writes of a parameter's update
  return traffic_seconds(r.d, Traffic::update,
                         (dense / sharers(r.c) + experts / expert_sharers(r.c)) * kBytes);
}

// Master weights and moments (12 bytes a parameter) read and written behind the step, a piece's read beside
// another's write.
double offloaded_time(const StepRoof& r, double dense, double experts) {
  constexpr double kBytes = 12;
  if (r.c.offload <= 0) return 0;
  const double ways = r.c.offload_each_way ? 1 : 2;
  return (dense / sharers(r.c) + experts / expert_sharers(r.c)) * ways * kBytes / r.c.offload;
}

// Of one, between neighbouring stages.
double one_message(const StepRoof& r) {
  constexpr double kReached = 0.8, kLatency = 20e-6;
  const double whole = rows_of(r.c) * double(r.c.model.hidden) * 2, parts = double(r.c.tp);
  const double bytes = whole / (r.c.sequence || r.c.scatters ? parts : 1);
  const double ranks = double(r.c.tp * r.c.cp) * (r.c.nearest == Nearest::stages ? 1 : double(r.c.dp));
  const double start = kLatency * (r.stages_near() ? 1 : r.slower_rounds());
  const double joined = r.c.scatters && !r.c.sequence ? r.gathered(whole, parts, r.tensor_stride()) : 0;
  return std::max(
      r.of(Fit::pp) * (bytes / (kReached * (r.stages_near() ? r.d.bus : r.d.nic)) + start + joined),
      r.stated(CollectiveKind::p2p, bytes, double(r.c.pp), ranks));
}
// Share of a chunk's messages that compute waits for.
double waited_messages(const StepCase& c) {
  if (c.software.ordered()) return 0.5;  // posted: what arrives while the rank computes is not waited for
  const bool hidden =
      c.messages == StageMessages::hidden || (c.messages == StageMessages::by_schedule && c.chunks > 1);
  if (hidden) return 0;
  return c.messages == StageMessages::in_turn ? 2 : 1;
}
double message_time(const StepRoof& r) {
  if (r.c.pp <= 1) return 0;
  const double fills = double(r.c.pp) - 1;
  return 2 * one_message(r) * (waited_messages(r.c) * double(r.c.chunks * r.c.microbatches) + fills);
}

// How much slower a step is than its parts: the site's pace, and what nodes
// wait for one another.
double jitter_of(const StepRoof& r) {
  const double nodes = std::max(1.0, double(r.c.gpus()) / 8);
  return r.of(Fit::pace) * (1 + r.of(Fit::jitter) * std::log2(nodes));
}

}  // namespace

std::string_view name_of(Fit f) {
  return kFitNames[size_t(f)];
}

double step_flops(const StepCase& c, bool recomputed) {
  const double tokens = double(c.dp) * double(c.micro) * double(c.microbatches) * double(c.seq);
  double flops = train_flops_per_token(c.model, c.seq);
  if (recomputed)
    flops += c.recompute *
             (forward_flops_per_token(c.model, c.seq) - 2 * double(c.model.hidden) * double(c.model.vocab));
  return flops * tokens;
}

LayerCompute layer_compute(const StepCase& c, const DeviceFigures& d, const FitValues& f, bool experts) {
  const StepRoof r{c, d, f};
  LayerCompute all{.products = attention_products(r),
                   .core = attention_core(r),
                   .traffic = elementwise(r, experts),
                   .shared = experts ? shared_products(r) : Passes()};
  all.products += feed_forward(r, experts);
  return all;
}

StepParts step_parts(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  const int64_t experts = c.model.expert_blocks();
  return step_parts(c, d, f, experts < c.model.layers ? layer_compute(c, d, f, false) : LayerCompute(),
                    experts > 0 ? layer_compute(c, d, f, true) : LayerCompute());
}

StepParts step_parts(const StepCase& c, const DeviceFigures& d, const FitValues& f, const LayerCompute& dense,
                     const LayerCompute& experts) {
  const StepRoof r{c, d, f};
  const auto with = double(c.model.expert_blocks()), layers = double(c.model.layers);
  StepParts all;
  const auto add = [&](const LayerTime& l, double n) {
    all.products += n * l.products, all.attention += n * l.attention, all.elementwise += n * l.elementwise;
    all.tp += n * l.tp, all.cp += n * l.cp, all.ep += n * l.ep, all.host += n * l.host;
    all.total += n * l.total;
  };
  if (layers > with) add(layer_time(r, false, layer_passes(r, false, dense)), layers - with);
  if (with > 0) add(layer_time(r, true, layer_passes(r, true, experts)), with);
  const Stored s = stored(c);
  const Passes head = head_passes(r);
  all.head = head.both();
  all.dense = s.dense, all.experts = s.experts;
  return all;
}

StepSeconds step_time(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  return step_time(c, d, f, step_parts(c, d, f));
}

StepSeconds step_time(const StepCase& c, const DeviceFigures& d, const FitValues& f, const StepParts& all) {
  const StepRoof r{c, d, f};
  const auto layers = double(c.model.layers);
  const double p = double(c.pp), m = double(c.microbatches), head = all.head;
  // The busiest rank: one with the most layers, or the one that has the head beside its own.
  const bool v = is_v(c.order);
  const PipelineBlocks blocks(c);
  const auto of_rank = [&](int64_t rank) { return blocks.own(rank) / layers * all.total; };
  const double fullest = std::max(of_rank(v ? c.pp - 1 : 0), of_rank(std::min<int64_t>(1, c.pp - 1)));
  const double busiest = p > 1 ? std::max(fullest, of_rank(v ? 0 : c.pp - 1) + head) : all.total + head;
  const double share = busiest / (all.total + head), idle = all.total + head - busiest;
  StepSeconds s;
  s.products = m * share * all.products, s.attention = m * share * all.attention;
  s.elementwise = m * share * all.elementwise, s.host = m * share * all.host;
  s.tp = m * share * all.tp, s.cp = m * share * all.cp, s.ep = m * share * all.ep;
  s.head = m * share * head;
  s.bubble = idle * c.bubble / double(c.chunks);
  s.messages = message_time(r);
  s.gradients = gradient_time(r, all, m * busiest) + added_time(r, all.dense, all.experts);
  s.optimizer = update_time(r, all.dense, all.experts) + r.of(Fit::step);
  s.offload = offloaded_time(r, all.dense, all.experts);
  const double sum = m * busiest + s.bubble + s.messages + s.gradients + s.optimizer + s.offload;
  s.jitter = sum * (jitter_of(r) - 1);
  s.total = sum + s.jitter;
  return s;
}

// ---- by action (stage_time.h) ----

ActionSeconds layer_actions(const StepCase& c, const DeviceFigures& d, const FitValues& f, bool experts) {
  return layer_actions(c, d, f, experts, layer_compute(c, d, f, experts));
}

ActionSeconds layer_actions(const StepCase& c, const DeviceFigures& d, const FitValues& f, bool experts,
                            const LayerCompute& compute) {
  const StepRoof r{c, d, f};
  const LayerPasses p = layer_passes(r, experts, compute);
  const double again = c.recompute;
  ActionSeconds a;
  a.forward = {p.products.forward + p.core.forward + p.traffic.forward, 2 * p.tp, p.context.forward,
               p.ep.forward};
  a.input = {p.products.input + p.core.input + p.traffic.input, input_collectives(c, experts) * p.tp,
             p.context.input, p.ep.input};
  a.weight.compute = p.products.weight + p.core.weight + p.traffic.weight;
  a.weight.tp = p.tp_weight;
  a.again = {
      again * p.products.forward + traffic_again(c) * p.traffic.forward + core_again(c) * p.core.forward,
      again * 2 * p.tp, again * p.context.forward, again * p.ep.forward};
  // Launches that do not run ahead of the device slow what it computes.
  const double computing = a.forward.compute + a.input.compute + a.weight.compute + a.again.compute;
  const double slower = 1 + layer_time(r, experts, p).host / computing;
  for (PassSeconds* pass : {&a.forward, &a.input, &a.weight, &a.again}) pass->compute *= slower;
  return a;
}

ActionSeconds head_actions(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  const Passes p = head_passes({c, d, f});
  ActionSeconds a;
  a.forward.compute = p.forward, a.input.compute = p.input, a.weight.compute = p.weight;
  return a;
}

HeldParameters layer_held(const StepCase& c, bool experts) {
  const ModelSpec& m = c.model;
  const double all = experts ? block_expert_parameters(m) : 0;
  return {(double(block_parameters(m, 1, experts)) - all) / double(c.tp), all / double(c.ep * c.expert_tp)};
}

double table_held(const StepCase& c) {
  return double(c.model.hidden) * double(c.model.vocab) / double(c.tp);
}

StateSeconds state_seconds(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                           const HeldParameters& held, double layers) {
  const StepRoof r{c, d, f};
  constexpr double kHalf = 2;
  const double replicas = double(c.dp * c.cp);
  const double expert_replicas = std::max(1.0, replicas * double(c.tp) / double(c.ep * c.expert_tp));
  const double share = c.zero >= 3 && !c.software.ordered() ? 1 : r.of(Fit::dp);
  const bool whole = c.zero == 0 || (c.sums_whole && c.zero < 3);
  const double sums = whole ? 2 : 1;
  // Of all of these parameters, dense and experts'.
  const auto of = [&](double parameters, double bytes, double n, double stride, bool all_reduce = false) {
    return share *
           r.gathered(parameters * bytes, c.zero >= 3 ? std::min(n, sharers(c)) : n, stride, all_reduce);
  };
  const double own = r.replica_stride(), far = r.expert_stride();
  StateSeconds s;
  const double rounds = replicas * own > d.near ? r.slower_rounds() : 1;
  s.reduce = of(held.dense, sums * c.grad_bytes, replicas, own, whole) +
             layers * r.of(Fit::ring) * rounds * (replicas - 1);
  s.reduce_experts = of(held.experts, sums * c.grad_bytes, expert_replicas, far, whole);
  if (c.software.ordered() && c.zero >= 3) {
    // Shard groups: each microbatch's sums among groups as well, of a rank's own shard.
    const auto among = [&](double parameters, double n, double stride) {
      const double groups = n / std::min(n, sharers(c));
      return r.gathered(parameters / sharers(c) * 2 * c.grad_bytes, groups, stride * sharers(c), true);
    };
    s.reduce += among(held.dense, replicas, own);
    s.reduce_experts += among(held.experts, expert_replicas, far);
  }
  if (c.zero == 0) return s;
  s.gather = of(held.dense, kHalf, replicas, own) + sliced_time(c, layers);
  if (c.zero >= 3) s.reduce += sliced_time(c, layers);
  s.gather_experts = of(held.experts, kHalf, expert_replicas, far);
  return s;
}

double update_seconds(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                      const HeldParameters& held) {
  const StepRoof r{c, d, f};
  return update_time(r, held.dense, held.experts) + offloaded_time(r, held.dense, held.experts);
}
double offload_seconds(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                       const HeldParameters& held) {
  return offloaded_time({c, d, f}, held.dense, held.experts);
}
double step_seconds(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  return StepRoof{c, d, f}.of(Fit::step);
}
double message_seconds(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  return one_message({c, d, f});
}
double slowness(const StepCase& c, const DeviceFigures& d, const FitValues& f) {
  return jitter_of({c, d, f});
}

}  // namespace trireme
