// One run: model, data, batch, layout, precision, optimizer, training. The keys and defaults of a run file
// (DESIGN.md section 5); docs/spec.md lists them.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "mesh/mesh.h"
#include "spec/field.h"
#include "spec/model_spec.h"
#include "spec/moe_spec.h"

namespace trireme {

struct Schedule;
class StepRows;

struct DataSpec {
  Texts train = "data/train", valid = "data/valid";
  Numbers weights;
  std::string tokenizer;
  int64_t seq_len = 256;
  std::string order = "shuffled", documents = "attend";
  int64_t prefetch = 4;
  bool operator==(const DataSpec&) const = default;
  bool separate() const { return documents != "attend"; }

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kOrders[] = {"shuffled", "sequential"};
    static constexpr std::string_view kDocuments[] = {"attend", "separate", "whole"};
    v("train", train, "path",
      "token shard to train on: NAME.bin + NAME.idx, or a raw uint16 .bin; or a list of them, mixed");
    v("weights", weights, "",
      "shares of the shards of a list, in its order and of any sum; empty = by their tokens",
      between(0, 1e300));
    v("valid", valid, "path", "held-out token shard, or a list of them, each evaluated");
    v("tokenizer", tokenizer, "path", "tokenizer that made the shards; empty = none, text cannot be shown");
    v("seq_len", seq_len, "tokens", "length of a sample", between(1, 2147483647));
    v("order", order, "", "sequential: sample i is tokens [i*seq_len, (i+1)*seq_len)", one_of(kOrders));
    v("documents", documents, "",
      "packed into one sample: attend to those before; separate, each with its own positions; or whole, "
      "separate and never divided between samples",
      one_of(kDocuments));
    v("prefetch", prefetch, "microbatches", "that a thread of its own reads ahead; 0 = none does",
      between(0, 4096));
  }
};

struct BatchSpec {
  int64_t global = 32, micro = 8;
  Ramp ramp{};  // batch_ramp.h
  bool operator==(const BatchSpec&) const = default;

  template <class V>
  void visit(V& v) {
    v("global", global, "sequences",
      "per optimizer step; auto = 0.58 D^0.571 tokens in a run over D tokens (docs/optim.md)",
      Rule{.low = 1, .high = 2147483647, .automatic = true});
    v("ramp", ramp, "",
      "smaller global batches of the first steps, each with its last step: [[8, 100], [16, 200]] = 8 "
      "sequences to step 100, 16 to step 200, then global; empty = none");
    v("micro", micro, "sequences",
      "per microbatch and replica; global is a multiple of dp * micro; with global = auto up to 8",
      between(1, 2147483647));
  }
};

