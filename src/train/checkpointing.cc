#include "train/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/named.h"
#include "device/device_memory.h"
#include "spec/batch_ramp.h"
#include "spec/identity.h"
#include "train/adapter_files.h"
#include "train/trainer.h"

namespace trireme {
namespace {

std::string entry_name(const Param& p, std::string_view what) {
  return p.decl.name + "/" + std::string(what.empty() ? "master" : what);
}

// host: elements `range` of the parameter.
NamedTensor named(const Param& p, std::string_view what, const Range& range, const Tensor& host) {
  return {
      .name = entry_name(p, what), .global = p.decl.global, .box = p.box, .range = range, .host_data = host};
}

std::vector<std::string> states_of(const StageRunner& r, const Param& p) {
  std::vector<std::string> names = {""};
  if (p.decl.buffer) return names;
  for (const StateDecl& s : r.memory().state_decls())
    if (s.has(p.decl)) names.push_back(s.name);
  return names;
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

nlohmann::json json_of(const Fp8Histories& histories) {
  nlohmann::json j = nlohmann::json::object();
  for (const auto& [linear, history] : histories)
    for (size_t i = 0; i < history.size(); i++) j[linear][kFp8Operands[i]] = history[i];
  return j;
}

Fp8Histories saved_fp8(const Checkpoint& c) {
  const nlohmann::json& state = c.manifest().state;
  const nlohmann::json j = state.is_object() ? state.value("fp8", nlohmann::json()) : nlohmann::json();
  Fp8Histories out;
  for (const auto& [linear, history] : j.items())
    for (size_t i = 0; i < kFp8Operands.size(); i++) {
      const nlohmann::json list =
          history.is_object() ? history.value(kFp8Operands[i], nlohmann::json()) : nlohmann::json();
      if (!list.is_array() ||
          !std::all_of(list.begin(), list.end(), [](const nlohmann::json& m) { return m.is_number(); }))
        return {};
      out[linear][i] = list.get<std::vector<float>>();
    }
  return out;
}

void restore_fp8(StageRunner& r, const Checkpoint& c) {
  if (!r.passes().fp8()->restore(r.device(), saved_fp8(c)))
    bad_request("{}: state holds no magnitudes of 8-bit layers (\"fp8\") that this run can go on with",
                (c.folder() / "manifest.json").string());
}

nlohmann::json json_of(const SpikeState& s) {
  return {{"losses", s.losses}, {"norms", s.norms}, {"in_a_row", s.in_a_row}, {"skipped", s.skipped}};
}

// Empty if the run did not look for spikes.
SpikeState saved_spikes(const SpikeDetector& detector, const Checkpoint& c) {
  const nlohmann::json& state = c.manifest().state;
  if (!state.is_object() || !state.contains("spikes")) return {};
  SpikeState s;
  try {
    const nlohmann::json& j = state["spikes"];
    s.losses = j.at("losses").get<std::vector<double>>();
    s.norms = j.at("norms").get<std::vector<double>>();
    s.in_a_row = j.at("in_a_row");
    s.skipped = j.at("skipped");
  } catch (const nlohmann::json::exception&) {
    s.in_a_row = -1;
  }
  if (!detector.plausible(s) || s.skipped > c.manifest().step)
    bad_request("{}: state holds no window of spikes that this run can continue from",
                (c.folder() / "manifest.json").string());
  return s;
}

// Of a run that did not measure it: none yet.
NoiseScaleState saved_noise_scale(const Checkpoint& c) {
  const nlohmann::json& state = c.manifest().state;
  if (!state.is_object() || !state.contains("noise_scale")) return {};
  const nlohmann::json& j = state["noise_scale"];
  NoiseScaleState s;
  for (auto [key, field] : {std::pair("squared", &s.squared), {"trace", &s.trace}, {"weight", &s.weight}}) {
    if (!j.is_object() || !j.contains(key) || !j[key].is_number())
      bad_request("{}: state holds no noise scale that this run can go on with: {}",
                  (c.folder() / "manifest.json").string(), state.dump());
    *field = j[key];
  }
  return s;
}

}  // namespace

RunSpec saved_run(const Checkpoint& c) {
  return parse_run(c.manifest().run_toml, (c.folder() / "manifest.json").string(), {}, {.read_from = false});
}

std::vector<NamedTensor> checkpoint_tensors(const StageRunner& r) {
  std::vector<NamedTensor> tensors;
  for (const Param* held : r.params().saved()) {
    const Param& p = *held;
    const Range own = r.memory().owned(p), mine = r.memory().answers_for(p);
    if (mine.size() == 0) continue;
    for (const std::string& what : states_of(r, p))
      tensors.push_back(named(
          p, what, mine, r.memory().state_tensor(p, what).narrow(0, mine.begin - own.begin, mine.size())));
  }
  return tensors;
}

namespace {
// Values with at least this magnitude, given as bits. Without their sign, the bits of floats are in the order
// of the magnitudes; those of infinity and NaN are the largest.
template <class Bits>
int64_t count_from(const Tensor& t, Bits limit) {
  constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);
  int64_t n = 0;
  for (int64_t i = 0; i < t.numel(); i++) {
    Bits bits;
    std::memcpy(&bits, t.data + i * int64_t(sizeof bits), sizeof bits);
    n += Bits(bits & ~kSign) >= limit;
  }
  return n;
}
}  // namespace

void refuse_nonfinite(const NamedTensor& t, int64_t step) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kSquareOverflows = 0x5f800000;  // 2^64
  const uint32_t limit = t.name.ends_with("/exp_avg_sq") ? kInfinity : kSquareOverflows;
  const bool half = t.host_data.dtype == DType::bf16;  // the upper half of the bits of f32
  const int64_t n = t.host_data.numel();
  const int64_t bad = half ? count_from(t.host_data, uint16_t(limit >> 16)) : count_from(t.host_data, limit);
  if (bad > 0)
    run_failed(
        "step {}: {} of {} values of {} are not finite{} after the update, so nothing was saved; a smaller "
        "optimizer.lr or a longer warmup may help",
        step, bad, n, t.name, limit == kInfinity ? "" : ", or their squares are not,");
}

