#include "catalog/catalog.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "base/printable.h"
#include "catalog/cluster_data.h"
#include "catalog/data_texts.h"
#include "checkpoint/json.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

std::string plain(std::string_view name) {
  std::string s;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-') s += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return s;
}

KnownShape shape_of(const Json& j) {
  KnownShape s;
  s.names = j.at("names").get<std::vector<std::string>>();
  s.model = ModelSpec::of(j.value("arch", "llama"));
  ModelSpec& m = s.model;
  const auto number = [&](const char* key, int64_t& to) { to = j.value(key, to); };
  number("layers", m.layers), number("hidden", m.hidden), number("heads", m.heads);
  number("kv_heads", m.kv_heads), number("ffn", m.ffn), number("vocab", m.vocab);
  number("head_dim", m.head_dim), number("experts", m.experts);
  number("experts_per_token", m.experts_per_token), number("moe_ffn", m.moe_ffn);
  number("shared_ffn", m.shared_ffn), number("dense_layers", m.dense_layers);
  number("q_rank", m.q_rank), number("kv_rank", m.kv_rank), number("nope_head_dim", m.nope_head_dim);
  number("rope_head_dim", m.rope_head_dim), number("v_head_dim", m.v_head_dim);
  m.activation = j.at("activation").get<std::string>();
  m.tied = j.value("tied", false);
  s.params = j.value("params", 0.0);
  s.window = j.value("window", int64_t{0});
  s.window_share = j.value("window_share", 0.0);
  s.expert_bias = j.value("expert_bias", false);
  return s;
}

// Bytes of a device: its cluster file's, where there is one ("cluster": its name), so that both say the same.
double memory_of(const Json& j, std::string_view file) {
  constexpr double kGiga = 1e9;
  if (!j.contains("cluster")) return j.at("memory_gb").get<double>() * kGiga;
  const auto name = j.at("cluster").get<std::string>();
  if (const ClusterSpec* c = shipped_cluster(name)) return double(c->memory_bytes);
  bad_request("{}: cluster \"{}\": there is no configs/cluster/{}.toml", file, printable(name),
              printable(name));
}

KnownDevice device_of(const Json& j, std::string_view file) {
  constexpr double kTera = 1e12, kGiga = 1e9;
  KnownDevice d;
  d.name = j.at("name").get<std::string>(), d.match = j.at("match").get<std::vector<std::string>>();
  d.cluster = j.value("cluster", "");
  d.no_bf16 = j.value("no_bf16", false);
  DeviceFigures& f = d.figures;
  f.bf16 = j.at("bf16_tflops").get<double>() * kTera, f.fp8 = j.at("fp8_tflops").get<double>() * kTera;
  f.fp4 = j.at("fp4_tflops").get<double>() * kTera, f.memory = memory_of(j, file);
  f.bandwidth = j.at("bandwidth_gbps").get<double>() * kGiga, f.bus = j.at("bus_gbps").get<double>() * kGiga;
  f.near = j.at("near").get<double>(), f.nic = j.at("nic_gbps").get<double>() * kGiga;
  f.attention = j.at("attention_tflops").get<double>() * kTera;
  f.attention2 = j.value("attention2_tflops", 0.0) * kTera;
  f.k0 = j.at("k0").get<double>();
  f.units = j.value("units", 0.0);
  return d;
}

Convention convention_of(std::string_view s, std::string_view file) {
  if (s == "model") return Convention::model;
  if (s == "causal") return Convention::causal;
  if (s == "with recompute") return Convention::with_recompute;
  if (s == "blocks only") return Convention::blocks_only;
  bad_request("{}: flops \"{}\"; right are model, causal, with recompute, blocks only", file, s);
}

std::string recompute_of(const std::string& s, std::string_view file) {
  if (std::find(kRecomputes.begin(), kRecomputes.end(), s) == kRecomputes.end())
    bad_request("{}: recompute \"{}\"; right are {}", file, printable(s), fmt::join(kRecomputes, ", "));
  return s;
}

AttentionKind attention_of(std::string_view s, std::string_view file) {
  if (const auto kind = attention_named(s)) return *kind;
  bad_request("{}: attention \"{}\"; right are flash, flash 1, flash 2, unfused", file, printable(s));
}