struct LayoutSpec {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  std::string order = "pp dp cp tp";
  bool sequence = false;
  std::string cp_method = "ring", cp_placement = "zigzag";
  bool cp_overlap = true;
  int64_t zero = 0, shard_group = 0, prefetch = 1;
  bool reshard_after_forward = true, reshard_last = true, interleave = false;
  double bucket_mb = 25;
  int64_t tp_chunks = 1;
  double ep_buffer = 1.5;
  ExpertLoad ep_load;
  std::string schedule = "1f1b", schedule_file;
  int64_t in_flight = 0;
  int64_t chunks = 1;
  std::string cut = "cost";
  Numbers stage_layers;
  std::string recompute = "none";
  Texts recompute_tensors = Texts::of({"n1", "n2", "a"}), recompute_rest;
  int64_t recompute_blocks = 0, recompute_limit = 0;
  bool recompute_shard = false;
  std::string offload = "none", offload_to = "file", offload_dir;
  double offload_mb = 32;
  bool operator==(const LayoutSpec&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kMethods[] = {"ring", "ulysses"};
    static constexpr std::string_view kPlacements[] = {"zigzag", "contiguous", "striped"};
    static constexpr std::string_view kSchedules[] = {"1f1b",     "gpipe",      "interleaved", "zb-h1",
                                                      "zb-h2",    "zb-v",       "v-half",      "v-min",
                                                      "dualpipe", "dualpipe-v", "auto",        "file"};
    static constexpr std::string_view kCuts[] = {"cost", "even"};
    static constexpr std::string_view kRecomputes[] = {"none", "selective", "full", "auto"};
    v("dp", dp, "ranks", "data parallel", between(1, 1048576));
    v("tp", tp, "ranks", "tensor parallel", between(1, 1048576));
    v("pp", pp, "ranks", "pipeline parallel", between(1, 1048576));
    v("cp", cp, "ranks", "context parallel", between(1, 1048576));
    v("ep", ep, "ranks", "expert parallel, a divisor of dp * cp * tp", between(1, 1048576));
    v("order", order, "", "axes from outer to inner: ranks that differ in the last are nearest");
    v("sequence", sequence, "", "Megatron sequence parallel on tp");
    v("cp_method", cp_method, "", "how context parallel attends across ranks", one_of(kMethods));
    v("cp_placement", cp_placement, "", "which tokens a context rank holds", one_of(kPlacements));
    v("cp_overlap", cp_overlap, "", "ring: keys and values of the next block travel while one is computed");
    v("zero", zero, "", "ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 weights too",
      between(0, 3));
    v("shard_group", shard_group, "ranks", "hybrid sharding: ranks per shard group; 0 = all of dp * cp",
      between(0, 1048576));
    v("prefetch", prefetch, "layers", "zero = 3: whose weights are gathered ahead of the one that runs",
      between(0, 65536));
    v("reshard_after_forward", reshard_after_forward, "",
      "zero = 3: let gathered weights go after the forward pass, and gather them again for the backward "
      "pass");
    v("reshard_last", reshard_last, "",
      "with that: also those of a stage's last layer where its backward pass comes next, and waits for them; "
      "false "
      "keeps them, as FSDP does, and saves that gather");
    v("interleave", interleave, "",
      "dualpipe, dualpipe-v: a forward and a backward pass that are issued together run by turns, so that "
      "collectives of tp and ep of one travel while the other computes");
    v("bucket_mb", bucket_mb, "MB",
      "zero = 0: gradients of neighbouring layers are reduced together up to this", between(0, 1e6));
    v("tp_chunks", tp_chunks, "pieces",
      "GPUs: that sums over tp are cut into, each in flight while the next is computed; 1 = no overlap",
      between(1, 64));
    v("ep_buffer", ep_buffer, "",
      "ep > 1: choices that a rank's experts have room for at once, in those that each rank has; more take "
      "further rounds",
      Rule{.low = 0, .high = 1e6, .low_open = true});
    v("ep_load", ep_load, "",
      "ep > 1, of forecasts alone: choices that the fullest rank's experts have, over the mean, as metrics "
      "say; balanced = 1, untrained = as is expected of a run's first steps",
      between(1, 1e6));
    v("schedule", schedule, "",
      "pipeline schedule; auto searches one for the forecast's times, file takes one's own",
      one_of(kSchedules));
    v("schedule_file", schedule_file, "path", "schedule = \"file\": its compute actions, a line a rank");
    v("in_flight", in_flight, "microbatches",
      "schedule = \"auto\": most that a rank holds between forward and weight gradient; 0 = pp, as 1f1b does",
      between(0, 32767));
    v("chunks", chunks, "", "model chunks per pipeline rank", between(1, 65536));
    v("cut", cut, "",
      "of blocks into stages: cost: the dearest stage costs as little as it can, the head beside its blocks; "
      "even: as many blocks each, where they do not divide one less beside the head and the embedding, "
      "which may be alone",
      one_of(kCuts));
    v("stage_layers", stage_layers, "blocks",
      "blocks per stage, first to last, such as [20, 12], instead of cut: pp * chunks numbers",
      between(0, 65536));
    v("recompute", recompute, "",
      "activations that the backward pass computes again: recompute_tensors of each block, all but its "
      "input, or as much as recompute_limit makes needful",
      one_of(kRecomputes));
    v("recompute_tensors", recompute_tensors, "", "selective: of n1, qkv, o, mid, n2, u and a");
    v("recompute_blocks", recompute_blocks, "blocks",
      "of each stage, from its first, that recompute is about; 0 = all", between(0, 1e6));
    v("recompute_rest", recompute_rest, "", "tensors that the other blocks compute again");
    v("recompute_shard", recompute_shard, "",
      "full: each rank of tp keeps its part of a block's input, gathered again for the backward pass");
    v("recompute_limit", recompute_limit, "bytes",
      "auto: memory of a rank that a step may take; 0 = the device's, shared by its ranks",
      between(0, 9007199254740992));
    static constexpr std::string_view kOffloads[] = {"none", "inputs", "state", "all"};
    static constexpr std::string_view kOffloadTo[] = {"file", "host"};
    v("offload", offload, "",
      "what waits outside the device's memory, fetched ahead of its use: inputs = what recompute = full "
      "keeps of a block, state = master weights and moments of AdamW, all = both",
      one_of(kOffloads));
    v("offload_to", offload_to, "",
      "where it waits: host = the host's memory, of devices that have their own (a CPU has none)",
      one_of(kOffloadTo));
    v("offload_dir", offload_dir, "folder", "where its files lie, without names; empty = train.dir");
    v("offload_mb", offload_mb, "MB",
      "state: of the pieces it is updated in, of which a rank has three in memory: read, updated, written",
      Rule{.low = 0, .high = 1e6, .low_open = true});
  }

