#include "published/score_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "catalog/catalog.h"
#include "cost/device_curves.h"
#include "published/score_fit.h"

namespace trireme {
namespace {

using OpsJson = nlohmann::ordered_json;

constexpr double kTeraFlops = 1e12, kGigaBytes = 1e9;
constexpr double kMostSide = 1e9;  // of a product; keys of a sequence

constexpr std::string_view kBest16 = "mamf_bf16_tflops", kBest8 = "mamf_fp8_tflops",
                           kDeepGemm = "deepgemm_h800_fp8_tflops", kSimuMax = "simumax_b200_shares",
                           kP5Nccl = "nccl_multinode_aws_p5_h100", kP5Memory = "hbm3_TBs";

// Of a table of best products: whose figures its devices have here.
constexpr std::pair<std::string_view, std::string_view> kBestDevices[] = {
    {"A100_SXM", "A100-80GB"}, {"H100_SXM", "H100"}, {"H200_SXM", "H200"},
    {"B200", "B200"},          {"B300", "B300"},     {"GB200", "GB200"}};

enum class Pass { forward, backward, both };
constexpr std::string_view kPassNames[] = {"forward", "backward", "both passes"};
// FLOPs as FlashAttention's authors count them, of a forward pass's.
constexpr double kPassFlops[] = {1, 2.5, 3.5};

// A table of attention by sequence length: keys of a section that begin so are of that kernel.
struct AttentionTable {
  std::string_view section, device;
  Pass pass;
};
constexpr AttentionTable kAttentionTables[] = {
    {"flash_attention2_a100_fwd_bwd_tflops", "A100-80GB", Pass::both},
    {"flash_attention2_h100_fwd_bwd_tflops", "H100", Pass::both},
    {"flash_attention3_h100_fwd_fp16_tflops", "H100", Pass::forward},
    {"flash_attention3_h100_bwd_fp16_tflops", "H100", Pass::backward}};
struct AttentionSeries {
  std::string_view prefix, name;  // prefix: of the table's key, before "causal_" or "noncausal_"
  AttentionKind kind;
  std::string_view note;
};
constexpr AttentionSeries kAttentionSeries[] = {
    {"", "FlashAttention 2", AttentionKind::flash2, ""},
    {"fa1_", "FlashAttention 1", AttentionKind::flash1, ""},
    {"fa2_", "FlashAttention 2", AttentionKind::flash2, ""},
    {"cudnn_", "cuDNN", AttentionKind::flash, ""},
    {"fa3_", "FlashAttention 3", AttentionKind::flash,
     "priced as cuDNN's, which the measured runs' software took"}};

// Shares of the peak that a product without a short side reaches there: the device's, and of fp8 what all
// softwares have in common.
ProductRate product_rate(const KnownDevice& d, bool fp8) {
  const ScoreConstants& c = shipped_constants();
  const double share = c.factor("device", Fit::gemm) * c.factor("device:" + d.name, Fit::gemm);
  if (fp8) return {d.figures.fp8 * share * c.factor("software", Fit::gemm8), 1};
  return {d.figures.bf16 * share, 2};
}
std::string product_constants(const KnownDevice& d, bool fp8) {
  const DeviceFigures& f = d.figures;
  return fmt::format("{:.3f} of the peak; K0 {:g}; {:g} units",
                     product_rate(d, fp8).flops / (fp8 ? f.fp8 : f.bf16), fp8 ? 2 * f.k0 : f.k0, f.units);
}
std::string attention_constants(const KnownDevice& d, AttentionKind kind) {
  const AttentionCurve& c = attention_curve(d.figures, kind);
  return fmt::format("{:.0f} TFLOP/s, half at {:g} keys, short heads {:g}",
                     attention_peak(d.figures, kind) / kTeraFlops, c.half_keys, c.short_heads);
}

class Ops {
 public:
  Ops(const OpsJson& all, std::string_view file, CurveScore& score) : all_(all), file_(file), score_(score) {}

  void run() {
    best_products(kBest16, false);
    best_products(kBest8, true);
    deep_gemm();
    for (const AttentionTable& t : kAttentionTables) attention(t);
    simumax();
    if (const OpsJson* p5 = section(kP5Nccl); p5 && p5->contains(kP5Memory)) {
      const KnownDevice& d = device("H100");
      const double published = number((*p5)[kP5Memory], kP5Nccl, kP5Memory) * 1e3;
      memory_curve(d, "long reads and writes (AWS P5)", published,
                   "of long copies; norms and activations of a step are shorter");
    }
  }

