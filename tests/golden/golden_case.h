// One folder of tests/golden, and a runner that holds its model (README.md says what the files hold).
#pragma once
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "runtime/stage_runner.h"

namespace trireme::golden {

// Relative bounds in f32: of a loss, and of the norm of a gradient's difference.
constexpr double kLoss = 1e-5, kGradient = 2e-5;
constexpr double kNoise = 1e-7;  // of the global norm: what a gradient that is zero on paper may hold

using Values = std::vector<double>;
using ByName = std::map<std::string, Values>;  // by trireme's names

double norm(const Values&);
double distance(const Values&, const Values&);  // norm of the difference
double global_norm(const ByName&);

class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name);

  const fs::path& folder() const { return folder_; }
  const ModelSpec& model() const { return model_; }
  const nlohmann::json& meta() const { return meta_; }
  int64_t sequences() const { return sequences_; }
  int64_t seq() const { return seq_; }
  int64_t steps() const { return steps_; }

  // A tensor of golden.safetensors, or of another file of the folder, of type f32, f64 or i32, row-major.
  Values values(const std::string& key) const { return values(file_, key); }
  Values values(const SafetensorsFile&, const std::string& key) const;
  // Every parameter of the model from the tensors "<prefix>.<Hugging Face name>", in trireme's layout.
  ByName by_parameter(const std::string& prefix) const { return by_parameter(file_, prefix); }
  ByName by_parameter(const SafetensorsFile&, const std::string& prefix) const;

  // Batch `step` from 1 of steps.input_ids and steps.targets; 0 = input_ids and targets.
  FillBatch fill(int64_t step, int64_t micro) const;
  int64_t target_tokens(int64_t step) const;

 private:
  Values batch(const std::string& what, int64_t step) const;

  fs::path folder_;
  SafetensorsFile file_;
  ModelSpec model_;
  nlohmann::json meta_;
  int64_t sequences_, seq_, steps_;
};

// A run of it on one rank.
RunSpec run_of(const GoldenCase&, const std::string& compute, const std::string& grads, int64_t micro,
               const MoeSpec& = {});

// The device that goldens run on (test_device.h), "far" too; the values of a tensor there, f32 or bf16.
std::unique_ptr<Device> golden_device(const RunSpec&);
Values values_of(Device&, const Tensor&);

// The case's model, as its Hugging Face folder says, on one thread.
class GoldenRun {
 public:
  GoldenRun(const GoldenCase&, const std::string& compute, const std::string& grads, int64_t micro,
            const MoeSpec& = {});

  StageRunner& runner() { return *runner_; }
  StepResult step(int64_t number, int64_t batch);  // number: Adam's count, from 1
  ByName gradients() const;                        // of the last step, before clipping
  ByName weights() const;                          // master copies
  Values logits();                                 // of the case's first batch
  // The same through a key/value cache: `read` tokens of each sequence at once, the others one by one. Rows
  // of tokens before the last that was read are zero.
  Values cached_logits(int64_t read);
  Values token_losses();  // likewise, each from a pass in which it is the only target

 private:
  const GoldenCase& golden_;
  RunSpec run_;
  Schedule schedule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<StageRunner> runner_;
};

}  // namespace trireme::golden