  bool offloads_inputs() const { return offload == "inputs" || offload == "all"; }
  bool offloads_state() const { return offload == "state" || offload == "all"; }
};

struct PrecisionSpec {
  std::string compute = "auto", grads = "auto", reduce = "auto", moments = "f32";
  // f16 alone: loss scaling (optim/loss_scale.h).
  NumberOrDynamic loss_scale{.number = 0, .dynamic = true};
  double initial_scale = 65536;
  int64_t growth_interval = 2000;
  double backoff_factor = 0.5, min_scale = 1;
  // Linear layers in 8-bit floats (model/fp8.h).
  std::string fp8 = "none";
  Texts fp8_layers = "*";
  int64_t fp8_history = 16, fp8_margin = 0;
  std::string fp8_kernels = "auto";
  bool operator==(const PrecisionSpec&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kCompute[] = {"auto", "bf16", "f32", "f16", "fp8"};
    static constexpr std::string_view kGrads[] = {"auto", "bf16", "f32"};
    v("compute", compute, "",
      "type of weights and activations; auto = bf16 where the device has it natively, else f32",
      one_of(kCompute));
    v("grads", grads, "",
      "type of gradients; auto = f32 when a step has several microbatches or computes in f16, else compute",
      one_of(kGrads));
    v("reduce", reduce, "",
      "type in which gradients travel between replicas, summed in f32; auto = bf16 when compute is bf16, "
      "else f32",
      one_of(kGrads));
    static constexpr std::string_view kMoments[] = {"f32", "bf16"};
    v("moments", moments, "",
      "type of AdamW's two moments; bf16 = 4 bytes per parameter instead of 8, rounded stochastically",
      one_of(kMoments));
    constexpr double kMostScale = 18446744073709551616.0;  // 2^64
    v("loss_scale", loss_scale, "",
      "f16: factor on the loss in the backward pass; a power of two loses nothing",
      Rule{.low = 0, .high = kMostScale, .low_open = true});
    v("initial_scale", initial_scale, "", "f16: dynamic loss scale of the first step",
      Rule{.low = 0, .high = kMostScale, .low_open = true});
    v("growth_interval", growth_interval, "steps",
      "f16: the dynamic loss scale doubles after so many good steps in a row", between(1, 1e12));
    v("backoff_factor", backoff_factor, "",
      "f16: the dynamic loss scale falls by this factor when a gradient overflows, and the step is skipped",
      Rule{.low = 0, .high = 1, .low_open = true, .high_open = true});
    v("min_scale", min_scale, "", "f16: an overflow at this loss scale ends the run",
      Rule{.low = 0, .high = kMostScale, .low_open = true});
    static constexpr std::string_view kFp8[] = {"none", "delayed", "current", "block"};
    v("fp8", fp8, "",
      "8-bit products of linear layers: scales from the steps before, from the tensor, or for blocks of "
      "1 x 128 and 128 x 128; all else stays in the compute type",
      one_of(kFp8));
    v("fp8_layers", fp8_layers, "",
      "fp8: patterns of names of matrices, such as \"blocks.*\" or \"*.mlp.*\"; \"!\" in front takes "
      "out, the last match counts");
    v("fp8_history", fp8_history, "steps", "fp8 = delayed: steps whose largest magnitude gives the scale",
      between(1, 1024));
    v("fp8_margin", fp8_margin, "bits", "fp8: of room above that magnitude; each halves the numbers' codes",
      between(0, 8));
    static constexpr std::string_view kFp8Kernels[] = {"auto", "required"};
    v("fp8_kernels", fp8_kernels, "",
      "fp8: auto multiplies as bf16 numbers whatever no 8-bit kernel takes; required ends the run there",
      one_of(kFp8Kernels));
  }
};

