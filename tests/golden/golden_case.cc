#include "golden_case.h"

#include <cstring>

#include "checkpoint/hf.h"
#include "far_device.h"
#include "runtime/booking.h"
#include "source_dir.h"
#include "spec/hf_config.h"
#include "test_device.h"

namespace trireme::golden {
namespace {

fs::path folder_of(const std::string& name) {
  return test::source_dir() / "tests" / "golden" / name;
}

template <class T>
Values read_as(std::span<const std::byte> bytes) {
  Values out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); i++) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = double(value);
  }
  return out;
}

}  // namespace

RunSpec run_of(const GoldenCase& golden, const std::string& compute, const std::string& grads, int64_t micro,
               const MoeSpec& moe) {
  const nlohmann::json& adamw = golden.meta().at("optimizer");
  RunSpec run;
  run.model = golden.model();
  run.moe = moe;
  run.data.seq_len = golden.seq();
  run.batch = {.global = golden.sequences(), .micro = micro};
  run.precision = {.compute = compute, .grads = grads};
  run.precision.initial_scale = 1024;  // as the peer's f16 (make_goldens.py)
  run.optimizer.lr = adamw.at("lr");
  run.optimizer.betas = {adamw.at("betas")[0], adamw.at("betas")[1]};
  run.optimizer.eps = adamw.at("eps");
  run.optimizer.weight_decay = adamw.at("weight_decay");
  run.optimizer.clip_norm = adamw.at("clip_norm");
  run.optimizer.schedule = adamw.at("schedule");
  run.optimizer.warmup = 0;
  run.train.steps = golden.steps();
  run.train.device = test::test_device() == test::kFarDevice ? "cpu" : test::test_device();
  return run;
}

std::unique_ptr<Device> golden_device(const RunSpec& run) {
  const DeviceOptions alone{.threads = 1, .graphs = test::test_graphs()};
  return test::test_device() == test::kFarDevice ? test::make_far_device(alone)
                                                 : make_device(run.train.device, alone);
}

Values values_of(Device& device, const Tensor& t) {
  std::vector<std::byte> raw(size_t(t.bytes()));
  device.download(raw.data(), t);
  if (t.dtype == DType::f32) return read_as<float>(raw);
  require(t.dtype == DType::bf16, "values_of() of another type than f32 and bf16");
  Values out(size_t(t.numel()));
  for (size_t i = 0; i < out.size(); i++) {
    bf16 x;
    std::memcpy(&x, raw.data() + i * sizeof x, sizeof x);
    out[i] = float(x);
  }
  return out;
}

