#include "train/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme {
namespace {

std::string entry_name(const Param& p, std::string_view what) {
  return p.decl.name + "/" + std::string(what.empty() ? "master" : what);
}

NamedTensor named(const StageRunner& r, const Param& p, std::string_view what, const Tensor& host) {
  return {.name = entry_name(p, what),
          .global = p.decl.global,
          .box = p.box,
          .range = {0, p.numel()},
          .host_data = host};
}

std::vector<std::string> states_of(const StageRunner& r) {
  std::vector<std::string> names = {""};
  for (const StateDecl& s : r.state_decls()) names.push_back(s.name);
  return names;
}

RunSpec saved_run(const Checkpoint& c) {
  return parse_run(c.manifest().run_toml, (c.folder() / "manifest.json").string(), {}, {.read_from = false});
}

LossScaleState saved_loss_scale(const LossScale& scale, const Checkpoint& c) {
  const Manifest& m = c.manifest();
  auto broken = [&] {
    bad_request("{}: state holds no loss scale that this run can go on with: {}",
                (c.folder() / "manifest.json").string(), m.state.dump());
  };
  nlohmann::json j = m.state.is_object() ? m.state.value("loss_scale", nlohmann::json()) : nlohmann::json();
  auto whole = [&](const char* key) { return j.contains(key) && j[key].is_number_integer(); };
  if (!j.is_object() || !j.contains("scale") || !j["scale"].is_number() || !whole("good_steps") ||
      !whole("skipped"))
    broken();
  LossScaleState s{.scale = j["scale"], .good_steps = j["good_steps"], .skipped = j["skipped"]};
  if (!scale.plausible(s) || s.skipped > m.step) broken();
  return s;
}

}  // namespace

fs::path save_checkpoint(const StageRunner& r, const RunSpec& run, int64_t step, const PhaseHook& phase) {
  std::vector<NamedTensor> tensors;
  for (const Param& p : r.params().params)
    for (const std::string& what : states_of(r))
      tensors.push_back(named(r, p, what, r.state_tensor(p, what)));
  Manifest m;
  m.step = step;
  m.samples = step * run.batch.global;
  m.tokens = step * run.tokens_per_step();
  m.seed = uint64_t(run.train.seed);
  m.spec_hash = hash(run);
  m.run_toml = save_run(run);
  if (r.loss_scale().active()) {
    const LossScaleState& s = r.loss_scale().state();
    m.state["loss_scale"] = {{"scale", s.scale}, {"good_steps", s.good_steps}, {"skipped", s.skipped}};
  }
  return save(checkpoint_root(run.train.dir), m, tensors, {.keep = int(run.train.keep), .phase = phase});
}

void load_checkpoint(StageRunner& r, const Checkpoint& c, bool with_state) {
  std::vector<float> host;
  for (const Param& p : r.params().params)
    for (const std::string& what : states_of(r)) {
      if (!what.empty() && !with_state) continue;
      host.resize(size_t(p.numel()));
      c.read(named(r, p, what, Tensor(host.data(), {p.numel()}, DType::f32)));
      r.write_param(p, what, host);
    }
  r.weights_from_master();
  if (with_state && r.loss_scale().active()) r.restore_loss_scale(saved_loss_scale(r.loss_scale(), c));
}

void refuse_other_run(const RunSpec& run, const Checkpoint& c) {
  if (c.manifest().spec_hash == hash(run)) return;
  // Saved when a run file had fewer keys: what they would have said are their defaults.
  if (hash(saved_run(c)) == hash(run)) return;
  bad_request(
      "{} holds a checkpoint of another run ({}): choose another train.dir, or remove it to start afresh",
      c.folder().string(), fmt::join(diff(saved_run(c), run), "; "));
}

void refuse_other_model(const RunSpec& run, const Checkpoint& c) {
  RunSpec saved = run;
  saved.model = saved_run(c).model;
  saved.model.from = run.model.from, saved.model.init_std = run.model.init_std;
  for (auto rate : {&ModelSpec::embd_pdrop, &ModelSpec::attn_pdrop, &ModelSpec::resid_pdrop})
    saved.model.*rate = run.model.*rate;
  // Rotary positions have no end; how many there are follows from data.seq_len.
  if (run.model.positions == "rope") saved.model.max_positions = run.model.max_positions;
  if (std::vector<std::string> keys = diff(saved, run); !keys.empty())
    bad_request(
        "{} holds another model ({}): use the run file that it was trained with, or another train.dir",
        c.folder().string(), fmt::join(keys, "; "));
}

}  // namespace trireme