// Low-rank adapters (Hu et al. 2021, arXiv 2106.09685; docs/after_pretraining.md).
struct LoraSpec {
  int64_t rank = 0;
  double alpha = 16;
  Texts targets = "*";
  std::string adapter;
  bool operator==(const LoraSpec&) const = default;
  bool active() const { return rank > 0; }

  template <class V>
  void visit(V& v) {
    v("rank", rank, "",
      "trains only adapters, products B A of this rank that are added to the matrices of lora.targets, and "
      "freezes all other weights; 0 = trains all weights",
      between(0, 65536));
    v("alpha", alpha, "", "an adapter's product is multiplied by alpha / rank",
      Rule{.low = 0, .high = 1e6, .low_open = true});
    v("targets", targets, "",
      "patterns of names of matrices with an adapter, such as \"*.attn.q\" or \"*.mlp.*\"; \"!\" in front "
      "takes out, the last match counts; \"*\" = all of attention and feed-forward, without experts");
    v("adapter", adapter, "folder",
      "adapter in PEFT's format that training starts from; empty = a new one, whose product is zero");
  }
};

struct OptimizerSpec {
  std::string name = "adamw";
  double lr = 1e-3;  // run files: default kAutomatic
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8, weight_decay = 0.1, clip_norm = 1;
  std::string schedule = "cosine";
  int64_t warmup = 100;
  double min_lr = 0;
  double momentum = 0.95;
  bool nesterov = true;
  std::string adjust_lr = "match_rms_adamw";
  double adamw_lr = 0, embed_lr = 0;
  std::string post_validation = "off";
  bool operator==(const OptimizerSpec&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kNames[] = {"adamw", "muon"};
    static constexpr std::string_view kSchedules[] = {"cosine", "constant", "linear", "wsd"};
    v("name", name, "", "optimizer", one_of(kNames));
    v("lr", lr, "",
      "peak learning rate; auto = by model.hidden, also adamw_lr and embed_lr where they are 0 "
      "(docs/optim.md)",
      Rule{.low = 0, .high = 1e6, .automatic = true});
    v("betas", betas, "", "decay of the running mean of gradients, and of their squares",
      Rule{.low = 0, .high = 1, .high_open = true});
    v("eps", eps, "", "added to the root of the second moment", Rule{.low = 0, .high = 1, .low_open = true});
    v("weight_decay", weight_decay, "", "decoupled decay of tensors of two or more dimensions",
      between(0, 1e6));
    v("clip_norm", clip_norm, "", "largest global gradient norm; 0 = no clipping", between(0, 1e30));
    v("schedule", schedule, "", "learning rate after warmup, from lr to min_lr; wsd decays in the last tenth",
      one_of(kSchedules));
    v("warmup", warmup, "steps",
      "lr at step s (from 1) is lr * s / warmup; auto = a tenth of train.steps, at most 2000",
      Rule{.low = 0, .high = 1e12, .automatic = true});
    v("min_lr", min_lr, "", "learning rate at the last step, at most lr", between(0, 1e6));
    static constexpr std::string_view kAdjusts[] = {"match_rms_adamw", "original"};
    v("momentum", momentum, "", "muon: decay of the running mean of gradients of hidden matrices",
      Rule{.low = 0, .high = 1, .high_open = true});
    v("nesterov", nesterov, "", "muon: looks one step of momentum ahead");
    v("adjust_lr", adjust_lr, "",
      "muon: factor on lr of a hidden matrix: 0.2 sqrt(max(rows, cols)), the size of AdamW's updates, or "
      "sqrt(max(1, rows / cols))",
      one_of(kAdjusts));
    v("adamw_lr", adamw_lr, "",
      "muon: peak learning rate of what AdamW moves (embeddings, head, norms, biases); 0 = lr",
      between(0, 1e6));
    v("embed_lr", embed_lr, "",
      "peak learning rate of embeddings that are not tied, norms and biases; 0 = lr, with muon adamw_lr",
      between(0, 1e6));
    static constexpr std::string_view kPosts[] = {"off", "calm", "always"};
    v("post_validation", post_validation, "",
      "stages of a pipeline step without waiting for the whole gradient norm, and take the step back where "
      "it had to be clipped or skipped; calm = not after such a step",
      one_of(kPosts));
  }
};