 private:
  const OpsJson& all_;
  std::string_view file_;
  CurveScore& score_;

  static const KnownDevice& device(std::string_view name) {
    const KnownDevice* d = shipped_catalog().device_named(name);
    if (!d) run_failed("device {} is not in the catalog", name);
    return *d;
  }
  const OpsJson* section(std::string_view name) const {
    const auto at = all_.find(std::string(name));
    if (at == all_.end()) return nullptr;
    if (!at->is_object()) bad_request("{}: {} is {}; right is an object", file_, name, short_of(*at));
    return &*at;
  }
  static std::string short_of(const OpsJson& j) {
    constexpr size_t kMost = 60;
    const std::string text = j.dump(-1, ' ', false, OpsJson::error_handler_t::replace);
    return printable(text.size() > kMost ? text.substr(0, kMost) + " ..." : text);
  }
  [[noreturn]] void wrong(const OpsJson& j, std::string_view where, std::string_view key,
                          std::string_view right) const {
    bad_request("{}: {} {} is {}; right is {} (docs/score.md)", file_, where, printable(key), short_of(j),
                right);
  }
  double number(const OpsJson& j, std::string_view where, std::string_view key) const {
    constexpr double kMost = 1e9, kLeast = 1e-9;
    const double d = j.is_number() ? j.get<double>() : 0;
    if (!(d >= kLeast && d <= kMost)) wrong(j, where, key, "a number above 0");
    return d;
  }
  std::vector<double> numbers(const OpsJson& j, std::string_view where, std::string_view key,
                              size_t count) const {
    const std::string right = fmt::format("{} numbers, of sizes from 1", count);
    if (!j.is_array() || j.size() != count) wrong(j, where, key, right);
    std::vector<double> out;
    for (const OpsJson& n : j) {
      out.push_back(number(n, where, key));
      if (out.size() < count && out.back() < 1e-3) wrong(j, where, key, right);
    }
    return out;
  }
  const OpsJson& list(const OpsJson& of, std::string_view where, std::string_view key) const {
    const OpsJson& j = of.at(std::string(key));
    if (!j.is_array() || j.empty()) wrong(j, where, key, "a list of measurements");
    return j;
  }
  void keep(Curve c) {
    if (!c.points.empty()) score_.curves.push_back(std::move(c));
  }

  // ---- products ----

  struct Product {
    double m, n, k, group = 1;
  };
  static CurvePoint product_point(const KnownDevice& d, const Product& p, bool fp8, double tflops) {
    const ProductRate rate = product_rate(d, fp8);
    const double flops = 2 * p.m * p.n * p.k;
    const double seconds = product_seconds(d.figures, p.m, p.n, p.k, rate, p.group);
    const double arithmetic =
        flops / (rate.flops * product_share(d.figures, p.m, p.n, p.k, rate.bytes, p.group));
    const std::string sides = fmt::format("{:g} x {:g} x {:g}", p.m, p.n, p.k);
    return {.at = p.group > 1 ? fmt::format("{:g} of {}", p.group, sides) : sides,
            .way = seconds > arithmetic ? "memory" : "compute",
            .predicted = flops / seconds / kTeraFlops,
            .low = tflops,
            .high = tflops};
  }
  // "2048x2048x13312": M, N and K.
  static std::optional<Product> shape_of(std::string_view text) {
    double sides[3];
    for (double& side : sides) {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), side);
      if (error != std::errc() || !(side >= 1 && side <= kMostSide)) return {};
      text.remove_prefix(size_t(end - text.data()));
      if (&side != &sides[2]) {
        if (!text.starts_with('x')) return {};
        text.remove_prefix(1);
      }
    }
    if (!text.empty()) return {};
    return Product{sides[0], sides[1], sides[2]};
  }