RedoneModules redone_of(const std::vector<std::string>& modules, std::string_view file) {
  RedoneModules r;
  for (const std::string& m : modules) {
    if (m == "layernorm")
      r.norms = true;
    else if (m == "mla_up_proj")
      r.up_projections = true;
    else if (m == "mlp")
      r.dense_feed_forward = true;
    else if (m == "moe_act")
      r.expert_activations = true;
    else
      bad_request("{}: redo \"{}\"; right are layernorm, mla_up_proj, mlp, moe_act", file, printable(m));
  }
  return r;
}

// What a software keeps: only keys that are known, so that none is left out for its spelling.
Keeping keeping_of(const Json& j, std::string_view file) {
  Keeping k;
  for (const auto& [key, v] : j.items()) {
    if (key == "tensors")
      k.tensors = v.get<bool>();
    else if (key == "attention8")
      k.attention8 = v.get<bool>();
    else if (key == "dropout")
      k.dropout = v.get<bool>();
    else if (key == "weights8")
      k.weights8 = v.get<bool>();
    else if (key == "cast_weights")
      k.cast_weights = v.get<bool>();
    else if (key == "transposed")
      k.transposed = v.get<bool>();
    else if (key == "divided_gradients")
      k.divided_gradients = v.get<bool>();
    else if (key == "inputs_elsewhere")
      k.inputs_elsewhere = v.get<bool>();
    else if (key == "optimizer")
      k.optimizer = v.get<double>();
    else if (key == "offloaded")
      k.offloaded = v.get<double>();
    else if (key == "redo")
      k.redo = redone_of(v.get<std::vector<std::string>>(), file);
    else if (key == "hidden")
      k.hidden = v.get<double>();
    else if (key == "ffn")
      k.ffn = v.get<double>();
    else if (key == "loss")
      k.loss = v.get<double>();
    else if (key == "loss_parts")
      k.loss_parts = v.get<double>();
    else if (key == "whole_logits")
      k.whole_logits = v.get<bool>();
    else if (key == "gathered")
      k.gathered = v.get<bool>();
    else if (key == "products")
      k.products = v.get<bool>();
    else if (key == "gradients")
      k.gradients = v.get<bool>();
    else if (key == "fsdp")
      k.fsdp = v.get<bool>();
    else if (key == "split")
      k.split = v.get<bool>();
    else if (key == "first")
      k.first = v.get<bool>();
    else
      bad_request(
          "{}: keeping \"{}\"; right are hidden, ffn, loss, loss_parts, whole_logits, gathered, products, "
          "gradients, fsdp, "
          "split, first, tensors, attention8, dropout, weights8, cast_weights, transposed, "
          "divided_gradients, "
          "inputs_elsewhere, optimizer, offloaded, redo",
          file, printable(key));
  }
  return k;
}