struct TrainSpec {
  int64_t steps = 1000, seed = 1;
  std::string device = "cpu", comm = "thread", sum_order = "ordered", graphs = "auto", bind = "auto";
  std::string attention = "auto";
  int64_t threads = 0;
  double timeout = 600;
  std::string dir = "runs/demo";
  CountOrAuto checkpoint_every{.count = 200};
  int64_t keep = 2, eval_every = 0, eval_batches = 0, log_every = 0, check_every = 100;
  bool tensorboard = true, check_comm = false, deterministic = true;
  std::string trace_steps, record_routing;
  bool async_save = true;
  int64_t noise_scale = 0;
  std::string branch, keep_best = "saved", sample_prompt, spikes = "off";
  int64_t sample_every = 0, sample_tokens = 60;
  double spike_z = 8;
  int64_t spike_window = 64, spike_limit = 20;
  Texts tasks;
  int64_t tasks_limit = 0;
  bool operator==(const TrainSpec&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kGraphs[] = {"auto", "on", "off"};
    static constexpr std::string_view kAttentions[] = {"auto", "sm90"};
    static constexpr std::string_view kBinds[] = {"auto", "off"};
    static constexpr std::string_view kDevices[] = {"cpu", "cuda"};
    static constexpr std::string_view kComms[] = {"thread", "mpi", "nccl"};
    static constexpr std::string_view kOrders[] = {"ordered", "auto", "ring", "halving", "hierarchical"};
    v("steps", steps, "steps", "optimizer steps; auto = 20 tokens per active parameter",
      Rule{.low = 1, .high = 1e12, .automatic = true});
    v("seed", seed, "", "of weights, data order and sampling", between(0, 9007199254740992));
    v("device", device, "", "where kernels run", one_of(kDevices));
    v("comm", comm, "", "how ranks talk", one_of(kComms));
    v("sum_order", sum_order, "",
      "of sums over ranks: ordered adds in rank order and rounds once; the others are fast, and change last "
      "bits with layout and place: auto takes the fastest by the cluster's alpha and beta",
      one_of(kOrders));
    v("graphs", graphs, "",
      "launches that come again from step to step are kept as CUDA graphs; on = a run that cannot ends; auto "
      "= off, until GPUs have run them",
      one_of(kGraphs));
    v("attention", attention, "",
      "kernels of FlashAttention on a GPU; sm90 = those for Hopper, by TMA and wgmma, where they take the "
      "problem; auto = those for any GPU, until GPUs have run the others",
      one_of(kAttentions));
    v("deterministic", deterministic, "",
      "no choice follows a clock; false = of a GPU's algorithms of a matrix product the fastest is taken, as "
      "timed when it first comes, and kept in train.dir/algorithms.txt for steps after a resume, and gelu is "
      "applied in products, to sums that are not rounded yet");
    v("threads", threads, "threads", "per rank; 0 = share the cores", between(0, 65536));
    v("bind", bind, "",
      "auto = rank threads keep to cores of their own where ranks x threads are all that the process may "
      "use; "
      "off = the system places them",
      one_of(kBinds));
    v("timeout", timeout, "seconds", "before a rank that is late ends the run",
      Rule{.low = 0, .high = 1e9, .low_open = true});
    v("dir", dir, "folder", "metrics.jsonl, checkpoints/ and all else of the run");
    v("checkpoint_every", checkpoint_every, "steps",
      "0 = only at the end; auto = from the measured save and the failure rate", between(0, 1e12));
    v("keep", keep, "checkpoints", "newest complete ones that stay", between(1, 1e6));
    v("eval_every", eval_every, "steps", "loss on data.valid; 0 = only at the end", between(0, 1e12));
    v("eval_batches", eval_batches, "microbatches", "of one evaluation; 0 = all of data.valid",
      between(0, 1e12));
    v("tasks", tasks, "path",
      "task files of lm-evaluation-harness, scored with every evaluation of data.valid; each score goes to "
      "metrics.jsonl");
    v("tasks_limit", tasks_limit, "documents",
      "number of documents that each task takes, from its first; 0 = all", between(0, 1e12));
    v("log_every", log_every, "steps",
      "between progress lines where the output is not a terminal; 0 = a line every ten seconds",
      between(0, 1e12));
    v("check_every", check_every, "steps",
      "replicas compare a hash of weights and optimizer state; 0 = never", between(0, 1e12));
    v("check_comm", check_comm, "",
      "before each collective its ranks compare what they call, and a mismatch names them and their calls; "
      "an "
      "all_gather of 32 bytes each time");
    v("tensorboard", tensorboard, "", "writes TensorBoard event files into train.dir");
    v("trace_steps", trace_steps, "steps",
      "recorded op by op into train.dir/trace.json, such as \"3-5\" or \"7,20-22\"; empty = none");
    v("record_routing", record_routing, "steps",
      "whose rows for each expert are recorded into train.dir/routing.jsonl, such as \"3-5\"; empty = none");
    v("async_save", async_save, "",
      "writes checkpoints beside training, from a copy in host memory; false = training waits");
    v("noise_scale", noise_scale, "steps",
      "between measurements of the gradient noise scale, the batch size that is worth its tokens; 0 = none",
      between(0, 1e12));
    v("branch", branch, "run@step",
      "checkpoint of another run that a new run starts from, with weights, moments, step and place in the "
      "data: "
      "\"runs/old@300\", \"runs/old@best\", or \"runs/old\" for the newest; empty = starts afresh");
    static constexpr std::string_view kBest[] = {"off", "saved", "always"};
    v("keep_best", keep_best, "",
      "checkpoint of the lowest held-out loss, in addition to train.keep: saved = of the steps that are both "
      "evaluated and saved, always = an evaluation that lowers the loss saves its step too, off = none",
      one_of(kBest));
    v("sample_every", sample_every, "steps",
      "saves a checkpoint, generates a text from it on rank 0's CPU and writes it to samples.jsonl; 0 = "
      "never",
      between(0, 1e12));
    v("sample_prompt", sample_prompt, "", "beginning of those texts; empty = a new document");
    v("sample_tokens", sample_tokens, "tokens", "length of those texts", between(1, 1e6));
    static constexpr std::string_view kSpikes[] = {"off", "skip", "rollback"};
    v("spikes", spikes, "",
      "a step whose loss or gradient norm is an outlier or not finite: skip = no update, rollback = no "
      "update, "
      "and weights and moments of the newest checkpoint, off = a value that is not finite ends the run",
      one_of(kSpikes));
    v("spike_z", spike_z, "",
      "least robust z-score, (value - median) / (1.4826 MAD) over train.spike_window steps, of an outlier",
      Rule{.low = 0, .high = 1e9, .low_open = true});
    v("spike_window", spike_window, "steps",
      "recent updates that an outlier is compared with; half as many come before the first",
      between(4, 65536));
    v("spike_limit", spike_limit, "steps",
      "skipped in a row at most; then an outlier is accepted, and a value that is not finite ends the run",
      between(1, 1e6));
  }
};