Manifest checkpoint_manifest(const StageRunner& r, const RunSpec& run, int64_t step,
                             const CompleteManifest& complete) {
  Manifest m;
  m.state["replicas_agreed"] = step;  // Replicas::compare() comes before every save
  m.step = step;
  m.samples = samples_until(run.batch, step);
  m.tokens = m.samples * run.data.seq_len;
  m.seed = uint64_t(run.train.seed);
  m.spec_hash = hash(run);
  m.run_toml = save_run(run);
  if (r.step_end().loss_scale().active()) {
    const LossScaleState& s = r.step_end().loss_scale().state();
    m.state["loss_scale"] = {{"scale", s.scale}, {"good_steps", s.good_steps}, {"skipped", s.skipped}};
  }
  if (r.step_end().spikes().active()) m.state["spikes"] = json_of(r.step_end().spikes().state());
  if (r.passes().fp8() && r.passes().fp8()->delayed())
    m.state["fp8"] = json_of(r.passes().fp8()->histories());
  if (const NoiseScaleState& n = r.step_end().noise().scale().state(); n.weight > 0)
    m.state["noise_scale"] = {{"squared", n.squared}, {"trace", n.trace}, {"weight", n.weight}};
  if (complete) complete(m);
  return m;
}

std::string rank_file_name(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

// The hash as text, which JSON's numbers could not hold.
std::string file_line(const CheckpointFile& f) {
  return nlohmann::json{{"name", f.name}, {"bytes", f.digest.bytes}, {"xxh3", std::to_string(f.digest.xxh3)}}
      .dump();
}
CheckpointFile file_of_line(const std::string& text) {
  nlohmann::json j = nlohmann::json::parse(text);
  return {j.at("name"), {.bytes = j.at("bytes"), .xxh3 = std::stoull(j.at("xxh3").get<std::string>())}};
}

std::optional<int64_t> kept_best(const RunSpec& run) {
  return run.train.keep_best == "off" ? std::nullopt : best_step(checkpoint_root(run.train.dir));
}

void prune_after_save(const RunSpec& run, int64_t step, const PhaseHook& phase) {
  const int64_t known_good[] = {step};
  const fs::path root = checkpoint_root(run.train.dir);
  prune(root, int(run.train.keep), known_good, Verify::sizes, kept_best(run));
  if (phase) phase("pruned");
}

SavedTensors tensors_to_save(const StageRunner& r, int64_t step) {
  SavedTensors out{checkpoint_tensors(r), {}};
  for (NamedTensor& t : out.tensors) {
    if (device_copy_of(t.host_data.data)) {
      std::byte* copy =
          out.copies.emplace_back(std::make_unique<std::byte[]>(size_t(t.host_data.bytes()))).get();
      r.device().download(copy, t.host_data);
      t.host_data.data = copy;
    }
    refuse_nonfinite(t, step);
    t.xxh3 = hash64(t.host_data.data, size_t(t.host_data.bytes()));
  }
  return out;
}

fs::path save_checkpoint(const StageRunner& r, const RunSpec& run, int64_t step, const PhaseHook& phase,
                         const SavedTensors& saved, const CompleteManifest& complete) {
  const fs::path root = checkpoint_root(run.train.dir);
  if (!r.comms())
    return save(root, checkpoint_manifest(r, run, step, complete), saved.tensors,
                {.keep = int(run.train.keep), .phase = phase, .keep_best = run.train.keep_best != "off"});
  Communicator& all = r.comms()->control();
  if (r.comms()->rank() > 0) {
    const fs::path folder = broadcast_text(all, "");
    const std::string name = rank_file_name(r.comms()->rank());
    gather_texts(all, saved.tensors.empty() ? "" : file_line(write_parts(folder, name, saved.tensors)));
    return broadcast_text(all, "");
  }
  fs::path folder;
  {
    CheckpointWriter writer(root, step, phase);
    broadcast_text(all, writer.folder().string());
    writer.write(rank_file_name(0), saved.tensors);
    std::vector<std::string> files = gather_texts(all, "");
    for (size_t i = 1; i < files.size(); i++)
      if (!files[i].empty()) writer.add(file_of_line(files[i]));
    folder = writer.publish(checkpoint_manifest(r, run, step, complete));
  }
  prune_after_save(run, step, phase);
  return broadcast_text(all, folder.string());
}

fs::path save_checkpoint(const StageRunner& r, const RunSpec& run, int64_t step, const PhaseHook& phase) {
  return save_checkpoint(r, run, step, phase, tensors_to_save(r, step));
}

void load_checkpoint(StageRunner& r, const Checkpoint& c, Load what_for) {
  const bool with_state = what_for != Load::weights;
  if (r.run().lora.active()) {
    if (!r.comms() || r.comms()->rank() == 0) refuse_other_base(r.run(), c);
    base_weights(r);
  }
  std::vector<float> host;
  for (const Param* p : r.params().saved())
    for (const std::string& what : states_of(r, *p)) {
      if (!what.empty() && !with_state) continue;
      const Range own = r.memory().owned(*p);
      if (own.size() == 0) continue;
      host.resize(size_t(own.size()));
      c.read(named(*p, what, own, Tensor(host.data(), {own.size()}, DType::f32)));
      r.memory().write_param(*p, what, host);
    }
  r.weights_from_master();
  if (!with_state) return;
  const nlohmann::json& state = c.manifest().state;
  auto restores = [&](const char* key) { return what_for == Load::resume || state.contains(key); };
  r.step_end().spikes().restore(saved_spikes(r.step_end().spikes(), c));
  if (r.run().train.noise_scale > 0) r.step_end().noise().scale().restore(saved_noise_scale(c));
  if (r.passes().fp8() && r.passes().fp8()->delayed() && restores("fp8")) restore_fp8(r, c);
  if (r.step_end().loss_scale().active() && restores("loss_scale"))
    r.step_end().loss_scale().restore(saved_loss_scale(r.step_end().loss_scale(), c));
}

std::vector<std::string> other_division(const RunSpec& run, const Checkpoint& c) {
  try {
    return diff_of_division(saved_run(c), run);
  } catch (const Error&) {  // its layout is refused now, or on this device: its hash was right, so it goes on
    return {};
  }
}

void refuse_other_model(const RunSpec& run, const Checkpoint& c) {
  RunSpec saved = run;
  const RunSpec of_checkpoint = saved_run(c);
  saved.model = of_checkpoint.model;
  if (of_checkpoint.lora.active() || run.lora.active()) saved.lora = of_checkpoint.lora;
  saved.lora.adapter = run.lora.adapter;
  saved.model.from = run.model.from, saved.model.init_std = run.model.init_std;
  saved.model.embed_std = run.model.embed_std;
  saved.model.head_std = run.model.head_std;
  for (auto rate : {&ModelSpec::embd_pdrop, &ModelSpec::attn_pdrop, &ModelSpec::resid_pdrop})
    saved.model.*rate = run.model.*rate;
  // Rotary positions have no end; how many there are follows from data.seq_len.
  if (run.model.positions == "rope") saved.model.max_positions = run.model.max_positions;
  const std::vector<std::string> keys = diff(saved, run);
  if (keys.empty()) return;
  const fs::path own = fs::path(run.train.dir) / "plan.toml";
  bad_request(
      "{} holds another model ({}): use the run file that it was trained with{}, or another train.dir",
      c.folder().string(), fmt::join(keys, "; "),
      fs::exists(own) ? fmt::format(" ({} is a copy)", own.string()) : "");
}

}  // namespace trireme
