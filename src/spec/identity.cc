#include "spec/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/counted.h"
#include "base/file.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {

bool is_one_of(std::string_view key, std::span<const std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// How work and sums are divided, and the kernels: these may change the last bits.
bool divides(std::string_view key) {
  static constexpr std::string_view kKeys[] = {
      "batch.micro",  "precision.grads", "precision.reduce", "optimizer.post_validation",
      "train.device", "train.attention", "train.sum_order",  "train.deterministic"};
  return (key.starts_with("layout.") && key != "layout.offload_dir") || is_one_of(key, kKeys);
}

// Keys that have no effect with the other keys of this run.
bool has_no_effect(const RunSpec& run, std::string_view key) {
  static constexpr std::string_view kOfF16[] = {"precision.loss_scale", "precision.initial_scale",
                                                "precision.growth_interval", "precision.backoff_factor",
                                                "precision.min_scale"};
  if (key.starts_with("moe.")) return !run.model.moe();
  if (is_one_of(key, kOfF16)) return run.precision.compute != "f16";
  if (key == "precision.moments") return run.precision.moments == "f32";  // as runs before this key
  if (key == "batch.ramp") return run.batch.ramp.empty();                 // as runs before this key
  if (key == "model.embed_std") return run.model.embed_std == 0;
  if (key == "model.head_std") return run.model.head_std == 0;
  if (key.starts_with("lora.")) return !run.lora.active();              // as runs before these keys
  if (key == "optimizer.embed_lr") return run.optimizer.embed_lr == 0;  // as runs before this key
  if (key == "precision.fp8_history") return run.precision.fp8 != "delayed";
  return key.starts_with("precision.fp8_") && run.precision.fp8 == "none";
}

// Whether the key decides a run's loss.
bool determines_numbers(const RunSpec& run, std::string_view key) {
  static constexpr std::string_view kDivision[] = {"batch.micro", "optimizer.post_validation",
                                                   "precision.fp8_kernels"};
  static constexpr std::string_view kSections[] = {"model.",     "batch.", "moe.",
                                                   "precision.", "lora.",  "optimizer."};
  // data.train is compared by content.
  static constexpr std::string_view kKeys[] = {"data.weights",   "data.seq_len", "data.order",
                                               "data.documents", "train.steps",  "train.seed"};
  if (is_one_of(key, kDivision) || has_no_effect(run, key)) return false;
  return is_one_of(key, kKeys) ||
         std::any_of(std::begin(kSections), std::end(kSections), [&](auto s) { return key.starts_with(s); });
}

// Both texts decide identity by `value`; a message has `shown`.
struct KeyValue {
  std::string value, shown;
};

// Auxiliary loss and capacity are functions of all tokens of a unit (docs/moe.md), so the sequences that a
// unit spans belong to them. With "global", a unit begins with the sequences that all replicas run at once.
std::string unit_text(const RunSpec& run) {
  const std::string unit = toml_string(run.moe.unit);
  if (run.moe.unit == "sequence" || (run.moe.aux_loss == 0 && run.moe.capacity == 0)) return unit;
  if (run.moe.unit == "microbatch") return fmt::format("{} of batch.micro = {}", unit, run.batch.micro);
  return fmt::format("{} of layout.dp * batch.micro = {} * {} = {}", unit, run.layout.dp, run.batch.micro,
                     run.layout.dp * run.batch.micro);
}
// Without the factors: 2 * 4 and 1 * 8 span the same sequences.
std::string unit_value(const RunSpec& run) {
  const std::string text = unit_text(run);
  const size_t factors = text.find("layout.dp"), product = text.rfind("= ");
  return factors == std::string::npos ? text : text.substr(0, factors) + text.substr(product);
}

// Sums in bf16 lose more with each microbatch.
KeyValue grads_of(const RunSpec& run) {
  const std::string type = toml_string(run.precision.grads);
  if (run.precision.grads != "bf16") return {"rounded once", type};
  const std::string shown =
      fmt::format("{} over {}", type, counted(run.microbatches(), "microbatch", "microbatches"));
  return {run.microbatches() > 1 ? shown : "rounded once", shown};
}

// "auto" changes its type with the number of microbatches, which a resume may change.
bool grads_agree(const RunSpec& a, const RunSpec& b) {
  auto automatic = [](const RunSpec& r) { return r.precision.grads == automatic_grads(r); };
  if (automatic(a) && automatic(b)) return true;
  return a.precision.grads == b.precision.grads && grads_of(a).value == grads_of(b).value;
}

KeyValue value_of(const RunSpec& run, const FieldText& f) {
  // The folder may move; its weights are hashed where they are read.
  if (f.key == "model.from") {
    const std::string from = run.model.from.empty() ? "scratch" : "folder";
    return {from, from};
  }
  if (f.key == "lora.adapter") {
    const std::string from = run.lora.adapter.empty() ? "new" : "folder";
    return {from, from};
  }
  if (f.key == "moe.unit") return {unit_value(run), unit_text(run)};
  if (f.key == "precision.grads") return grads_of(run);
  return {f.value, f.value};
}

}  // namespace

std::string_view automatic_grads(const RunSpec& run) {
  return run.precision.compute == "bf16" && run.microbatches() == 1 ? "bf16" : "f32";
}

uint64_t hash(const RunSpec& run) {
  std::string text;
  for (const FieldText& f : fields_of(run))
    if (determines_numbers(run, f.key)) text += fmt::format("{} = {}\n", f.key, value_of(run, f).value);
  return hash64(text.data(), text.size());
}

// A key that decides one of the two runs alone is shown with the value that the other one has for it.
std::vector<std::string> diff_of_identity(const RunSpec& before, const RunSpec& after) {
  const std::vector<FieldText> a = fields_of(before), b = fields_of(after);
  std::vector<std::string> out;
  for (size_t i = 0; i < a.size(); i++) {
    if (!determines_numbers(before, a[i].key) && !determines_numbers(after, a[i].key)) continue;
    const KeyValue old = value_of(before, a[i]);
    const KeyValue now = value_of(after, b[i]);
    const bool same = a[i].key == "precision.grads" ? grads_agree(before, after) : old.value == now.value;
    if (!same) out.push_back(fmt::format("{}: {} -> {}", a[i].key, old.shown, now.shown));
  }
  return out;
}

namespace {

template <class Wanted>
std::vector<std::string> diff_where(const RunSpec& before, const RunSpec& after, Wanted wanted) {
  std::vector<FieldText> a = fields_of(before), b = fields_of(after);
  std::vector<std::string> out;
  for (size_t i = 0; i < a.size(); i++)
    if (a[i].value != b[i].value && wanted(a[i].key))
      out.push_back(fmt::format("{}: {} -> {}", a[i].key, a[i].value, b[i].value));
  return out;
}

}  // namespace

std::vector<std::string> diff(const RunSpec& before, const RunSpec& after) {
  return diff_where(before, after, [](std::string_view) { return true; });
}
std::vector<std::string> diff_of_division(const RunSpec& before, const RunSpec& after) {
  return diff_where(before, after, divides);
}

}  // namespace trireme
