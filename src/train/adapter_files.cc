#include "train/adapter_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/hf.h"
#include "checkpoint/peft.h"
#include "model/adapters.h"
#include "spec/name_patterns.h"
#include "spec/toml.h"

namespace trireme {
namespace {

constexpr size_t kSuffix = std::string_view(".lora_a").size();

// The adapted matrix of a factor.
std::string matrix_of(const Param& p) {
  return p.decl.name.substr(0, p.decl.name.size() - kSuffix);
}
char which_of(const Param& p) {
  return p.decl.name.back();
}

void refuse_other_adapter(const RunSpec& run, const PeftFolder& found, const fs::path& folder) {
  const LoraSpec& lora = run.lora;
  if (found.config().rank != lora.rank || found.config().alpha != lora.alpha)
    bad_request("lora.adapter = {}: has r = {} and lora_alpha = {}; give lora.rank = {} and lora.alpha = {}",
                toml_string(folder.string()), found.config().rank, found.config().alpha, found.config().rank,
                toml_number(found.config().alpha));
  const std::vector<std::string> there = found.matrices();
  std::vector<std::string> all;
  bool same = true;
  for (const PeftPlace& p : peft_places(run.model)) {
    all.push_back(p.ours);
    same &= chosen(lora.targets, p.ours) == (std::find(there.begin(), there.end(), p.ours) != there.end());
  }
  if (same) return;
  std::vector<std::string> quoted;
  for (const std::string& p : target_patterns(there, all)) quoted.push_back(toml_string(p));
  bad_request("lora.targets: chooses other matrices than {} has; give [{}]", folder.string(),
              fmt::join(quoted, ", "));
}

}  // namespace

std::vector<std::string> target_patterns(const std::vector<std::string>& matrices,
                                         const std::vector<std::string>& all) {
  if (matrices.size() == all.size()) return {"*"};
  // "*.attn.q" of "blocks.0.attn.q".
  const auto kind = [](const std::string& m) { return "*" + m.substr(m.find('.', m.find('.') + 1)); };
  std::map<std::string, size_t> had, could;
  for (const std::string& m : all) could[kind(m)]++;
  for (const std::string& m : matrices) had[kind(m)]++;
  std::vector<std::string> out;
  for (const auto& [k, n] : had)
    if (n == could[k]) out.push_back(k);
  for (const std::string& m : matrices)
    if (had[kind(m)] != could[kind(m)]) out.push_back(m);
  return out;
}

void read_adapter(StageRunner& runner, const fs::path& folder) {
  const PeftFolder found(folder, runner.run().model);
  refuse_other_adapter(runner.run(), found, folder);
  std::vector<float> host;
  for (const Param& p : runner.params().params) {
    if (p.decl.adapter_scale == 0) continue;
    const Range own = runner.memory().owned(p);
    if (own.size() == 0) continue;
    host.resize(size_t(own.size()));
    found.read(matrix_of(p), which_of(p), p.box, own, Tensor(host.data(), {own.size()}, DType::f32));
    runner.memory().write_param(p, "", host);
  }
}

void write_adapter(const StageRunner& runner, const fs::path& folder) {
  const RunSpec& run = runner.run();
  std::vector<std::string> matrices;
  for (const Param& p : runner.params().params)
    if (p.decl.adapter_scale != 0 && which_of(p) == 'a') matrices.push_back(matrix_of(p));
  const auto get = [&](const std::string& matrix, char which) {
    const Param* p = runner.params().find(adapter_name(matrix, which));
    require(p != nullptr, "an adapter has one factor");
    std::vector<float> values(size_t(p->numel()));
    runner.memory().read_param(*p, "", values);
    return values;
  };
  export_peft(folder, run.model, {.rank = run.lora.rank, .alpha = run.lora.alpha}, run.model.from, matrices,
              get);
}

nlohmann::json base_identity(const RunSpec& run) {
  const FileDigest d = HfFolder(run.model.from, run.model).sampled_digest();
  return {{"bytes", d.bytes}, {"sampled_xxh3", hex64(d.xxh3)}};
}

void refuse_other_base(const RunSpec& run, const Checkpoint& c) {
  const nlohmann::json& state = c.manifest().state;
  if (!has_base(run) || !state.is_object() || !state.contains("base")) return;
  const nlohmann::json now = base_identity(run);
  if (state["base"] == now) return;
  bad_request(
      "model.from = {}: other weights than those that the adapters of {} were trained on ({}, now {}): "
      "restore the "
      "folder; lora.adapter puts an adapter on another base",
      toml_string(run.model.from), c.folder().string(), state["base"].dump(), now.dump());
}

void merge_adapter(const StageRunner& runner, const Param& matrix, std::span<float> values) {
  constexpr size_t kWeight = std::string_view(".weight").size();
  if (!runner.run().lora.active() || matrix.decl.linear.empty()) return;
  const std::string name = matrix.decl.name.substr(0, matrix.decl.name.size() - kWeight);
  const Param *a = runner.params().find(adapter_name(name, 'a')),
              *b = runner.params().find(adapter_name(name, 'b'));
  if (!a) return;
  const size_t rank = size_t(a->decl.global[0]), in = size_t(a->decl.global[1]),
               out = size_t(b->decl.global[0]);
  std::vector<float> as(rank * in), bs(out * rank);
  runner.memory().read_param(*a, "", as);
  runner.memory().read_param(*b, "", bs);
  std::vector<double> row(in);
  for (size_t o = 0; o < out; o++) {
    float* w = values.data() + o * in;
    std::copy(w, w + in, row.begin());
    for (size_t k = 0; k < rank; k++) {
      const double factor = double(a->decl.adapter_scale) * double(bs[o * rank + k]);
      for (size_t i = 0; i < in; i++) row[i] += factor * double(as[k * in + i]);
    }
    for (size_t i = 0; i < in; i++) w[i] = float(row[i]);
  }
}

}  // namespace trireme