SourceRule rule_of(const Json& j, std::string_view file) {
  SourceRule r;
  r.source = j.at("source").get<std::string>(), r.family = j.at("family").get<std::string>();
  r.software = j.at("software").get<std::string>(), r.site = j.at("site").get<std::string>();
  const std::vector<std::string> none;
  r.ids = j.value("id", none), r.devices = j.value("device", none), r.names = j.value("name", none);
  r.precisions = j.value("precision", none);
  r.notes = j.value("note", none);
  r.recomputes = j.value("recompute_is", none);
  if (j.contains("moe")) r.moe = j.at("moe").get<bool>();
  if (j.contains("zero")) r.zero = j.at("zero").get<int>();
  if (j.contains("dense_layers")) r.dense_layers = j.at("dense_layers").get<int64_t>();
  r.flops = convention_of(j.at("flops").get<std::string>(), file);
  r.attention = attention_of(j.value("attention", "flash"), file);
  if (const std::string cut = j.value("stages", "even"); cut == "by cost")
    r.cut = StageCut::by_cost;
  else if (cut == "by share")
    r.cut = StageCut::by_share;
  else if (cut != "even")
    bad_request("{}: stages \"{}\"; right are even, by cost, by share", file, printable(cut));
  if (j.contains("keeping")) r.keeping = keeping_of(j.at("keeping"), file);
  if (j.contains("or_keeping"))
    for (const Json& k : j.at("or_keeping")) r.or_keeping.push_back(keeping_of(k, file));
  r.binary = j.value("binary", false);
  r.sequence = j.value("sequence", true);
  r.fused_norms = j.value("fused_norms", true);
  r.gradients_unknown = j.value("gradients_unknown", false);
  r.grad_bytes = j.value("grad_bytes", 4.0), r.grad_stored = j.value("grad_stored", r.grad_bytes);
  r.selective = j.value("selective", 0.0);
  r.sliced = j.value("sliced", int64_t{0}), r.interleaved = j.value("interleaved", int64_t{0});
  r.chunk_layers = j.value("chunk_layers", int64_t{0});
  r.zero_missing = j.value("zero_missing", 0), r.tp_missing = j.value("tp_missing", int64_t{0});
  r.model = j.value("model", "");
  r.recompute = recompute_of(j.value("recompute", r.recompute), file);
  r.shards = j.value("shards", int64_t{0});
  r.micro_is_replica = j.value("micro_is_replica", false);
  r.expert_tp = j.value("expert_tp", false), r.grouped = j.value("grouped", true);
  r.side_by_side = j.value("side_by_side", false);
  r.scatters = j.value("scatters", false);
  r.adds_gradients = j.value("adds_gradients", false);
  r.reduces_gate = j.value("reduces_gate", false);
  r.sums_whole = j.value("sums_whole", false);
  r.blocking = j.value("blocking", false);
  if (const auto said = j.value("messages", std::string()); said == "waited")
    r.messages = StageMessages::waited;
  else if (said == "in turn")
    r.messages = StageMessages::in_turn;
  else if (!said.empty())
    bad_request("{}: messages \"{}\"; must be waited or in turn", file, printable(said));
  for (const std::string& what : j.value("hides", none)) {
    if (what == "tp")
      r.hides_tp = true;
    else if (what == "pp")
      r.messages = StageMessages::hidden;
    else if (what == "dp")
      r.hides_dp = true;
    else
      bad_request("{}: hides \"{}\"; right are tp, pp, dp", file, printable(what));
  }
  return r;
}

}  // namespace

std::optional<AttentionKind> attention_named(std::string_view s) {
  if (s == "flash") return AttentionKind::flash;
  if (s == "flash 1") return AttentionKind::flash1;
  if (s == "flash 2") return AttentionKind::flash2;
  if (s == "unfused") return AttentionKind::unfused;
  return std::nullopt;
}

AttentionKind Catalog::fused_attention_of(std::string_view software) const {
  std::optional<AttentionKind> kind;
  for (const SourceRule& r : sources) {
    if (r.software != software || r.family == "cited") continue;
    if (kind.value_or(r.attention) != r.attention) return AttentionKind::flash;
    kind = r.attention;
  }
  return kind == AttentionKind::flash1 || kind == AttentionKind::flash2 ? *kind : AttentionKind::flash;
}

const KnownShape* Catalog::shape_named(std::string_view name) const {
  for (const KnownShape& s : shapes)
    for (const std::string& n : s.names)
      if (plain(n) == plain(name)) return &s;
  return nullptr;
}

std::string model_name(const ModelSpec& m) {
  const auto sizes = [](ModelSpec s) {
    s.finish(1);  // only learned positions are counted by the length
    return std::tuple(s.activation == "swiglu", s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.ffn,
                      s.vocab, s.experts, s.experts_per_token, s.moe_ffn, s.shared_ffn);
  };
  for (const KnownShape& k : shipped_catalog().shapes)
    if (k.model.hidden == m.hidden && k.model.layers == m.layers && sizes(k.model) == sizes(m))
      return k.names.front();
  return m.arch;
}

const KnownShape* Catalog::shape_of_params(double params) const {
  constexpr double kSame = 1e-3;
  for (const KnownShape& s : shapes)
    if (s.params > 0 && std::abs(s.params / params - 1) < kSame) return &s;
  return nullptr;
}

