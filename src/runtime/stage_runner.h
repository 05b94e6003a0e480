// Executes a rank's program: the same class trains on cpu, prices on meta, evaluates and generates.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/cached_decoder.h"
#include "runtime/evaluator.h"
#include "runtime/inference_calls.h"
#include "runtime/posted_step.h"
#include "runtime/stage_memory.h"
#include "runtime/stage_passes.h"
#include "runtime/stage_programs.h"
#include "runtime/step_end.h"

namespace trireme {

class LayerRecorder;  // layer_recorder.h

enum class RunMode : uint8_t { train, infer };  // infer: weights only, no gradients, no optimizer

class StageRunner {
 public:
  // The spec is resolved (no "auto"). arena_bytes: what a booking run on meta found; on meta itself, endless.
  // comms: the other ranks; null = this is the only one, whatever the layout says. Every rank makes its
  // runner, and calls what says so below, at the same place of the program. Several ranks of RunMode::infer:
  // the run is an inference_run(); rank 0 calls, the others follow().
  StageRunner(const RunSpec&, RunMode, Device&, int64_t arena_bytes, CommSet* comms = nullptr);
  ~StageRunner();
  StageRunner(const StageRunner&) = delete;

  // ---- its parts ----
  const RunSpec& run() const { return run_; }
  Device& device() const { return device_; }
  CommSet* comms() const { return comms_; }
  const Sharing& sharing() const { return sharing_; }
  StageMemory& memory() { return memory_; }
  const StageMemory& memory() const { return memory_; }
  const ParamSet& params() const { return memory_.params(); }
  const FlatState& flat() const { return memory_.flat(); }
  Arena& arena() { return memory_.arena(); }
  const Arena& arena() const { return memory_.arena(); }
  StagePasses& passes() { return passes_; }
  const StagePasses& passes() const { return passes_; }
  StagePrograms& programs() { return *programs_; }
  StepWatch& watch() { return watch_; }
  StepEnd& step_end() const { return *end_; }           // RunMode::train alone
  PostedStep* posted() const { return posted_.get(); }  // null: steps end when all ranks know how
  // Require: the weights are settled.
  Evaluator& evaluator();
  CachedDecoder& decoder() { return *decoder_; }
  int64_t waiting_bytes() const;  // host memory of offloaded inputs and state

  // ---- weights, on all ranks ----
  // Fresh weights: functions of (train.seed, name, global element index); optimizer state zero. Where `given`
  // says that the caller writes a parameter next, no numbers are drawn for it.
  void init_weights(const std::function<bool(const Param&)>& given = {});
  // After StageMemory::write_param: rounds the master copies into the compute dtype, and the owners hand them
  // round.
  void weights_from_master();

  // ---- training ----
  // Records the steps from now on; null = no more. The recorder outlives them. `collectives` gets the action
  // and microbatch of the collectives that it records.
  void trace(SpanRecorder*, CommTracer* collectives = nullptr);
  // Runs one rank's actions of a step (counted from 1). `targets` = target tokens of the global batch. Throws
  // Error naming step, layer and op when a value is not finite; the weights are then still those before the
  // step. On all ranks; loss, gradient norm and what is skipped are the same on each. may_post: with
  // optimizer.post_validation it may return before its result is known; false: all ranks know.
  StepResult step(std::span<const Action> actions, int64_t step, int64_t targets, const FillBatch&,
                  bool may_post = true);
  void settle();  // waits for all ranks; no effect if no step is posted

  // ---- inference on several ranks: ranks above 0 follow() until rank 0 calls dismiss() ----
  void follow() { trireme::follow(passes_, *evaluator_, *decoder_); }
  void dismiss() { lead(passes_, InferenceCall::dismiss, {}); }

 private:
  friend class LayerRecorder;
  StageParts parts(RunMode);
  enum class Ran : uint8_t { done, stopped, again };
  Ran run_actions(const Program&, const FillBatch&);
  void drop_begun();

  RunSpec run_;
  Device& device_;
  CommSet* comms_;
  std::vector<Schedule> schedules_;  // one per batch of batch.ramp; empty: programs are lowered as steps come
  Sharing sharing_;
  StepWatch watch_;
  StageMemory memory_;
  StagePasses passes_;
  std::unique_ptr<StepEnd> end_;  // null: inference
  std::unique_ptr<StagePrograms> programs_;
  std::unique_ptr<PostedStep> posted_;
  std::optional<Evaluator> evaluator_;
  std::optional<CachedDecoder> decoder_;
  std::unique_ptr<GradSync> sync_;  // last: it waits for what is in flight before the rest goes
};

}  // namespace trireme
