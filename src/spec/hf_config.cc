#include "spec/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error_lines.h"
#include "base/json.h"
#include "spec/hf_experts.h"
#include "spec/hf_harmless.h"
#include "spec/hf_object.h"
#include "spec/hf_storage.h"
#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = 4 << 20;  // of a config.json; real ones have a few thousand

// Rates that no architecture here reads.
constexpr std::string_view kOtherDropout[] = {"hidden_dropout", "residual_dropout", "embedding_dropout"};

// Switches of features that are not here, with the value that turns each off. null does too.
struct Off {
  std::string_view key;
  Json value;
};
const std::vector<Off>& switches() {
  static const std::vector<Off> kOff = {{"scale_attn_weights", true},
                                        {"scale_attn_by_inverse_layer_idx", false},
                                        {"reorder_and_upcast_attn", false},
                                        {"add_cross_attention", false},
                                        {"is_encoder_decoder", false},
                                        {"cross_attention_hidden_size", nullptr},
                                        {"pretraining_tp", 1},
                                        {"use_mrope", false},
                                        {"attention_chunk_size", nullptr},
                                        {"partial_rotary_factor", 1},
                                        {"compression_config", nullptr},
                                        {"pruned_heads", Json::object()},
                                        {"per_layer_config", nullptr},
                                        {"n_special", 0},
                                        {"activation", "swiglu"},
                                        {"use_qk_norm", false},
                                        {"rope_interleaved", false}};
  return kOff;
}

void read_switches(HfObject& o) {
  for (const auto& [key, off] : switches()) {
    const Json* j = o.find(key);
    if (!j || *j == off) continue;
    std::string right = off.is_null() ? "null" : off.is_object() ? "{}" : off.dump();
    o.problem(key, fmt::format("{} is not supported; only {} is", shown_json(*j), right));
  }
  if (const Json* types = o.find("layer_types")) {
    bool full = types->is_array() && std::all_of(types->begin(), types->end(),
                                                 [](const Json& t) { return t == "full_attention"; });
    if (!full) o.problem("layer_types", "only \"full_attention\" in every layer is supported");
  }
}

// Code in the folder. transformers has its own class for each model type here, and runs that class unless
// told to trust the folder's code.
void note_auto_map(HfObject& o, std::string_view file, const ModelSpec& m, std::vector<std::string>* notes) {
  const bool deepseek = m.arch.starts_with("deepseek");  // its code is that of the class
  if (o.find("auto_map") && !deepseek && notes)
    notes->push_back(
        fmt::format("{}: auto_map: code of the folder is not run; the model is a plain {}", file, m.arch));
}

// gpt2 has three rates, 0.1 each where config.json does not say; the others have attention_dropout. What an
// export of ours wrote beside it is read too.
void read_dropout(HfObject& o, std::string_view file, ModelSpec& m, std::vector<std::string>* notes) {
  const bool gpt2 = m.arch == "gpt2";
  auto rate = [&](std::string_view key, double otherwise) {
    double p = o.number(key, otherwise, 0, 1);
    if (p < 1) return p;
    o.problem(key, "1 drops everything; give a number below 1");
    return 0.0;
  };
  m.embd_pdrop = rate("embd_pdrop", gpt2 ? 0.1 : 0);
  m.resid_pdrop = rate("resid_pdrop", gpt2 ? 0.1 : 0);
  m.attn_pdrop = rate(gpt2 ? "attn_pdrop" : "attention_dropout", gpt2 ? 0.1 : 0);
  auto not_read = [&](std::string_view key) {
    double p = o.number(key, 0.0, 0, 1);
    if (p > 0 && notes)
      notes->push_back(
          fmt::format("{}: {}: {} is not applied: a {} has no such dropout", file, key, p, m.arch));
  };
  not_read(gpt2 ? "attention_dropout" : "attn_pdrop");
  for (std::string_view key : kOtherDropout) not_read(key);
}

void read_architectures(HfObject& o, const std::vector<std::string_view>& known) {
  const Json* j = o.find("architectures");
  if (!j) return;
  bool fits = j->is_array() && std::all_of(j->begin(), j->end(), [&](const Json& a) {
                return a.is_string() &&
                       std::find(known.begin(), known.end(), a.get_ref<const std::string&>()) != known.end();
              });
  if (!fits)
    o.problem(
        "architectures",
        fmt::format("{} is not supported; one of {} is",
                    j->is_array() && !j->empty() ? shown_json(j->front()) : shown_json(*j), joined(known)));
}