namespace {
// "H100-SXM-80GB" begins with the name "H100"; "H1000" is another device.
bool begins_with_name(std::string_view text, std::string_view name) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return text.starts_with(name) &&
         (text.size() == name.size() || !digit(name.back()) || !digit(text[name.size()]));
}
}  // namespace

const KnownDevice* Catalog::device_named(std::string_view name) const {
  for (const KnownDevice& d : devices)
    for (const std::string& m : d.match)
      if (begins_with_name(name, m)) return &d;
  return nullptr;
}

const UnmeasuredDevice* Catalog::unmeasured_named(std::string_view name) const {
  for (const UnmeasuredDevice& d : unmeasured)
    for (const std::string& m : d.match)
      if (begins_with_name(name, m)) return &d;
  return nullptr;
}

const KnownDevice* Catalog::device_called(std::string_view name) const {
  for (const KnownDevice& d : devices) {
    if (plain(d.name) == plain(name)) return &d;
    for (const std::string& m : d.match)
      if (plain(m) == plain(name)) return &d;
  }
  return nullptr;
}

namespace {

// The first word of a device's name that is not its maker's or a brand: of "NVIDIA H100 NVL" and of
// "H100-PCIE" H100.
std::string family_of(std::string_view name) {
  constexpr std::string_view kBrands[] = {"NVIDIA", "AMD", "INTEL", "TESLA", "GEFORCE", "RTX", "INSTINCT"};
  std::string word;
  do {
    const size_t end = std::min(name.find_first_of("-_ "), name.size());
    word.assign(name.substr(0, end));
    for (char& c : word) c = char(std::toupper(static_cast<unsigned char>(c)));
    name.remove_prefix(std::min(end + 1, name.size()));
  } while (!name.empty() && std::find(std::begin(kBrands), std::end(kBrands), word) != std::end(kBrands));
  return word;
}

}  // namespace

const KnownDevice* Catalog::device_alike(std::string_view name, double memory) const {
  if (const KnownDevice* d = device_named(name)) return d;
  const std::string family = family_of(name);
  const KnownDevice* nearest = nullptr;
  for (const KnownDevice& d : devices) {
    const bool alike = std::any_of(d.match.begin(), d.match.end(),
                                   [&](const std::string& m) { return family_of(m) == family; });
    const auto off = [&](const KnownDevice& k) { return std::abs(k.figures.memory - memory); };
    if (alike && (!nearest || off(d) < off(*nearest))) nearest = &d;
  }
  return nearest;
}

double Catalog::nic_of(std::string_view site) const {
  for (const auto& [name, nic] : sites)
    if (name == site) return nic;
  return 0;
}

std::string Catalog::publication_of(const std::string& source) const {
  for (const auto& [start, name] : publications)
    if (source.starts_with(start)) return name;
  return source;
}

Catalog parse_catalog(std::string_view text, std::string_view file) {
  constexpr size_t kMost = 4 << 20;
  constexpr double kGiga = 1e9;
  const Json j = parse_json(text, file, kMost);
  Catalog c;
  try {
    for (const Json& s : j.at("shapes")) c.shapes.push_back(shape_of(s));
    for (const Json& d : j.at("devices")) c.devices.push_back(device_of(d, file));
    if (j.contains("unmeasured"))
      for (const Json& d : j.at("unmeasured"))
        c.unmeasured.push_back({d.at("match").get<std::vector<std::string>>(),
                                d.at("cluster").get<std::string>(), memory_of(d, file)});
    for (const Json& s : j.at("sites"))
      c.sites.emplace_back(s.at("name").get<std::string>(), s.at("nic_gbps").get<double>() * kGiga);
    for (const Json& s : j.at("sources")) c.sources.push_back(rule_of(s, file));
    if (j.contains("publications"))
      for (const auto& [name, starts] : j.at("publications").items())
        for (const Json& start : starts) c.publications.emplace_back(start.get<std::string>(), name);
  } catch (const Json::exception& e) {
    bad_request("{}: no catalog of shapes, devices, sites and sources: {}", file, e.what());
  }
  return c;
}

const Catalog& shipped_catalog() {
  static const Catalog c = parse_catalog(kScoreCatalog, "data/score_catalog.json");
  return c;
}

}  // namespace trireme
