#include "checkpoint/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/json.h"
#include "checkpoint/part_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

constexpr std::string_view kPeftConfig = "adapter_config.json", kPeftWeights = "adapter_model.safetensors";
constexpr std::string_view kPeftPrefix = "base_model.model.", kWeightSuffix = ".weight";
constexpr size_t kMaxPeftBytes = size_t(4) << 20;

std::string factor_name(const PeftPlace& p, char which) {
  return fmt::format("{}{}.lora_{}{}", kPeftPrefix, p.theirs, which == 'a' ? 'A' : 'B', kWeightSuffix);
}

// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string leaf(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

const PeftPlace* find_place(const std::vector<PeftPlace>& places, std::string_view ours) {
  const auto it =
      std::find_if(places.begin(), places.end(), [&](const PeftPlace& p) { return p.ours == ours; });
  return it == places.end() ? nullptr : &*it;
}

// Leaf names if they mean these modules and no others of the model, else the modules' whole names.
std::vector<std::string> target_modules(const ModelSpec& model, const std::vector<const PeftPlace*>& chosen) {
  std::set<std::string> leaves, whole;
  for (const PeftPlace* p : chosen) leaves.insert(leaf(p->theirs)), whole.insert(p->theirs);
  size_t meant = 0;
  for (const HfPlace& p : hf_places(model)) {
    std::string module = p.theirs;
    if (!module.ends_with(kWeightSuffix)) continue;
    module.resize(module.size() - kWeightSuffix.size());
    if (p.begin == 0) meant += leaves.count(leaf(module));
  }
  const std::set<std::string>& names = meant == chosen.size() ? leaves : whole;
  return {names.begin(), names.end()};
}

std::string config_text(const ModelSpec& model, const PeftConfig& c, const std::string& base,
                        const std::vector<const PeftPlace*>& chosen) {
  nlohmann::ordered_json j;
  j["base_model_name_or_path"] = base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base);
  j["bias"] = "none";
  j["fan_in_fan_out"] = model.arch == "gpt2";  // its modules store weights [in, out]
  j["inference_mode"] = true;
  j["init_lora_weights"] = true;
  j["lora_alpha"] = c.alpha;
  j["lora_dropout"] = 0.0;
  j["modules_to_save"] = nullptr;
  j["peft_type"] = "LORA";
  j["r"] = c.rank;
  j["target_modules"] = target_modules(model, chosen);
  j["task_type"] = "CAUSAL_LM";
  j["use_dora"] = false;
  j["use_rslora"] = false;
  return j.dump(2) + "\n";
}

}  // namespace

std::vector<PeftPlace> peft_places(const ModelSpec& m) {
  std::vector<PeftPlace> out;
  for (const HfPlace& p : hf_places(m)) {
    const bool whole = p.shape.rank == 2 && p.shape.numel() == p.their_shape.numel();
    const bool layer = p.ours.starts_with("blocks.") && p.ours.ends_with(kWeightSuffix);
    const bool routed = p.ours.find(".experts.") != std::string::npos ||
                        p.ours.find(".router.") != std::string::npos ||
                        p.ours.find(".shared_gate.") != std::string::npos;
    if (!whole || !layer || routed) continue;
    const auto bare = [](const std::string& s) { return s.substr(0, s.size() - kWeightSuffix.size()); };
    out.push_back({bare(p.ours), std::string(hf_prefix(m)) + bare(p.theirs), p.shape[0], p.shape[1]});
  }
  return out;
}

PeftConfig peft_config(const fs::path& folder) {
  const std::string file = (folder / kPeftConfig).string();
  const nlohmann::json j = parse_json(read_text(folder / kPeftConfig), file, kMaxPeftBytes);
  const auto refuse = [&](const char* key, std::string_view right) {
    bad_request("{}: {} = {}: {}", file, key, j.contains(key) ? printable(j[key].dump()) : "(absent)", right);
  };
  if (!j.is_object() || j.value("peft_type", "") != "LORA") refuse("peft_type", "expected \"LORA\"");
  for (const char* key : {"use_dora", "use_rslora", "use_qalora"})
    if (j.contains(key) && j[key] != false) refuse(key, "only plain LoRA is read, false");
  for (const char* key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication",
                          "megatron_config", "trainable_token_indices"})
    if (j.contains(key) && !j[key].empty()) refuse(key, "only plain LoRA is read, without this key");
  if (j.contains("bias") && j["bias"] != "none") refuse("bias", "expected \"none\"");
  PeftConfig c;
  if (!j.contains("r") || !j["r"].is_number_integer() || (c.rank = j["r"].get<int64_t>()) < 1)
    refuse("r", "expected an integer >= 1");
  if (!j.contains("lora_alpha") || !j["lora_alpha"].is_number() || !((c.alpha = j["lora_alpha"]) > 0))
    refuse("lora_alpha", "expected a number > 0");
  return c;
}

