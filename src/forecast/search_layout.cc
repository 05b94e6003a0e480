#include "forecast/search_layout.h"

#include <fmt/format.h>

#include <array>

namespace trireme {

std::string fp8_text(const PrecisionSpec& p) {
  if (p.fp8 != "none") return fmt::format(", fp8 ({})", p.fp8);
  return p.compute == "fp8" ? ", fp8" : "";
}

std::string mfu_peak_text(const PrecisionSpec& p) {
  return p.fp8 != "none" && p.compute != "fp8" ? " of the bf16 peak" : "";
}

namespace {

// What keeps tp ranks from dividing the model; Refusal::count: nothing.
Refusal tensor_refusal(const ModelSpec& m, int64_t tp) {
  if (tp == 1) return Refusal::count;
  if (m.heads % tp != 0) return Refusal::heads;
  if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0) return Refusal::kv_heads;
  if (m.ffn % tp != 0) return Refusal::ffn;
  if (m.shared_ffn % tp != 0) return Refusal::shared_ffn;
  if ((m.vocab + tp - 1) / tp * (tp - 1) >= m.vocab) return Refusal::vocabulary;
  return Refusal::count;
}

}  // namespace

LayoutSpec searched_keys(const LayoutSpec& l) {
  LayoutSpec keys;
  keys.sequence = true;
  keys.prefetch = l.prefetch;
  keys.bucket_mb = l.bucket_mb;
  keys.cp_overlap = l.cp_overlap;
  keys.reshard_after_forward = l.reshard_after_forward;
  keys.reshard_last = l.reshard_last;
  keys.cut = l.cut;
  keys.ep_buffer = l.ep_buffer;
  keys.ep_load = l.ep_load;
  return keys;
}

namespace {
void set_degrees(const SearchLayout& l, LayoutSpec& o) {
  o.tp = l.tp;
  o.pp = l.pp;
  o.dp = l.dp;
  o.cp = l.cp;
  o.ep = l.ep;
  o.order = std::string(order_of(l.nearest));
}
}  // namespace

LayoutSpec degrees_of(const SearchLayout& l) {
  LayoutSpec o;
  set_degrees(l, o);
  return o;
}

RunSpec with_layout(RunSpec run, const SearchLayout& l, bool to_host) {
  LayoutSpec& o = run.layout;
  set_degrees(l, o);
  o.sequence = l.tp > 1;
  o.cp_method = "ring";
  o.cp_placement = "zigzag";
  o.zero = l.zero;
  o.shard_group = l.shards;
  o.schedule = std::string(l.schedule), o.schedule_file.clear();
  o.in_flight = 0;
  o.chunks = l.chunks;
  o.stage_layers.clear();
  if (l.stage_layers) o.stage_layers.assign(l.stage_layers->begin(), l.stage_layers->end());
  o.recompute = name_of(l.again);
  o.recompute_tensors = LayoutSpec().recompute_tensors, o.recompute_rest = {};
  o.recompute_blocks = o.recompute_limit = 0;
  o.recompute_shard = false;
  // The bound knows these at their defaults alone.
  o.tp_chunks = LayoutSpec().tp_chunks;
  o.interleave = LayoutSpec().interleave;
  o.offload = l.offload ? "state" : "none";
  o.offload_to = l.offload && to_host ? "host" : LayoutSpec().offload_to;
  if (!l.offload || to_host) o.offload_dir.clear();
  if (!l.offload) o.offload_mb = LayoutSpec().offload_mb;
  run.batch.global = l.global;
  run.batch.micro = l.micro;
  run.own_schedule = {};
  return run;
}

std::string_view name_of(Again a) {
  return a == Again::none ? "none" : a == Again::full ? "full" : "selective";
}

std::string_view order_of(Nearest n) {
  return n == Nearest::tensor ? "pp dp cp tp" : n == Nearest::stages ? "dp pp cp tp" : "pp tp cp dp";
}

std::string division_text(const SearchLayout& l) {
  std::string s;
  const auto axis = [&](const char* name, int64_t n) {
    if (n > 1) s += fmt::format("{}{} {}", s.empty() ? "" : " ", name, n);
  };
  axis("tp", l.tp), axis("pp", l.pp), axis("cp", l.cp), axis("dp", l.dp), axis("ep", l.ep);
  return s.empty() ? "one device" : s;
}

std::string layers_text(const NumberList& numbers) {
  std::string s;
  for (size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i; end < numbers.size() && numbers[end] == numbers[i];) end++;
    s += fmt::format("{}{}{}", s.empty() ? "" : ", ", end - i > 1 ? fmt::format("{} x ", end - i) : "",
                     numbers[i]);
  }
  return s;
}

std::string text_of(const SearchLayout& l) {
  std::string s = division_text(l);
  if (l.zero > 0) s += fmt::format(", zero {}", l.zero);
  if (l.shards > 0) s += fmt::format(" in groups of {}", l.shards);
  if (l.pp > 1) {
    s += fmt::format(", {}", l.schedule);
    if (l.schedule == "interleaved") s += fmt::format(" x{}", l.chunks);
    if (l.stage_layers) s += fmt::format(" with layers {}", layers_text(*l.stage_layers));
  }
  s += fmt::format(", micro {} x {}", l.micro, l.microbatches());
  if (l.again != Again::none) s += fmt::format(", recompute {}", name_of(l.again));
  if (l.offload) s += ", state offloaded";
  if (l.nearest != Nearest::tensor) s += fmt::format(", order \"{}\"", order_of(l.nearest));
  return s;
}

Refusal division_refusal(const ModelSpec& m, int64_t seq, const SearchLayout& l) {
  if (const Refusal r = tensor_refusal(m, l.tp); r != Refusal::count) return r;
  if (l.pp > m.layers) return Refusal::layers;
  if (l.cp > 1 && seq % (2 * l.cp) != 0) return Refusal::context;
  if (l.tp > 1 && seq % (l.cp * l.tp) != 0) return Refusal::sequence;
  if (l.global % l.dp != 0) return Refusal::batch;
  if (l.ep > 1 && m.experts % l.ep != 0) return Refusal::experts;
  return Refusal::count;
}

bool chunks_divide(int64_t layers, int64_t pp, int64_t chunks) {
  return layers % (pp * chunks) == 0;
}

std::string_view text_of(Refusal r) {
  static constexpr std::array<std::string_view, kRefusals> kTexts = {
      "tp does not divide the heads",
      "tp neither divides the heads of keys and values nor is a multiple of them",
      "tp does not divide the feed-forward",
      "tp does not divide the shared expert",
      "tp leaves a rank no part of the vocabulary",
      "tp and cp do not divide the sequence",
      "cp does not divide the sequence into pairs of chunks",
      "more stages than layers",
      "dp does not divide the global batch",
      "ep does not divide the experts",
      "does not fit into memory"};
  return kTexts[size_t(r)];
}

}  // namespace trireme