// YaRN's numbers, with transformers' defaults.
void read_yarn(HfObject& r, RopeScaling& s) {
  r.ignore(std::array<std::string_view, 1>{"finetuned"});  // provenance; no code of transformers reads it
  s.original_max_positions = r.whole("original_max_position_embeddings", std::nullopt, 1e9);
  s.beta_fast = r.number("beta_fast", 32.0, 1e-6, 1e6);
  s.beta_slow = r.number("beta_slow", 1.0, 1e-6, 1e6);
  s.mscale = r.number("mscale", 0.0, 0, 1e3);
  s.mscale_all_dim = r.number("mscale_all_dim", 0.0, 0, 1e3);
  s.attention_factor = r.number("attention_factor", 0.0, 0, 1e3);
  if (r.clean() && !(s.beta_slow < s.beta_fast))
    r.problem("beta_slow", fmt::format("{} must be below beta_fast = {}", s.beta_slow, s.beta_fast));
  if (!r.flag("truncate", true)) r.problem("truncate", "false is not supported; true is");
}

// rope_theta and rope_scaling (transformers 4), or both within rope_parameters (5).
void read_rope(HfObject& o, std::string_view file, ModelSpec& m, std::vector<std::string>& problems) {
  m.rope_theta = o.number("rope_theta", m.arch == "mixtral" ? 1e6 : 1e4, 1e-6, 1e30);
  bool outer_theta = o.find("rope_theta") != nullptr;
  const Json* scaling = o.find("rope_scaling");
  const Json* parameters = o.find("rope_parameters");
  if (scaling && parameters)
    return o.problem("rope_parameters", "given beside rope_scaling; keep one of them");
  std::string_view name = scaling ? "rope_scaling" : "rope_parameters";
  const Json* j = scaling ? scaling : parameters;
  if (!j) return;
  if (!j->is_object()) return o.problem(name, fmt::format("{} is not an object", shown_json(*j)));

  HfObject r(*j, fmt::format("{}: {}.", file, name), problems);
  std::string old_type = r.text("type", ""), type = r.text("rope_type", old_type);
  if (!old_type.empty() && old_type != type) r.problem("type", "contradicts rope_type");
  double theta = r.number("rope_theta", m.rope_theta, 1e-6, 1e30);
  if (outer_theta && theta != m.rope_theta)
    r.problem("rope_theta", fmt::format("{} contradicts rope_theta = {} outside", theta, m.rope_theta));
  m.rope_theta = theta;
  if (r.number("partial_rotary_factor", 1.0, 0, 1) != 1)
    r.problem("partial_rotary_factor", "only 1 is supported");
  RopeScaling& s = m.rope_scaling;
  if (type.empty() || type == "default") {
    s.type = "none";
  } else if (type == "linear" || type == "llama3" || type == "yarn") {
    s.type = type;
    s.factor = r.number("factor", std::nullopt, 1, 1e6);
  } else {
    return r.problem("rope_type",
                     fmt::format("{} is not supported; default, linear, llama3 and yarn are", shown(type)));
  }
  if (type == "llama3") {
    size_t before = problems.size();
    s.low_freq_factor = r.number("low_freq_factor", std::nullopt, 1e-6, 1e6);
    s.high_freq_factor = r.number("high_freq_factor", std::nullopt, 1e-6, 1e6);
    s.original_max_positions = r.whole("original_max_position_embeddings", std::nullopt, 1e9);
    if (problems.size() == before && !(s.low_freq_factor < s.high_freq_factor))
      r.problem("low_freq_factor",
                fmt::format("{} must be below high_freq_factor = {}", s.low_freq_factor, s.high_freq_factor));
  }
  if (type == "yarn") read_yarn(r, s);
  r.refuse_others();
}

ModelSpec read_gpt2(HfObject& o) {
  ModelSpec m = ModelSpec::of("gpt2");
  m.vocab = o.whole("vocab_size", std::nullopt, kMaxVocab);
  m.max_positions = o.whole("n_positions", 1024, 2147483647);
  m.hidden = o.whole("n_embd", std::nullopt, kMaxWidth);
  m.layers = o.whole("n_layer", std::nullopt, kMaxLayers);
  m.heads = o.whole("n_head", std::nullopt, kMaxWidth);
  m.ffn = o.whole("n_inner", 4 * m.hidden, 4 * kMaxWidth);
  std::string act = o.text("activation_function", "gelu_new");
  if (act == "gelu")
    m.activation = "gelu";
  else if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    o.problem("activation_function",
              fmt::format("{} is not supported; gelu_new, gelu_pytorch_tanh and gelu are", shown(act)));
  m.norm_eps = o.number("layer_norm_epsilon", 1e-5, 1e-30, 1);
  m.init_std = o.number("initializer_range", 0.02, 0, 10);
  m.tied = o.flag("tie_word_embeddings", true);
  if (o.clean() && m.hidden % m.heads != 0)
    o.problem("n_head", fmt::format("{} does not divide n_embd = {}", m.heads, m.hidden));
  read_architectures(o, {"GPT2LMHeadModel", "GPT2Model"});
  return m;
}

