#include "layout_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/error.h"
#include "forecast/own_schedule.h"

namespace trireme::parity {
namespace {

// Visits every field by name; V takes (name, value).
template <class C, class V>
void each(C& c, V&& v) {
  v("arch", c.arch), v("compute", c.compute), v("grads", c.grads), v("reduce", c.reduce);
  v("schedule", c.schedule), v("tied", c.tied), v("reshard", c.reshard), v("last", c.last), v("dp", c.dp),
      v("zero", c.zero);
  v("pp", c.pp), v("stages", c.stages), v("cut", c.cut), v("cp", c.cp), v("method", c.method),
      v("placement", c.placement), v("overlap", c.overlap), v("turns", c.turns), v("separate", c.separate);
  v("tp", c.tp), v("sequence", c.sequence), v("chunks", c.chunks), v("heads", c.heads),
      v("kv_heads", c.kv_heads), v("latent", c.latent);
  v("ep", c.ep), v("experts", c.experts), v("buffer", c.buffer), v("aux", c.aux), v("capacity", c.capacity),
      v("unit", c.unit), v("bias_rate", c.bias_rate);
  v("group", c.group), v("prefetch", c.prefetch), v("micro", c.micro), v("microbatches", c.microbatches);
  v("layers", c.layers), v("hidden", c.hidden), v("vocab", c.vocab), v("seq", c.seq);
  v("bucket_mb", c.bucket_mb), v("dropout", c.dropout), v("optimizer", c.optimizer), v("moments", c.moments),
      v("order", c.order), v("axes", c.axes);
  v("recompute", c.recompute), v("again", c.again), v("blocks", c.blocks), v("shard", c.shard),
      v("offload", c.offload), v("state", c.state), v("to", c.to), v("post", c.post), v("fp8", c.fp8),
      v("scale", c.scale), v("lora", c.lora), v("targets", c.targets);
}

void set(std::string& value, const std::string& text) {
  value = text;
}
template <class T>
void set(T& value, const std::string& text) {
  std::istringstream(text) >> value;
}

Texts names_of(const std::string& joined) {
  Texts out;
  std::istringstream words(joined);
  for (std::string word; std::getline(words, word, '+');) out.list.push_back(word);
  return out;
}

}  // namespace

std::string to_text(const Case& c) {
  const Case defaults;
  std::string out;
  each(c, [&](std::string_view name, const auto& value) {
    bool same = false;
    each(defaults, [&](std::string_view other, const auto& default_value) {
      if constexpr (std::is_same_v<decltype(value), decltype(default_value)>)
        same |= name == other && value == default_value;
    });
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>)
      out += same ? "" : fmt::format("{}{}={}", out.empty() ? "" : " ", name, int(value));
    else
      out += same ? "" : fmt::format("{}{}={}", out.empty() ? "" : " ", name, value);
  });
  return out;
}

Case from_text(std::string_view text) {
  Case c;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    bool known = false;
    each(c, [&](std::string_view name, auto& value) {
      if (at == std::string::npos || name != word.substr(0, at)) return;
      set(value, word.substr(at + 1));
      known = true;
    });
    if (!known) bad_request("a parity case has no '{}'", word);
  }
  return c;
}