PeftFolder::PeftFolder(const fs::path& folder, const ModelSpec& model)
    : folder_(folder), config_(peft_config(folder)), file_(folder / kPeftWeights) {
  std::set<std::string> known;
  for (const PeftPlace& p : peft_places(model)) {
    Found f{.place = p, .a = file_.find(factor_name(p, 'a')), .b = file_.find(factor_name(p, 'b'))};
    known.insert({factor_name(p, 'a'), factor_name(p, 'b')});
    if (!f.a && !f.b) continue;
    const auto hold = [&](const SafetensorsEntry* e, char which, const Shape& want) {
      const std::string name = factor_name(p, which);
      if (!e) bad_request("{}: lacks '{}', and has the other factor", file_.path().string(), name);
      if (e->shape != want)
        bad_request("{}: '{}' has shape {}; expected {} by r = {} and the model", file_.path().string(), name,
                    to_string(e->shape), to_string(want), config_.rank);
      if (e->stored_type != "F32" && e->stored_type != "BF16" && e->stored_type != "F16")
        bad_request("{}: '{}' has type {}; expected F32, BF16 or F16", file_.path().string(), name,
                    e->stored_type);
    };
    hold(f.a, 'a', {config_.rank, p.in});
    hold(f.b, 'b', {p.out, config_.rank});
    found_.push_back(f);
  }
  for (const SafetensorsEntry& e : file_.header().entries)
    if (!known.count(e.name))
      bad_request(
          "{}: '{}' does not belong to a matrix that trireme adapts (attention, feed-forward without "
          "experts)",
          file_.path().string(), printable(e.name));
  if (found_.empty()) bad_request("{}: holds no adapter of this model", file_.path().string());
}

std::vector<std::string> PeftFolder::matrices() const {
  std::vector<std::string> out;
  for (const Found& f : found_) out.push_back(f.place.ours);
  return out;
}

void PeftFolder::read(std::string_view matrix, char which, const Slice& box, const Range& range,
                      const Tensor& dst) const {
  const auto it =
      std::find_if(found_.begin(), found_.end(), [&](const Found& f) { return f.place.ours == matrix; });
  if (it == found_.end()) bad_request("{}: has no adapter of {}", file_.path().string(), matrix);
  require(dst.dtype == DType::f32 && dst.numel() == range.size(), "a factor is read into f32 memory");
  const SafetensorsEntry& e = which == 'a' ? *it->a : *it->b;
  const std::byte* src = file_.bytes(e).data();
  for_each_run({box, range}, whole(e.shape), [&](const Overlap& r) {
    convert_elements(e.name, DType::f32, dst.data + (r.to - range.begin) * int64_t(sizeof(float)), *e.dtype,
                     src + r.from * size_of(*e.dtype), r.n);
  });
}

void export_peft(const fs::path& folder, const ModelSpec& model, const PeftConfig& config,
                 const std::string& base, const std::vector<std::string>& matrices, const FactorGetter& get) {
  const std::vector<PeftPlace> places = peft_places(model);
  std::vector<const PeftPlace*> chosen;
  std::vector<SafetensorsItem> items;
  std::map<std::string, std::pair<std::string, char>> ours;  // by the tensor's name
  for (const std::string& m : matrices) {
    const PeftPlace* p = find_place(places, m);
    if (!p)
      bad_request(
          "{}: is a part of a module in transformers, and PEFT has one adapter for the module; `convert` "
          "without --adapter writes the merged model",
          m);
    chosen.push_back(p);
    items.push_back({factor_name(*p, 'a'), DType::f32, {config.rank, p->in}});
    items.push_back({factor_name(*p, 'b'), DType::f32, {p->out, config.rank}});
    ours[factor_name(*p, 'a')] = {m, 'a'};
    ours[factor_name(*p, 'b')] = {m, 'b'};
  }
  for (const std::string& name : names_in(folder))
    if (name != kPeftConfig && name != kPeftWeights)
      bad_request("{} holds '{}', which does not belong to an adapter; choose a new or empty folder",
                  folder.string(), printable(name));
  PartFolder part(folder);
  write_text_atomic(part.path() / kPeftConfig, config_text(model, config, base, chosen));
  SafetensorsWriter writer(part.path() / kPeftWeights, std::move(items), {{"format", "pt"}});
  for (const SafetensorsItem& item : writer.items()) {
    const auto& [matrix, which] = ours.at(item.name);
    const std::vector<float> values = get(matrix, which);
    require(int64_t(values.size()) == item.shape.numel(), "a factor has the wrong size");
    writer.write(values.data(), values.size() * sizeof(float));
  }
  writer.commit();
  PeftFolder check(part.path(), model);
  part.flush();
  part.publish();
}

}  // namespace trireme