// Qwen's sliding_window is a number even where nothing slides: use_sliding_window decides, and then only
// layers from max_window_layers on slide. Where layer_types is given, it decides (read_switches).
void read_window(HfObject& o, const ModelSpec& m) {
  if (!m.arch.starts_with("qwen")) {
    if (const Json* j = o.find("sliding_window"))
      o.problem("sliding_window", fmt::format("{} is not supported; only null is", shown_json(*j)));
    if (o.flag("use_sliding_window", false))
      o.problem("use_sliding_window", "true is not supported; only false is");
    return;
  }
  const Json* window = o.find("sliding_window");
  bool use = o.flag("use_sliding_window", false),
       none = o.given("sliding_window") && (!window || *window == 0);  // 0: a qwen2_moe saved without one
  int64_t tokens = none ? 0 : o.whole("sliding_window", 4096, 2147483647);
  const Json* from = o.find("max_window_layers");
  bool fits = !from || (from->is_number_integer() && from->get<double>() >= 0);
  if (!fits) o.problem("max_window_layers", fmt::format("{} is not a whole number", shown_json(*from)));
  double first = from && fits ? from->get<double>() : 28;
  if (use && !none && !o.find("layer_types") && (first < double(m.layers) || m.moe()))
    o.problem(
        "use_sliding_window",
        fmt::format("true is not supported: layers from {:.0f} on would attend to {} tokens; only false is",
                    first, tokens));
}

// What transformers puts in place of key/value heads that are left out.
int64_t left_out_kv_heads(const HfObject& o, const ModelSpec& m) {
  if (m.arch == "llama" || m.latent() || o.given("num_key_value_heads")) return m.heads;  // null: heads
  if (m.arch == "mixtral") return 8;
  return m.arch == "qwen2_moe" ? 16 : m.arch == "qwen3_moe" ? 4 : 32;
}

// llama, and those that are written with its keys: the qwens, mixtral and deepseek.
ModelSpec read_llama(HfObject& o, std::string_view arch, std::string_view file,
                     std::vector<std::string>& problems, std::vector<std::string>* notes) {
  ModelSpec m = ModelSpec::of(arch);
  const bool llama = arch == "llama", qwen3 = arch == "qwen3", mixtral = arch == "mixtral",
             deepseek = arch.starts_with("deepseek");
  m.vocab = o.whole("vocab_size", std::nullopt, kMaxVocab);
  m.hidden = o.whole("hidden_size", std::nullopt, kMaxWidth);
  m.ffn = o.whole("intermediate_size", std::nullopt, 4 * kMaxWidth);
  m.layers = o.whole("num_hidden_layers", std::nullopt, kMaxLayers);
  m.heads = o.whole("num_attention_heads", std::nullopt, kMaxWidth);
  m.kv_heads = o.whole("num_key_value_heads", left_out_kv_heads(o, m), kMaxWidth);
  m.max_positions = o.whole("max_position_embeddings",
                            llama || arch == "deepseek_v2" ? 2048
                            : deepseek                     ? 4096
                            : mixtral                      ? 131072
                                                           : 32768,
                            2147483647);
  if (o.clean() && !qwen3 && !deepseek && !o.find("head_dim") && m.hidden % m.heads != 0)
    o.problem("num_attention_heads", fmt::format("{} does not divide hidden_size = {}", m.heads, m.hidden));
  if (!deepseek)
    m.head_dim = o.whole("head_dim", qwen3 ? 128 : std::max<int64_t>(1, m.hidden / m.heads), kMaxWidth);
  if (o.clean() && !deepseek && m.head_dim % 2 != 0)
    o.problem("head_dim",
              fmt::format("{} is odd; rotary positions turn pairs, so it must be even", m.head_dim));
  if (o.clean() && m.heads % m.kv_heads != 0)
    o.problem("num_key_value_heads",
              fmt::format("{} does not divide num_attention_heads = {}", m.kv_heads, m.heads));
  if (std::string act = o.text("hidden_act", "silu"); act != "silu")
    o.problem("hidden_act", fmt::format("{} is not supported; silu is", shown(act)));
  m.norm_eps = o.number("rms_norm_eps", mixtral ? 1e-5 : 1e-6, 1e-30, 1);
  m.init_std = o.number("initializer_range", 0.02, 0, 10);
  m.tied = o.flag("tie_word_embeddings", false);
  if (llama || qwen3 || arch == "qwen3_moe") m.attn_bias = o.flag("attention_bias", false);
  if (arch == "qwen2_moe") m.qkv_bias = o.flag("qkv_bias", true);
  if (llama) m.mlp_bias = o.flag("mlp_bias", false);
  read_rope(o, file, m, problems);
  if (deepseek)
    read_deepseek(o, file, m, notes);
  else if (m.moe())
    read_experts(o, file, m, notes);
  static constexpr std::string_view kNames[][3] = {
      {"llama", "LlamaForCausalLM", "LlamaModel"},
      {"qwen2", "Qwen2ForCausalLM", "Qwen2Model"},
      {"qwen3", "Qwen3ForCausalLM", "Qwen3Model"},
      {"mixtral", "MixtralForCausalLM", "MixtralModel"},
      {"qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeModel"},
      {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel"},
      {"deepseek_v2", "DeepseekV2ForCausalLM", "DeepseekV2Model"},
      {"deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Model"}};
  for (const auto& [name, with_head, bare] : kNames)
    if (name == arch) read_architectures(o, {with_head, bare});
  return m;
}

Json parse_json(std::string_view text, std::string_view file) {
  if (text.size() > kMaxBytes)
    bad_request("{}: {} bytes are too many for a config.json; at most {}", file, text.size(), kMaxBytes);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    std::string why = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (size_t end = why.find("] "); end != std::string::npos) why = why.substr(end + 2);
    std::string line = shown(std::string_view(why).substr(0, 160));
    bad_request("{}: not JSON: {}", file, line.substr(1, line.size() - 2));
  }
}

}  // namespace

