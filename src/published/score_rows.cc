#include "published/score_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "catalog/data_texts.h"
#include "checkpoint/json.h"
#include "published/score_reader.h"

namespace trireme {
namespace {

constexpr double kGiga = 1e9, kGibi = 1073741824.0;
constexpr int64_t kMostRows = 100000, kMostSeq = int64_t{1} << 30;

bool begins_as_one(std::string_view s, const std::vector<std::string>& starts) {
  if (starts.empty()) return true;
  return std::any_of(starts.begin(), starts.end(), [&](const std::string& p) { return s.starts_with(p); });
}

}  // namespace

void RowReader::read_memory() {
  const auto take = [&](const char* key, double unit, MemoryKind kind) {
    if (row_.memory > 0) return;
    if (const auto m = f_.number("result", key)) row_.memory = *m * unit, row_.memory_kind = kind;
  };
  take("memory_alloc_gib", kGibi, MemoryKind::allocator);
  take("memory_gib", kGibi, MemoryKind::driver);
  take("memory_gb", rule_->binary ? kGibi : kGiga, MemoryKind::driver);
}

void RowReader::read_cluster() {
  const std::string gpu = f_.text("cluster", "gpu");
  if (gpu.empty()) unusable("no cluster.gpu");
  const KnownDevice* d = c_.device_named(gpu);
  unmeasured_ = d ? nullptr : c_.unmeasured_named(gpu);
  if (!d && !unmeasured_) unusable("cluster.gpu \"{}\" has no figures in the catalog", printable(gpu));
  if (d)
    row_.device = d->name, row_.figures = d->figures;
  else
    row_.device = unmeasured_->cluster, row_.figures.memory = unmeasured_->memory;
  const auto count = f_.whole("cluster", "count");
  if (!count || *count < 1) unusable("no cluster.count");
  if (*count > kMostDegree) unusable("cluster.count {} is more than {}", *count, kMostDegree);
  gpus_ = *count;
}

void RowReader::read_model() {
  ModelSpec& m = s_.model;
  m.arch = "llama";
  const std::string name = f_.text("model", "name");
  const KnownShape* known = nullptr;
  if (!name.empty()) known = c_.shape_named(name);
  const bool own = f_.find("model", "hidden") && f_.find("model", "heads");
  if (!known && !own)
    if (const auto params = f_.number("model", "params")) known = c_.shape_of_params(*params);
  if (!known && !own && name.empty()) unusable("no shape of the model: hidden, heads and name are missing");
  if (!known && !own) unusable("model \"{}\" has no shape in the catalog", printable(name));
  if (known) {
    m = known->model;
    s_.window = known->window, s_.window_share = known->window_share, s_.expert_bias = known->expert_bias;
  }
  const auto size = [&](const char* key, int64_t& to) {
    const auto v = f_.whole("model", key);
    if (!v) return false;
    if (*v < 1 || double(*v) > kMaxWidth * 4) unusable("model.{} is {}", key, *v);
    to = *v;
    return true;
  };
  if (own) m.ffn = 0, m.kv_heads = 0, m.head_dim = known ? m.head_dim : 0;
  size("hidden", m.hidden), size("heads", m.heads), size("kv_heads", m.kv_heads), size("ffn", m.ffn);
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  const bool has_layers = size("layers", m.layers);
  layers_missing_ = !has_layers && (!known || f_.find("layout", "proxy") != nullptr);
  if (m.layers > int64_t(kMaxLayers)) unusable("model.layers is {}", m.layers);
  if (!size("vocab", m.vocab) && !known) m.vocab = 51200;  // Megatron-LM's; the head is a small part
  if (m.ffn == 0) m.ffn = 4 * m.hidden;
  if (own && !known) m.activation = m.ffn == 4 * m.hidden ? "gelu_tanh" : "swiglu";
  if (const RowJson* moe = f_.find("model", "moe"); moe && moe->is_object()) {
    const RowFields e(*moe, row_.id);
    m.experts = e.whole("", "experts").value_or(m.experts);
    m.experts_per_token = e.whole("", "topk").value_or(m.experts_per_token);
    m.moe_ffn = e.whole("", "expert_ffn").value_or(m.moe_ffn);
    m.dense_layers = e.whole("", "dense_layers").value_or(m.dense_layers);
    if (const auto shared = e.whole("", "shared"))
      if (__builtin_mul_overflow(*shared, m.moe_ffn, &m.shared_ffn))
        unusable("{} shared experts of {} make no layer", *shared, m.moe_ffn);
  }
  if (m.heads > m.hidden || m.hidden < 1 || m.heads < 1) unusable("{} heads of {}", m.heads, m.hidden);
  if (m.experts < 0 || m.experts > 65536 || m.experts_per_token > m.experts ||
      double(m.moe_ffn) > kMaxWidth * 4 || double(m.shared_ffn) > kMaxWidth * 4)
    unusable("{} of {} experts of {} make no layer", m.experts_per_token, m.experts, m.moe_ffn);
  if (m.moe() && m.dense_layers >= m.layers) m.dense_layers = m.layers - 1;
  s_.seq = f_.whole("model", "seq").value_or(0);
  if (s_.seq > kMostSeq) unusable("model.seq is {}", s_.seq);
}

void RowReader::read_source() {
  const std::string name = f_.text("model", "name"), gpu = f_.text("cluster", "gpu");
  const auto zero = f_.whole("layout", "zero");
  for (const SourceRule& r : c_.sources) {
    if (!row_.source.starts_with(r.source) || !begins_as_one(row_.id, r.ids) ||
        !begins_as_one(gpu, r.devices) || !begins_as_one(name, r.names) ||
        !begins_as_one(f_.text("", "precision"), r.precisions) ||
        !begins_as_one(f_.text("", "note"), r.notes) ||
        !begins_as_one(f_.text("layout", "recompute"), r.recomputes))
      continue;
    if (r.moe && *r.moe != s_.model.moe()) continue;
    if (r.zero && zero != std::optional<int64_t>(*r.zero)) continue;
    rule_ = &r;
    break;
  }
  if (!rule_) unusable("no rule of the catalog says how source \"{}\" is read", printable(row_.source));
  if (const KnownShape* own = name.empty() ? c_.shape_named(rule_->model) : nullptr;
      own && own->model.hidden == s_.model.hidden && own->model.layers == s_.model.layers)
    s_.model = own->model;
  if (ModelSpec& m = s_.model; rule_->dense_layers && m.moe() && f_.whole("model", "layers"))
    m.dense_layers = std::min(*rule_->dense_layers, m.layers - 1);
  row_.family = rule_->family, row_.software = rule_->software, row_.site = rule_->site;
  if (const std::string own = f_.text("", "site"); !own.empty()) row_.site = printable(own);
  if (const std::string own = f_.text("", "software"); !own.empty()) {
    row_.software = printable(own);
    row_.states_software = true;
  }
  if (const double nic = c_.nic_of(rule_->site); nic > 0) row_.figures.nic = nic;
  row_.publication = c_.publication_of(row_.source);
  s_.attention = rule_->attention, s_.fused_norms = rule_->fused_norms, s_.cut = rule_->cut,
  s_.keeping = rule_->keeping, s_.sliced = rule_->sliced, s_.sequence = rule_->sequence,
  s_.grad_bytes = rule_->grad_bytes, s_.grad_stored = rule_->grad_stored;
}

void RowReader::read_layout() {
  const auto degree = [&](const char* key, int64_t missing) {
    const int64_t v = f_.whole("layout", key).value_or(missing);
    if (v < 1 || v > kMostDegree) unusable("layout.{} is {}", key, v);
    return v;
  };
  const int64_t tp = rule_->tp_missing;
  if (tp == 0 && !f_.find("layout", "tp")) unusable("no layout.tp");
  if (!f_.find("layout", "pp")) unusable("no layout.pp");
  s_.tp = degree("tp", tp), s_.pp = degree("pp", 1), s_.cp = degree("cp", 1), s_.ep = degree("ep", 1);
  const double product = double(s_.tp) * double(s_.pp) * double(s_.cp);
  if (product > double(gpus_) || gpus_ % int64_t(product) != 0)
    unusable("degrees do not multiply: tp {} x pp {} x cp {} in {} GPUs", s_.tp, s_.pp, s_.cp, gpus_);
  s_.dp = gpus_ / int64_t(product);
  if (const auto dp = f_.whole("layout", "dp"); dp && *dp != s_.dp)
    unusable("degrees do not multiply: tp {} x pp {} x cp {} x dp {} is not {} GPUs", s_.tp, s_.pp, s_.cp,
             *dp, gpus_);
  if (s_.tp > s_.model.heads) unusable("tp {} of {} heads", s_.tp, s_.model.heads);
  if (s_.pp > s_.model.layers && !layers_missing_) unusable("pp {} of {} layers", s_.pp, s_.model.layers);
  if (s_.model.moe() ? s_.ep > s_.model.experts || (s_.dp * s_.cp * s_.tp) % s_.ep != 0 : s_.ep > 1)
    unusable("ep {} of {} experts on {} ranks", s_.ep, s_.model.experts, s_.dp * s_.cp * s_.tp);
  const RowJson* zero = f_.find("layout", "zero");
  if (!zero) {
    s_.zero = rule_->zero_missing;
  } else if (zero->is_string()) {
    s_.zero = zero->get<std::string>().find("no reshard") != std::string::npos ? 1 : 3;
  } else {
    s_.zero = int(std::min<int64_t>(3, f_.whole("layout", "zero").value_or(0)));
  }
  s_.shards = f_.whole("layout", "zero_group").value_or(rule_->shards);
  if (const auto fsdp = f_.whole("layout", "fsdp"); fsdp && *fsdp > 1) s_.zero = 3, s_.shards = *fsdp;
  read_kernels();
  if (f_.flag("layout", "async_tp") || rule_->hides_tp) s_.tp_exposed = 0.5;
  s_.messages = rule_->messages;
  s_.scatters = rule_->scatters;
  s_.adds_gradients = rule_->adds_gradients;
  s_.reduces_gate = rule_->reduces_gate;
  s_.sums_whole = rule_->sums_whole;
  s_.blocking = rule_->blocking;
  s_.sums_hidden = rule_->hides_dp;
  s_.grouped = rule_->grouped;
  if (s_.model.moe() && rule_->expert_tp) s_.expert_tp = s_.tp;
  s_.side_by_side = rule_->side_by_side;
  if (f_.flag("layout", "offload")) unusable("offload of the state is not modelled");
  const std::string note = f_.text("", "note");
  for (const char* task : {"LoRA Performance", "SFT Performance"})
    if (note.find(task) != std::string::npos)
      unusable("its note says {}: no training of all weights on whole sequences", task);
  if (!f_.text("model", "task").empty())
    unusable("task \"{}\" is no training of all weights on whole sequences", f_.text("model", "task"));
}

void RowReader::read_batch() {
  const auto global = f_.whole("layout", "global_batch"), tokens = f_.whole("layout", "global_batch_tokens");
  const auto micro = f_.whole("layout", "micro_batch");
  auto count = f_.whole("layout", "num_microbatches");
  if (!count) count = f_.whole("layout", "grad_accum");
  // A row without its sequence length: tokens a second, seconds and the batch
  // say it.
  const auto rate = f_.number("result", "tokens_per_s"), step = f_.number("result", "step_time_s");
  if (s_.seq == 0 && global && rate && step && *global > 0) {
    const double seq = *rate * *step / double(*global);
    const double near = std::exp2(std::round(std::log2(seq)));
    constexpr double kSame = 0.02;
    if (near > double(kMostSeq)) unusable("model.seq is missing: tokens/s x step / batch is {:.3g}", seq);
    if (std::abs(seq / near - 1) < kSame) {
      s_.seq = int64_t(near);
      row_.notes.push_back(fmt::format("model.seq is missing: tokens/s x step / batch is {:.0f}", seq));
    }
  }
  if (s_.seq < 1) unusable("no model.seq");
  micro_missing_ = !micro || *micro < 1;
  s_.micro = micro_missing_ ? 1 : *micro;
  constexpr int64_t kMostBatch = int64_t{1} << 40, kMostMicro = int64_t{1} << 30;
  if (s_.micro > kMostMicro || (count && *count > kMostMicro) ||
      double(s_.dp) * double(s_.micro) * double(count.value_or(1)) > double(kMostBatch))
    unusable("batch of dp {} x micro {} x {}", s_.dp, s_.micro, count.value_or(1));
  if (global && *global > 0) {
    global_ = *global;
  } else if (tokens) {
    global_ = *tokens / s_.seq / (s_.dp * s_.micro) * (s_.dp * s_.micro);
  } else if (micro && (count || s_.pp == 1 || rule_->micro_is_replica)) {
    global_ = s_.dp * s_.micro * (count ? *count : 1);
  }
  if (global_ < 1) unusable("no global batch");
  if (global_ > kMostBatch) unusable("batch of {}", global_);
  if (global_ % s_.dp != 0) unusable("global batch {} is no multiple of dp {}", global_, s_.dp);
  const int64_t replica = global_ / s_.dp;
  if (rule_->micro_is_replica && s_.pp > 1 && s_.micro == replica) s_.micro = 1;
  if (s_.micro > replica || replica % s_.micro != 0)
    unusable("global batch {} is no multiple of dp {} x micro {}", global_, s_.dp, s_.micro);
  s_.microbatches = replica / s_.micro;
  if (global && micro && count && *count != s_.microbatches)
    row_.notes.push_back(
        fmt::format("grad_accum {} contradicts global_batch {} (dp {} x micro "
                    "{}): the batch is believed",
                    *count, global_, s_.dp, s_.micro));
}

void RowReader::read() {
  row_.out_of_memory = f_.flag("result", "oom");
  if (const std::string kind = f_.text("", "kind"); kind != "measured")
    unusable("kind \"{}\": nothing was measured", printable(kind));
  read_cluster();
  read_model();
  read_source();
  read_memory();
  read_network();
  read_layout();
  read_types();
  read_batch();
  if (unmeasured_)
    unusable(
        "cluster.gpu \"{}\" is configs/cluster/{}.toml: no curve of its products and attention is measured",
        printable(f_.text("cluster", "gpu")), unmeasured_->cluster);
  read_precision();
  read_recompute();
  if (layers_missing_) solve_layers();
  if (s_.pp > s_.model.layers) unusable("pp {} of {} layers", s_.pp, s_.model.layers);
  s_.model.finish(s_.seq);
  if (s_.model.head_dim < 1)
    unusable("hidden {} is no multiple of {} heads", s_.model.hidden, s_.model.heads);
  s_.chunks = std::min(s_.chunks, std::max<int64_t>(1, (s_.model.layers + s_.pp - 1) / s_.pp));
  read_time();
  spread_over_missing();
  if (!row_.out_of_memory) check_room();
  row_.configuration = fmt::format(
      "{} L{} h{} s{} tp{} pp{} cp{} ep{} b{} v{} r{} {} z{}{}{}", row_.family, s_.model.layers,
      s_.model.hidden, s_.seq, s_.tp, s_.pp, s_.cp, s_.ep, micro_missing_ ? 0 : s_.micro,
      chunks_missing_ ? 0 : s_.chunks, recompute_missing_ ? -1 : s_.recompute, f_.text("layout", "schedule"),
      s_.zero, s_.sequence ? "" : " whole sequences", s_.fused_norms ? "" : " norms unfused");
  row_.sheet = fmt::format("{} {} L{} h{} heads {} s{} {} x {} batch {} {}", row_.publication,
                           f_.text("model", "name"), s_.model.layers, s_.model.hidden, s_.model.heads, s_.seq,
                           gpus_, row_.device, global_, f_.text("", "precision"));
  row_.peak = peak_;
  check_truth();
  if (row_.step_s <= 0 && row_.memory <= 0 && !row_.out_of_memory)
    unusable("no step time, throughput or memory among its results");
}

std::vector<MeasuredRow> read_rows(std::string_view text, std::string_view file, const Catalog& catalog) {
  constexpr size_t kMostBytes = 64 << 20;
  const RowJson j = parse_json(text, file, kMostBytes);
  if (!j.is_array())
    bad_request(
        "{}: no list of measured runs; right is [{{\"id\", \"source\", "
        "\"kind\", \"model\", \"cluster\", "
        "\"layout\", \"precision\", \"result\"}}, ...]",
        file);
  if (j.size() > size_t(kMostRows))
    bad_request("{}: {} rows; right are at most {}", file, j.size(), kMostRows);
  std::vector<MeasuredRow> rows;
  rows.reserve(j.size());
  for (size_t i = 0; i < j.size(); ++i) {
    if (!j[i].is_object()) bad_request("{}: row {} is no object", file, i + 1);
    MeasuredRow row;
    const std::string where = fmt::format("{}: row {}", file, i + 1);
    const RowFields f(j[i], where);
    try {
      check_keys(j[i], where);
      row.id = printable(f.text("", "id")), row.source = printable(f.text("", "source"));
      if (row.id.empty()) row.id = fmt::format("row {}", i + 1);
      if (row.source.empty()) row.source = "(no source)";
      row.family = row.source;
      RowReader(f, catalog, row).read();
    } catch (const Unusable& u) {
      row.skipped = u.why;
      row.cases.clear();
    } catch (const WrongField& w) {
      bad_request("{}", w.message);
    } catch (const Error& e) {  // sizes too large to count
      row.skipped = e.what();
      row.cases.clear();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

const std::vector<MeasuredRow>& published_rows() {
  static const std::vector<MeasuredRow> all = [] {
    std::vector<MeasuredRow> rows;
    for (const std::string_view text : kPublishedRuns)
      for (MeasuredRow& r : read_rows(text, "data/published_runs.json", shipped_catalog()))
        rows.push_back(std::move(r));
    return rows;
  }();
  return all;
}

}  // namespace trireme