struct ClusterRef {
  std::string file;
  bool operator==(const ClusterRef&) const = default;

  template <class V>
  void visit(V& v) {
    v("file", file, "path",
      "cluster file, or a name of one: h100-p5, H100; empty = this machine, as bench measured it");
  }
};

// The compute actions of schedules that no generator makes (spec/run_schedule.h). Not a key: found or read
// anew by whoever plans or starts the run.
struct OwnSchedule {
  std::shared_ptr<const Schedule> actions;
  bool operator==(const OwnSchedule&) const;
};

// Rows that a run's routers gave experts in a step (trace/recorded_rows.h), which forecasts book in the place
// of a balanced router's. Not a key.
struct KnownRouting {
  std::shared_ptr<const StepRows> rows;
  int64_t step = 0;
  bool operator==(const KnownRouting&) const = default;
};

struct RunSpec {
  ModelSpec model;
  DataSpec data;
  BatchSpec batch;
  LayoutSpec layout;
  MoeSpec moe;
  PrecisionSpec precision;
  LoraSpec lora;
  OptimizerSpec optimizer;
  TrainSpec train;
  ClusterRef cluster;
  OwnSchedule own_schedule;
  KnownRouting known_routing;
  bool operator==(const RunSpec&) const = default;

  int64_t world() const { return layout.pp * layout.dp * layout.cp * layout.tp; }
  // Per replica and step, and tokens of it; where the batch grows (batch.ramp), of the last and largest.
  int64_t microbatches() const { return batch.global / (layout.dp * batch.micro); }
  int64_t tokens_per_step() const { return batch.global * data.seq_len; }