RunSpec unchecked_run_of(const Case& c) {
  RunSpec r;
  r.model = ModelSpec::of(c.arch);
  r.model.vocab = c.vocab, r.model.layers = c.layers, r.model.hidden = c.hidden, r.model.heads = c.heads;
  r.model.kv_heads = c.kv_heads > 0 ? c.kv_heads : c.arch == "gpt2" ? c.heads : 1;
  if (c.arch == "qwen3") r.model.head_dim = 18;
  r.model.ffn = (c.hidden + 16 + c.tp - 1) / c.tp * c.tp;
  if (r.model.moe()) r.model.experts = c.experts, r.model.experts_per_token = 2, r.model.moe_ffn = 20;
  if (r.model.latent() || c.latent > 0) {
    r.model.kv_heads = c.heads, r.model.kv_rank = 10;
    r.model.q_rank = c.arch == "deepseek_v3" || c.latent == 2 ? 14 : 0;
    r.model.nope_head_dim = 6, r.model.rope_head_dim = 4, r.model.v_head_dim = 5;
  }
  if (r.model.latent() && r.model.moe()) {
    r.model.experts = 8, r.model.expert_groups = 4, r.model.top_groups = 2,
    r.model.dense_layers = c.layers > 1;
    r.model.shared_ffn = 24;
  }
  if (c.bias_rate > 0) r.model.router_bias = true;
  r.model.tied = c.tied;
  r.model.embd_pdrop = r.model.attn_pdrop = r.model.resid_pdrop = c.dropout;
  r.data.seq_len = c.seq;
  r.batch = {.global = c.global(), .micro = c.micro};
  r.layout.ep = c.ep, r.layout.ep_buffer = c.buffer;
  r.moe = {.aux_loss = c.aux,
           .z_loss = c.aux / 10,
           .bias_rate = c.bias_rate,
           .capacity = c.capacity,
           .unit = c.unit};
  r.layout.dp = c.dp, r.layout.tp = c.tp, r.layout.sequence = c.sequence, r.layout.tp_chunks = c.chunks,
  r.layout.zero = c.zero, r.layout.shard_group = c.group, r.layout.schedule = c.schedule;
  r.layout.pp = c.pp, r.layout.chunks = c.stages, r.layout.cp = c.cp, r.layout.cp_method = c.method,
  r.layout.cp_placement = c.placement, r.layout.cp_overlap = c.overlap;
  r.layout.cut = c.cut == "stated" ? "cost" : c.cut;
  if (c.cut == "stated") {  // one block for each stage, and the others in the first one
    r.layout.stage_layers.assign(size_t(c.pp * c.stages), 1);
    r.layout.stage_layers[0] += double(c.layers - c.pp * c.stages);
  }
  if (c.separate) r.data.documents = "separate";
  r.layout.prefetch = c.prefetch, r.layout.reshard_after_forward = c.reshard, r.layout.reshard_last = c.last,
  r.layout.bucket_mb = c.bucket_mb, r.layout.interleave = c.turns;
  r.optimizer.post_validation = c.post;
  r.layout.recompute = c.recompute, r.layout.recompute_tensors = names_of(c.again),
  r.layout.recompute_blocks = c.blocks, r.layout.recompute_shard = c.shard;
  if (c.offload || c.state) {
    r.layout.offload = !c.state ? "inputs" : c.offload ? "all" : "state";
    r.layout.offload_to = c.to;
    if (c.to == "file") r.layout.offload_dir = fs::temp_directory_path().string();
  }
  if (c.state) r.layout.offload_mb = 0.05;  // pieces of a block of elements
  r.precision.compute = c.compute, r.precision.grads = c.grads, r.precision.reduce = c.reduce;
  r.precision.moments = c.moments;
  r.lora.rank = c.lora;
  r.lora.targets = names_of(c.targets);
  r.precision.fp8 = c.fp8, r.precision.fp8_history = 3, r.precision.initial_scale = c.scale;
  r.optimizer.name = c.optimizer, r.optimizer.lr = 3e-3, r.optimizer.warmup = 2;
  r.train.sum_order = c.order;
  if (!c.axes.empty()) {
    r.layout.order = c.axes;
    std::replace(r.layout.order.begin(), r.layout.order.end(), '+', ' ');
  }
  r.train.steps = 60, r.train.seed = 11, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

RunSpec run_of(const Case& c) {
  RunSpec r = resolve(unchecked_run_of(c), {.native_bf16 = true});
  find_own_schedule(r, {});
  return r;
}

RunSpec one_rank_of(const Case& c) {
  RunSpec r = run_of(c);
  // A global unit is the microbatches of all replicas together: what one rank calls its microbatch.
  if (r.model.moe() && c.unit == "global") r.batch.micro *= c.dp;
  r.layout.schedule = "1f1b", r.layout.chunks = 1, r.layout.cut = "cost";
  r.layout.stage_layers.clear();
  r.layout.pp = r.layout.dp = r.layout.tp = r.layout.cp = r.layout.ep = 1, r.layout.tp_chunks = 1,
  r.layout.offload = "none", r.layout.offload_to = "file", r.layout.offload_dir = "",
  r.layout.offload_mb = LayoutSpec().offload_mb;
  r.layout.recompute = "none", r.layout.recompute_blocks = 0, r.layout.recompute_shard = false;
  r.layout.sequence = false, r.layout.zero = 0, r.layout.shard_group = 0;
  r.optimizer.post_validation = "off";
  return r;
}

}  // namespace trireme::parity
