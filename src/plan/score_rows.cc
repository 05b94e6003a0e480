#include "plan/score_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "checkpoint/json.h"
#include "cost/flops.h"
#include "cost/step_memory.h"
#include "plan/score_fields.h"

namespace trireme {
namespace {

constexpr double kGiga = 1e9, kGibi = 1073741824.0;
constexpr int64_t kMostDegree = 1 << 24, kMostRows = 100000, kMostSeq = int64_t{1} << 30;

bool begins_as_one(std::string_view s, const std::vector<std::string>& starts) {
  if (starts.empty()) return true;
  return std::any_of(starts.begin(), starts.end(), [&](const std::string& p) { return s.starts_with(p); });
}

// Raised inside the reading of one row: it cannot be forecast, for this reason.
struct Unusable {
  std::string why;
};
template <class... A>
[[noreturn]] void unusable(fmt::format_string<A...> f, A&&... a) {
  throw Unusable{fmt::format(f, std::forward<A>(a)...)};
}

// Reads one row step by step; each step may find it unusable.
class RowReader {
 public:
  RowReader(const RowFields& f, const Catalog& c, MeasuredRow& row) : f_(f), c_(c), row_(row) {}
  void read();

 private:
  void read_memory();
  void read_cluster();
  void read_model();
  void read_source();
  void read_layout();
  void read_batch();
  void read_precision();
  void read_recompute();
  void read_time();
  void spread_over_missing();
  bool has_room(const StepCase&) const;
  bool counts_unknown() const;
  void check_room();
  double convention_flops() const;
  double first_products(bool out) const;
  double convention_passes(double forward, double blocks) const;
  void solve_layers();
  void check_truth();