  void best_products(std::string_view name, bool fp8) {
    const OpsJson* s = section(name);
    if (!s) return;
    std::string unknown;
    for (const auto& [key, value] : s->items()) {
      if (!value.is_array()) continue;  // source, note
      const auto* known = std::find_if(std::begin(kBestDevices), std::end(kBestDevices),
                                       [&k = key](const auto& d) { return d.first == k; });
      if (known == std::end(kBestDevices)) {
        unknown += (unknown.empty() ? "" : ", ") + printable(key);
        continue;
      }
      const auto shape =
          value.size() == 3 && value[2].is_string() ? shape_of(value[2].get<std::string>()) : std::nullopt;
      if (!shape) wrong(value, name, key, "[TFLOP/s, peak, \"MxNxK\"]");
      const KnownDevice& d = device(known->second);
      keep({.name = fp8 ? "products in fp8, best shape" : "products in bf16, best shape",
            .where = d.name,
            .unit = "TFLOP/s",
            .points = {product_point(d, *shape, fp8, number(value[0], name, key))},
            .constants = product_constants(d, fp8),
            .note = "the best of a search over thousands of shapes; a step's products are none of these"});
    }
    if (!unknown.empty())
      score_.left_out.push_back({fmt::format("{}: {}", name, unknown), "no figures in the catalog"});
  }

  void deep_gemm() {
    const OpsJson* s = section(kDeepGemm);
    if (!s) return;
    constexpr double kTraining = 1024;  // rows: fewer are what inference has
    const KnownDevice& d = device("H800");
    const auto curve = [&](std::string name, std::string note) {
      return Curve{.name = std::move(name),
                   .where = d.name,
                   .unit = "TFLOP/s",
                   .points = {},
                   .constants = product_constants(d, true),
                   .note = std::move(note)};
    };
    Curve long_rows = curve("products in fp8, 4,096 rows", "a kernel of DeepSeek's own"),
          few = curve("products in fp8, 64 and 128 rows",
                      "inference: kernels for few rows, which no training step has"),
          groups = curve("experts' products in fp8", "");
    if (s->contains("products"))
      for (const OpsJson& row : list(*s, kDeepGemm, "products")) {
        const std::vector<double> v = numbers(row, kDeepGemm, "products", 4);
        (v[0] >= kTraining ? long_rows : few)
            .points.push_back(product_point(d, {v[0], v[1], v[2]}, true, v[3]));
      }
    if (s->contains("grouped"))
      for (const OpsJson& row : list(*s, kDeepGemm, "grouped")) {
        const std::vector<double> v = numbers(row, kDeepGemm, "grouped", 5);
        groups.points.push_back(product_point(d, {v[1], v[2], v[3], v[0]}, true, v[4]));
      }
    keep(std::move(long_rows)), keep(std::move(few)), keep(std::move(groups));
  }

  // ---- attention ----

  static CurvePoint attention_point(const KnownDevice& d, AttentionKind kind, Pass pass, double keys,
                                    double head_dim, double heads, bool causal, double tflops) {
    // Under no mask a query sees all keys, under a causal mask of twice as many as many.
    const AttentionSeconds a = attention_seconds(d.figures, kind, 1, causal ? keys : 2 * keys, head_dim);
    const double seconds = pass == Pass::forward    ? a.forward
                           : pass == Pass::backward ? a.backward
                                                    : a.forward + a.backward;
    const std::string of = heads > 0 ? fmt::format("{:g} heads", heads)
                                     : fmt::format("heads of {:g}{}", head_dim, causal ? "" : ", no mask");
    return {.at = fmt::format("{:g} keys, {}", keys, of),
            .way = std::string(attention_curve(d.figures, kind).name),
            .predicted = kPassFlops[size_t(pass)] / seconds / kTeraFlops,
            .low = tflops,
            .high = tflops};
  }
  static Curve attention_of(const KnownDevice& d, std::string_view name, AttentionKind kind, Pass pass,
                            std::string_view note) {
    return {.name = fmt::format("attention, {}, {}", name, kPassNames[size_t(pass)]),
            .where = d.name,
            .unit = "TFLOP/s",
            .points = {},
            .constants = attention_constants(d, kind),
            .note = std::string(note)};
  }