ModelSpec parse_hf_config(std::string_view text, std::string_view file, std::vector<std::string>* notes) {
  Json json = parse_json(text, file);
  if (!json.is_object())
    bad_request("{}: {} where an object with model_type was expected", file, shown_json(json));
  std::vector<std::string> problems;
  HfObject o(json, fmt::format("{}: ", file), problems);
  std::string type = o.text("model_type", "");
  if (!problems.empty()) bad_request("{}; give one of {}", problems.front(), joined(kArchs));
  if (type.empty()) bad_request("{}: model_type: missing; give one of {}", file, joined(kArchs));
  if (std::string why = ModelSpec::refusal(type); !why.empty()) bad_request("{}: model_type: {}", file, why);

  ModelSpec m = type == "gpt2" ? read_gpt2(o) : read_llama(o, type, file, problems, notes);
  read_window(o, m);
  read_switches(o);
  note_auto_map(o, file, m, notes);
  if (o.find("quantization_config")) try {
      hf_storage(text, file);
    } catch (const Error& e) {
      problems.push_back(e.what());
    }
  read_dropout(o, file, m, notes);
  o.refuse_others();
  if (!problems.empty()) throw ErrorLines(std::move(problems));
  m.finish(m.max_positions);
  return m;
}

HfIds hf_token_ids(std::string_view text, std::string_view file) {
  Json json = parse_json(text, file);
  if (!json.is_object()) bad_request("{}: {} where an object was expected", file, shown_json(json));
  auto id = [&](std::string_view key, const Json& j) {
    if (!j.is_number_integer()) bad_request("{}: {}: {} is no token id", file, key, shown_json(j));
    return j.get<int64_t>();
  };
  auto one = [&](std::string_view key) -> std::optional<int64_t> {
    auto it = json.find(std::string(key));
    if (it == json.end() || it->is_null()) return {};
    return id(key, *it);
  };
  HfIds ids{.bos = one("bos_token_id"), .eos = {}, .pad = one("pad_token_id")};
  if (auto it = json.find("eos_token_id"); it != json.end() && it->is_array())
    for (const Json& j : *it) ids.eos.push_back(id("eos_token_id", j));
  else if (auto eos = one("eos_token_id"))
    ids.eos.push_back(*eos);
  return ids;
}
HfIds hf_token_ids(const fs::path& config_json) {
  return hf_token_ids(read_small(config_json, kMaxBytes), config_json.string());
}

ModelSpec model_from_hf(const fs::path& config_json, std::vector<std::string>* notes) {
  return parse_hf_config(read_small(config_json, kMaxBytes), config_json.string(), notes);
}

}  // namespace trireme