  const RowFields& f_;
  const Catalog& c_;
  MeasuredRow& row_;
  const SourceRule* rule_ = nullptr;
  const UnmeasuredDevice* unmeasured_ = nullptr;
  StepCase s_;
  bool layers_missing_ = false;
  int64_t gpus_ = 0, global_ = 0;
  bool chunks_missing_ = false, micro_missing_ = false, recompute_missing_ = false;
  bool never_full_ = false;  // where recompute is missing
  double peak_ = 0;          // of the row's precision
};

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
        !begins_as_one(f_.text("", "precision"), r.precisions))
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
  if (const std::string own = f_.text("", "software"); !own.empty()) row_.software = printable(own);
  if (const double nic = c_.nic_of(rule_->site); nic > 0) row_.figures.nic = nic;
  s_.attention = rule_->attention, s_.cut = rule_->cut, s_.keeping = rule_->keeping,
  s_.sliced = rule_->sliced, s_.sequence = rule_->sequence, s_.grad_bytes = rule_->grad_bytes,
  s_.grad_stored = rule_->grad_stored;
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
  s_.shards = rule_->shards;
  if (const auto fsdp = f_.whole("layout", "fsdp"); fsdp && *fsdp > 1) s_.zero = 3, s_.shards = *fsdp;
  if (f_.flag("layout", "sequence_parallel")) s_.sequence = true;
  if (f_.flag("layout", "async_tp") || rule_->hides_tp) s_.tp_exposed = 0.5;
  s_.messages_hidden = rule_->hides_pp, s_.sums_hidden = rule_->hides_dp;
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

void RowReader::read_precision() {
  std::string p = f_.text("", "precision");
  std::transform(p.begin(), p.end(), p.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  const auto has = [&](const char* word) { return p.find(word) != std::string::npos; };
  const DeviceFigures& d = row_.figures;
  s_.numbers = NumberType::half, peak_ = d.bf16;
  if (p.empty()) unusable("no precision");
  if (has("fp4")) {
    s_.numbers = NumberType::fp4, peak_ = d.fp4;
  } else if (has("mxfp8") || p.starts_with("fp8-mx")) {
    s_.numbers = NumberType::mxfp8, peak_ = d.fp8;
  } else if (has("rowwise")) {
    peak_ = d.fp8;  // a scale a row: as slow as 16 bits where both were measured
                    // (torchtitan, async TP)
  } else if (has("fp8") || has("float8")) {
    s_.numbers = NumberType::fp8, peak_ = d.fp8;
  } else if (!has("16")) {
    unusable("precision \"{}\" is not known", printable(p));
  }
  if (peak_ <= 0) unusable("{} has no peak for \"{}\"", row_.device, printable(p));
}

// "none at 8K" says nothing of longer sequences.
bool says_of(std::string_view word, int64_t seq) {
  constexpr std::string_view kUpTo = "none at ";
  if (!word.starts_with(kUpTo)) return true;
  int64_t thousands = 0;
  for (const char c : word.substr(kUpTo.size())) {
    if (c < '0' || c > '9' || thousands > kMostDegree) break;
    thousands = 10 * thousands + (c - '0');
  }
  return seq <= 1024 * thousands;
}

void RowReader::read_recompute() {
  std::string r = f_.text("layout", "recompute");
  if (r.empty() || !says_of(r, s_.seq)) r = rule_->recompute;
  if (r.starts_with("full")) {
    s_.recompute = 1;
  } else if (r.starts_with("selective")) {
    s_.recompute = rule_->selective, s_.recompute_attention = s_.attention == AttentionKind::unfused;
  } else if (r == "attention") {
    s_.recompute_attention = true;
  } else if (r == "all but products") {
    s_.renorm = s_.recompute_attention = true, s_.saved = SavedProducts::all;
  } else if (r == "all but qkv and out" || r == "all but qkv") {
    s_.renorm = s_.recompute_attention = true;
    s_.recompute = first_products(r == "all but qkv");
    s_.saved = r == "all but qkv" ? SavedProducts::qkv : SavedProducts::qkv_out;
  } else if (r == "none or attention") {
    recompute_missing_ = true, never_full_ = true;
  } else if (!r.starts_with("none")) {
    recompute_missing_ = true;
    if (r != "unknown")
      row_.notes.push_back(
          fmt::format("layout.recompute \"{}\" is not known: read as missing", printable(r)));
  }
  std::string schedule = f_.text("layout", "schedule");
  auto chunks = f_.whole("layout", "interleave");
  if (!chunks && rule_->interleaved > 0 && schedule.starts_with("interleaved")) chunks = rule_->interleaved;
  if (const int64_t layers = rule_->chunk_layers; !chunks && layers > 0)
    chunks = (s_.model.layers + s_.pp * layers - 1) / (s_.pp * layers);
  // nanotron, which cuts by share, has no engine of several chunks.
  const bool one_chunk = schedule == "1F1B" || schedule == "1f1b" || schedule == "GPipe" || s_.pp == 1 ||
                         s_.cut == StageCut::by_share;
  if (chunks && *chunks >= 1 && s_.pp > 1) {
    if (*chunks > 4096) unusable("layout.interleave is {}", *chunks);
    s_.chunks = *chunks;
  }
  chunks_missing_ = !chunks && !one_chunk && !schedule.starts_with("ZB") && schedule != "DualPipe";
  if (schedule.starts_with("ZB-1p") || schedule.starts_with("ZB-H1"))
    s_.bubble = 0.5, s_.order = PipelineOrder::zb_h1;
  if (schedule.starts_with("ZB-2p") || schedule.starts_with("ZB-H2"))
    s_.bubble = 0.06, s_.order = PipelineOrder::zb_h2;
  if (schedule == "GPipe") s_.order = PipelineOrder::gpipe;
  // Two stages a rank, one microbatch's forward beside another's backward: compute for the exchange to hide
  // behind.
  if (schedule == "DualPipe" && s_.pp > 1)
    s_.chunks = 2, s_.bubble = 2 * 0.35, s_.order = PipelineOrder::dualpipe_v;
}

// Share of a block's products that are done again where what queries, keys, values (and, without `out`,
// attention's projection) came out as is kept: a block's last product is not, for nothing behind it in the
// block is missing.
double RowReader::first_products(bool out) const {
  const ModelSpec& m = s_.model;
  const double head = m.head_dim > 0 ? double(m.head_dim) : double(m.hidden) / double(m.heads);
  const double q = head * double(m.heads), kv = head * double(m.kv_heads);
  const double up = (m.activation == "swiglu" ? 2 : 1) * double(m.ffn);
  return ((out ? q : 0) + up) / (2 * (q + kv) + up + double(m.ffn));
}

double RowReader::convention_passes(double forward, double blocks) const {
  return 3 * forward + (rule_->flops == Convention::with_recompute ? s_.recompute * blocks : 0);
}

// FLOPs of a step as the source counts them.
double RowReader::convention_flops() const {
  const double tokens = double(global_) * double(s_.seq), h = double(s_.model.hidden);
  if (rule_->flops == Convention::blocks_only) return 96 * tokens * double(s_.model.layers) * h * h;
  const int64_t seen = rule_->flops == Convention::causal ? s_.seq : 2 * s_.seq;  // twice: all scores
  const double forward = forward_flops_per_token(s_.model, seen);
  return tokens * convention_passes(forward, forward - 2 * h * double(s_.model.vocab));
}

// A row that gives seconds and TFLOP/s but not its layers: its source's formula
// says them.
void RowReader::solve_layers() {
  const auto step = f_.number("result", "step_time_s"), tflops = f_.number("result", "tflops_per_gpu");
  if (!step || !tflops || rule_->flops != Convention::blocks_only) unusable("no model.layers");
  s_.model.layers = 1;
  const double layers = *tflops * 1e12 * double(gpus_) * *step / convention_flops();
  const double near = std::round(layers);
  constexpr double kSame = 0.01;
  if (near < 1 || near > kMaxLayers || std::abs(layers / near - 1) > kSame)
    unusable("no model.layers, and TFLOP/s x seconds say {:.2f}", layers);
  s_.model.layers = int64_t(near);
  row_.notes.push_back(fmt::format("model.layers is missing: TFLOP/s and seconds say {:.2f}", layers));
}

void RowReader::read_time() {
  const double tokens = double(global_) * double(s_.seq), n = double(gpus_);
  const auto take = [&](const char* key, auto&& seconds) {
    if (row_.step_s > 0) return;
    if (const auto v = f_.number("result", key)) row_.step_s = seconds(*v), row_.metric = key;
  };
  take("step_time_s", [](double v) { return v; });
  take("tokens_per_s", [&](double v) { return tokens / v; });
  take("tokens_per_s_per_gpu", [&](double v) { return tokens / (v * n); });
  take("samples_per_s_per_gpu", [&](double v) { return double(global_) / (v * n); });
  take("step_time_s_derived", [](double v) { return v; });
  take("tokens_per_s_per_gpu_derived", [&](double v) { return tokens / (v * n); });
  const double flops = convention_flops();
  take("tflops_per_gpu", [&](double v) { return flops / (v * 1e12 * n); });
  take("mfu", [&](double v) { return flops / (v * peak_ * n); });
  if (counts_unknown() && (row_.metric == "tflops_per_gpu" || row_.metric == "mfu"))
    unusable("its {} counts what is done again, and no layout.recompute says what that is", row_.metric);
}

// The source's FLOP/s count what is done again, and nobody says what that is.
bool RowReader::counts_unknown() const {
  return recompute_missing_ && rule_->flops == Convention::with_recompute;
}

// Settings that a row does not give: every value that is possible, all alike.
void RowReader::spread_over_missing() {
  std::vector<StepCase> all = {s_};
  const auto spread = [&](const char* name, auto&& values) {
    std::vector<StepCase> more;
    for (const StepCase& c : all) values(c, more);
    if (more.size() > 1) row_.missing.emplace_back(name);
    if (!more.empty()) all = std::move(more);
  };
  if (micro_missing_)
    spread("micro_batch", [&](const StepCase& c, std::vector<StepCase>& out) {
      for (const int64_t micro : {1, 2, 4}) {
        const int64_t replica = global_ / s_.dp;
        if (replica % micro != 0 || (s_.pp > 1 && replica / micro < s_.pp)) continue;
        out.push_back(c), out.back().micro = micro, out.back().microbatches = replica / micro;
      }
    });
  if (chunks_missing_)
    spread("interleave", [&](const StepCase& c, std::vector<StepCase>& out) {
      const int64_t per_rank = std::max<int64_t>(1, (c.model.layers + c.pp - 1) / c.pp);
      const bool several = f_.text("layout", "schedule").starts_with("interleaved") && per_rank > 1;
      for (const int64_t chunks : {int64_t{1}, int64_t{2}, int64_t{4}, per_rank}) {
        const bool known = std::any_of(out.begin(), out.end(), [&](const StepCase& o) {
          return o.chunks == chunks && o.micro == c.micro;
        });
        if (chunks > per_rank || known || (chunks == 1 && several)) continue;
        out.push_back(c), out.back().chunks = chunks;
      }
    });
  if (recompute_missing_)
    spread("recompute", [&](const StepCase& c, std::vector<StepCase>& out) {
      StepCase selective = c, full = c;
      selective.recompute = rule_->selective;
      selective.recompute_attention = rule_->selective == 0 || c.attention == AttentionKind::unfused;
      full.recompute = 1;
      // What ran had room for what it kept.
      for (const StepCase& less : {c, selective})
        if (row_.out_of_memory || has_room(less)) out.push_back(less);
      if (!never_full_ || out.empty()) out.push_back(full);
    });
  if (!rule_->or_keeping.empty())
    spread("keeping", [&](const StepCase& c, std::vector<StepCase>& out) {
      out.push_back(c);
      for (const Keeping& k : rule_->or_keeping) out.push_back(c), out.back().keeping = k;
    });
  row_.cases = std::move(all);
}

bool RowReader::has_room(const StepCase& c) const {
  FitValues plain{};
  plain[size_t(Fit::kept)] = 1;
  return step_memory(c, plain).total < row_.figures.memory;
}

// A layout whose states alone are more than the device holds is no run that was
// measured.
void RowReader::check_room() {
  double least = 1e30;
  for (const StepCase& c : row_.cases) least = std::min(least, least_memory(c));
  if (least > row_.figures.memory)
    unusable(
        "cannot fit: {:.0f} GB of weights, gradients and optimizer on a "
        "rank of {:.0f} GB",
        least / 1e9, row_.figures.memory / 1e9);
}

// What no run can have done.
void RowReader::check_truth() {
  if (row_.step_s <= 0) return;
  const double used = step_flops(s_, false) / (row_.step_s * double(gpus_));
  constexpr double kAll = 1.0, kSame = 0.25;
  if (used > kAll * peak_)
    unusable("{:.0f} TFLOP/s a GPU is more than the peak of {:.0f}", used / 1e12, peak_ / 1e12);
  const auto step = f_.number("result", "step_time_s"), tflops = f_.number("result", "tflops_per_gpu");
  if (step && tflops && !counts_unknown()) {
    const double said = convention_flops() / (*step * double(gpus_) * 1e12);
    if (std::abs(std::log(said / *tflops)) > kSame)
      row_.notes.push_back(
          fmt::format("{:.1f} TFLOP/s contradict {:.2f} s, which make {:.1f} "
                      "by the source's formula: the "
                      "seconds are believed",
                      *tflops, *step, said));
  }
  const auto per_gpu = f_.number("result", "tokens_per_s_per_gpu");
  if (step && per_gpu) {
    const double said = double(global_) * double(s_.seq) / (*step * double(gpus_));
    if (std::abs(std::log(said / *per_gpu)) > 0.05)
      row_.notes.push_back(
          fmt::format("{:.0f} tokens/s a GPU contradict {:.3f} s, which make "
                      "{:.0f}: the seconds are believed",
                      *per_gpu, *step, said));
  }
}

void RowReader::read() {
  row_.out_of_memory = f_.flag("result", "oom");
  if (const std::string kind = f_.text("", "kind"); kind != "measured")
    unusable("kind \"{}\": nothing was measured", printable(kind));
  read_cluster();
  read_model();
  read_source();
  read_memory();
  read_layout();
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
      "{} L{} h{} s{} tp{} pp{} cp{} ep{} b{} v{} r{} {} z{}", row_.family, s_.model.layers, s_.model.hidden,
      s_.seq, s_.tp, s_.pp, s_.cp, s_.ep, micro_missing_ ? 0 : s_.micro, chunks_missing_ ? 0 : s_.chunks,
      recompute_missing_ ? -1 : s_.recompute, f_.text("layout", "schedule"), s_.zero);
  row_.peak = peak_;
  check_truth();
  if (row_.step_s <= 0 && row_.memory <= 0 && !row_.out_of_memory)
    unusable("no step time, throughput or memory among its results");
}

}  // namespace

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
    const RowFields f(j[i], fmt::format("{}: row {}", file, i + 1));
    try {
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

}  // namespace trireme
