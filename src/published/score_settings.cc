// Types, recompute, schedule and time of a measured run, and the cases that its missing settings leave.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/printable.h"
#include "cost/flops.h"
#include "cost/step_memory.h"
#include "published/score_reader.h"

namespace trireme {

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
      // A run that ran had room for the tensors that it kept.
      for (const StepCase& less : {c, selective})
        if (row_.out_of_memory || has_room(less)) out.push_back(less);
      if (!never_full_ || out.empty()) out.push_back(full);
    });
  if (gradients_missing_)
    spread("gradients", [&](const StepCase& c, std::vector<StepCase>& out) {
      constexpr double kSingle = 4, kHalf = 2;
      for (const double bytes : {kSingle, kHalf})
        out.push_back(c), out.back().grad_bytes = out.back().grad_stored = bytes;
    });
  if (!rule_->or_keeping.empty())
    spread("keeping", [&](const StepCase& c, std::vector<StepCase>& out) {
      out.push_back(c);
      for (const Keeping& k : rule_->or_keeping) out.push_back(c), out.back().keeping = k;
    });
  // Recompute of whole blocks costs 30 to 40 % of a step, that of attention's core a few percent (Korthikanti
  // et al. 2022, section 5). So whole blocks are likely only if no other setting has room.
  const auto rest =
      std::stable_partition(all.begin(), all.end(), [](const StepCase& c) { return c.recompute < 1; });
  row_.likely = rest == all.begin() ? all.size() : size_t(rest - all.begin());
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
  row_.cannot_fit = least > row_.figures.memory;
  if (row_.cannot_fit)
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
    unusable(
        "{:.0f} TFLOP/s a GPU is more than the peak of {:.0f}: a step of {:.4g} s; expected {:.3g} s or more",
        used / 1e12, peak_ / 1e12, row_.step_s, row_.step_s * used / peak_);
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

}  // namespace trireme