  void attention(const AttentionTable& t) {
    const OpsJson* s = section(t.section);
    if (!s || !s->contains("seqlens")) return;
    const OpsJson& keys = list(*s, t.section, "seqlens");
    const KnownDevice& d = device(t.device);
    for (const AttentionSeries& series : kAttentionSeries) {
      Curve c = attention_of(d, series.name, series.kind, t.pass, series.note);
      for (const bool causal : {true, false})
        for (const double head_dim : {64., 128., 256.}) {
          const std::string key =
              fmt::format("{}{}_d{:g}", series.prefix, causal ? "causal" : "noncausal", head_dim);
          if (!s->contains(key)) continue;
          const OpsJson& rates = list(*s, t.section, key);
          if (rates.size() != keys.size())
            wrong(rates, t.section, key, fmt::format("a rate, or null, for each of {} seqlens", keys.size()));
          for (size_t i = 0; i < keys.size(); i++) {
            if (rates[i].is_null()) continue;
            const double n = number(keys[i], t.section, "seqlens");
            c.points.push_back(attention_point(d, series.kind, t.pass, n, head_dim, 0, causal,
                                               number(rates[i], t.section, key)));
          }
        }
      keep(std::move(c));
    }
    for (const auto& [key, value] : s->items())
      if (key.starts_with("pytorch_"))
        score_.left_out.push_back(
            {fmt::format("{}, {}", t.section, printable(key)),
             "PyTorch's attention without a fused softmax, which no measured run took"});
  }

  // ---- one machine's shares of its peaks ----

  void simumax() {
    const OpsJson* s = section(kSimuMax);
    if (!s) return;
    const KnownDevice& d = device("B200");
    if (s->contains("products")) {
      Curve c{.name = "products in bf16, Llama 3 70B's",
              .where = d.name,
              .unit = "TFLOP/s",
              .points = {},
              .constants = product_constants(d, false),
              .note = "of a machine whose long products reach 0.49 of the peak, where another's reach 0.78"};
      for (const OpsJson& row : list(*s, kSimuMax, "products")) {
        const std::vector<double> v = numbers(row, kSimuMax, "products", 4);
        c.points.push_back(product_point(d, {v[0], v[1], v[2]}, false, v[3] * d.figures.bf16 / kTeraFlops));
      }
      keep(std::move(c));
    }
    if (s->contains("attention")) {
      // All scores are counted, the causal half is computed.
      constexpr double kCausal = 0.5, kHead = 128;
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        Curve c = attention_of(d, "cuDNN, one sequence", AttentionKind::flash, pass,
                               "one sequence of few heads does not fill the device");
        for (const OpsJson& row : list(*s, kSimuMax, "attention")) {
          const std::vector<double> v = numbers(row, kSimuMax, "attention", 4);
          c.points.push_back(
              attention_point(d, AttentionKind::flash, pass, v[0], kHead, v[1], true,
                              v[pass == Pass::forward ? 2 : 3] * kCausal * d.figures.bf16 / kTeraFlops));
        }
        keep(std::move(c));
      }
    }
    if (s->contains("bandwidth"))
      memory_curve(d, "elementwise, a kernel of its own",
                   number((*s)["bandwidth"], kSimuMax, "bandwidth") * d.figures.bandwidth / kGigaBytes,
                   "launch included");
  }

  // ---- memory ----

  void memory_curve(const KnownDevice& d, std::string_view at, double published, std::string_view note) {
    Curve c{.name = "memory",
            .where = d.name,
            .unit = "GB/s",
            .points = {},
            .constants = "",
            .note = std::string(note)};
    for (size_t t = 0; t < size_t(Traffic::count); t++) {
      const TrafficCurve& curve = kTrafficCurves[t];
      c.constants += fmt::format("{}{} {:g}", t == 0 ? "" : ", ", curve.name, curve.reached);
      if (Traffic(t) != Traffic::elementwise) continue;
      c.points.push_back({.at = std::string(at),
                          .way = std::string(curve.name),
                          .predicted = 1 / traffic_seconds(d.figures, Traffic(t), 1) / kGigaBytes,
                          .low = published,
                          .high = published});
    }
    c.constants += " of the bandwidth";
    keep(std::move(c));
  }
};

}  // namespace

bool is_op_section(std::string_view name) {
  return name == kBest16 || name == kBest8 || name == kDeepGemm || name == kSimuMax ||
         std::any_of(std::begin(kAttentionTables), std::end(kAttentionTables),
                     [&](const AttentionTable& t) { return t.section == name; });
}

void score_ops(const OpsJson& all, std::string_view file, CurveScore& score) {
  Ops(all, file, score).run();
}

}  // namespace trireme