  template <class V>
  void visit(V& v) {
    v.section("model", model, "the architecture, or a folder that holds a model");
    v.section("data", data, "token shards");
    v.section("batch", batch, "sequences in a step");
    v.section("layout", layout, "how the work is divided over ranks");
    v.section("moe", moe, "how the routers of a mixture of experts are trained");
    v.section("precision", precision, "number types");
    v.section("lora", lora, "adapters of low rank, trained instead of all weights");
    v.section("optimizer", optimizer, "how weights move");
    v.section("train", train, "the loop, its place and its files");
    v.section("cluster", cluster, "the machines that plan prices for");
  }
};

Mesh mesh_of(const LayoutSpec&);  // bad_request as Mesh's

struct LoadOptions {
  // With model.from: take the model from its config.json; keys of [model] given beside it must agree.
  // Without: keep what the text says (a run saved inside a checkpoint outlives the folder it started from).
  bool read_from = true;
  bool nearest = false;  // where the layout is wrong, the message names the nearest that works (nearest.h)
};

// A validated spec whose derived sizes are numbers ("auto" values stay until resolve()). `sets` are
// "section.key=value" overrides in TOML's value syntax, bare strings accepted. One Error (request) lists
// everything that is wrong, a line each: "FILE:LINE: key: problem, value, what is right".
RunSpec load_run(const fs::path&, std::span<const std::string> sets = {}, const LoadOptions& = {});
RunSpec parse_run(std::string_view toml, std::string_view file, std::span<const std::string> sets = {},
                  const LoadOptions& = {});

// A contradiction. keys.front() is the one to blame; the others are those that its text speaks of.
struct Problem {
  std::vector<std::string> keys;
  std::string text;  // problem, value, what is right
};
// What is contradictory between values that are in range one by one; empty = valid. Call model.finish()
// before.
std::vector<Problem> problems_of(const RunSpec&);

// What this version cannot run (yet): one Error (request), a line for each key, with what works.
void refuse_unsupported(const RunSpec&);

struct Facts {
  bool native_bf16 = false;  // the device multiplies bf16 matrices in hardware
};
// Puts types in place of "auto" in [precision] and learning rates in place of optimizer.lr = "auto"
// (lr_rule.h), and derives what is still derived in [model].
RunSpec resolve(RunSpec, const Facts&);

std::string save_run(const RunSpec&);  // TOML; parse_run of it gives the same spec
// Of save_run() the keys alone that must be said: of [model] sizes and what neither they nor the architecture
// give, elsewhere what differs from the defaults.
std::string save_changed(const RunSpec&);
void save_run(const RunSpec&, const fs::path&);

// Of what makes a run this run and no other: model (of model.from only whether it is given), training data,
// global batch, compute type (loss scaling where it is f16), optimizer, steps and seed; not places, devices
// or cadences, nor how the batch is divided (layout, batch.micro, the gradients' types), which may change at
// a resume. Take it after resolve().
uint64_t hash(const RunSpec&);

// "batch.micro: 8 -> 4" for each key that differs.
std::vector<std::string> diff(const RunSpec& before, const RunSpec& after);

// Every key of a run file, for the `config` verb.
struct ConfigRow {
  std::string key, type, value, unit, help, allowed;  // value: the default, in TOML
};
std::vector<ConfigRow> config_rows();
std::string
config_table();  // a run file of all defaults, each key with its unit, sentence and allowed values; those
                 // that follow from others are commented out, so that any line may be edited

}  // namespace trireme