double norm(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

double distance(const Values& a, const Values& b) {
  require(a.size() == b.size(), "distance() of vectors of two sizes");
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double global_norm(const ByName& tensors) {
  double sum = 0;
  for (const auto& [name, v] : tensors) sum += norm(v) * norm(v);
  return std::sqrt(sum);
}

GoldenCase::GoldenCase(const std::string& name)
    : folder_(folder_of(name)),
      file_(folder_ / "golden.safetensors"),
      model_(model_from_hf(folder_ / "config.json")),
      meta_(nlohmann::json::parse(read_text(folder_ / "meta.json"))),
      sequences_(meta_.at("batch")[0]),
      seq_(meta_.at("batch")[1]),
      steps_(meta_.at("steps")) {}

Values GoldenCase::values(const SafetensorsFile& file, const std::string& key) const {
  const SafetensorsEntry* e = file.find(key);
  if (!e) bad_request("{}: holds no {}", file.path().string(), key);
  switch (*e->dtype) {
    case DType::f32:
      return read_as<float>(file.bytes(*e));
    case DType::f64:
      return read_as<double>(file.bytes(*e));
    case DType::i32:
      return read_as<int32_t>(file.bytes(*e));
    default:
      bad_request("{}: {} is {}", file.path().string(), key, e->stored_type);
  }
}

ByName GoldenCase::by_parameter(const SafetensorsFile& file, const std::string& prefix) const {
  ByName out;
  for (const HfPlace& p : hf_places(model_)) {
    if (p.buffer) continue;  // no gradient, and no step moves it
    std::string name = p.theirs == kHfHead ? p.theirs : std::string(hf_prefix(model_)) + p.theirs;
    Values theirs = values(file, prefix + "." + name), ours(size_t(p.shape.numel()));
    require(int64_t(theirs.size()) == p.their_shape.numel(), "a golden has another shape than its model");
    int64_t in = p.shape.rank == 2 ? p.shape[1] : 1;
    for (int64_t o = 0; o < p.shape[0]; o++)
      for (int64_t i = 0; i < in; i++)
        ours[size_t(o * in + i)] =
            theirs[size_t(p.transposed ? i * p.their_shape[1] + p.begin + o : (p.begin + o) * in + i)];
    out[p.ours] = std::move(ours);
  }
  return out;
}

Values GoldenCase::batch(const std::string& what, int64_t step) const {
  if (step == 0) return values(what);
  Values all = values("steps." + what);
  auto n = sequences_ * seq_;
  return {all.begin() + (step - 1) * n, all.begin() + step * n};
}

FillBatch GoldenCase::fill(int64_t step, int64_t micro) const {
  return [ids = batch("input_ids", step), targets = batch("targets", step), micro, seq = seq_](
             int64_t, int64_t mb, const HostBatch& b) {
    size_t first = size_t(mb * micro * seq);
    for (size_t i = 0; i < b.tokens.size(); i++) {
      b.tokens[i] = int32_t(ids[first + i]);
      b.targets[i] = int32_t(targets[first + i]);
      b.positions[i] = int32_t(i % size_t(seq));
    }
  };
}

int64_t GoldenCase::target_tokens(int64_t step) const {
  int64_t n = 0;
  for (double t : batch("targets", step)) n += t >= 0;
  return n;
}

GoldenRun::GoldenRun(const GoldenCase& golden, const std::string& compute, const std::string& grads,
                     int64_t micro, const MoeSpec& moe)
    : golden_(golden),
      run_(run_of(golden, compute, grads, micro, moe)),
      schedule_(add_step(make_schedule("1f1b", 1, 1, int(run_.microbatches())))),
      device_(golden_device(run_)) {
  int64_t arena_bytes = book_training(run_, schedule_, 1).arena_bytes;
  runner_ = std::make_unique<StageRunner>(run_, RunMode::train, *device_, arena_bytes);
  runner_->init_weights();  // the optimizer's state begins at zero
  HfFolder weights(golden.folder(), golden.model());
  for (const Param* p : runner_->params().held()) {
    std::vector<float> host(size_t(p->numel()));
    weights.read(p->decl.name, Tensor(host.data(), p->decl.global, DType::f32));
    runner_->memory().write_param(*p, "", host);
  }
  runner_->weights_from_master();
}

StepResult GoldenRun::step(int64_t number, int64_t batch) {
  return runner_->step(schedule_.ranks[0], number, golden_.target_tokens(batch),
                       golden_.fill(batch, run_.batch.micro));
}

ByName GoldenRun::gradients() const {
  ByName out;
  double scale = runner_->step_end().loss_scale().scale();  // of f16; no step of a golden moves it
  for (const Param& p : runner_->params().params) {
    Values& v = out[p.decl.name] = values_of(*device_, p.grad);
    if (p.grad.dtype == DType::f32)
      for (double& g : v) g /= scale;
  }
  return out;
}

ByName GoldenRun::weights() const {
  ByName out;
  for (const Param& p : runner_->params().params) {
    std::vector<float> host(size_t(p.numel()));
    runner_->memory().read_param(p, "", host);
    out[p.decl.name] = Values(host.begin(), host.end());
  }
  return out;
}

Values GoldenRun::logits() {
  Values ids = golden_.values("input_ids"), all;
  for (int64_t s = 0; s < golden_.sequences(); s++) {
    std::vector<int32_t> tokens(ids.begin() + s * golden_.seq(), ids.begin() + (s + 1) * golden_.seq());
    std::vector<float> out;
    runner_->evaluator().logits(tokens, out);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

Values GoldenRun::cached_logits(int64_t read) {
  const int64_t seq = golden_.seq();
  StageRunner cached(run_, RunMode::infer, *device_,
                     book_generation(run_, 1, {.slots = 1, .capacity = seq, .prefills = {read}}));
  std::vector<float> host;
  for (const Param* p : runner_->params().held()) {
    host.resize(size_t(p->numel()));
    runner_->memory().read_param(*p, "", host);
    cached.memory().write_param(*cached.params().find(p->decl.name), "", host);
  }
  cached.decoder().open_cache(1, seq);
  Values ids = golden_.values("input_ids"), all;
  std::vector<float> row(size_t(run_.model.vocab));
  for (int64_t s = 0; s < golden_.sequences(); s++) {
    std::vector<int32_t> tokens(ids.begin() + s * seq, ids.begin() + (s + 1) * seq);
    all.resize(all.size() + size_t(read - 1) * row.size());
    cached.decoder().prefill(0, std::span(tokens).first(size_t(read)), row);
    all.insert(all.end(), row.begin(), row.end());
    for (auto t = int32_t(read); t < seq; t++) {
      cached.decoder().decode({&tokens[size_t(t)], 1}, {&t, 1}, row);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

Values GoldenRun::token_losses() {
  Values ids = golden_.values("input_ids"), targets = golden_.values("targets"), losses(targets.size());
  auto seq = size_t(golden_.seq());
  for (size_t at = 0; at < targets.size(); at++) {
    auto only_one = [&](int64_t, int64_t, const HostBatch& b) {
      for (size_t t = 0; t < seq; t++) {
        b.tokens[t] = int32_t(ids[at / seq * seq + t]);
        b.targets[t] = t == at % seq ? int32_t(targets[at]) : -1;
        b.positions[t] = int32_t(t);
      }
    };
    losses[at] = runner_->evaluator().evaluate(1, golden_.seq(), only_one).sum;
  }
  return losses;
}

}  // namespace trireme::golden
