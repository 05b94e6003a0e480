// Executes a rank's program: the same class trains on cpu, prices on meta, evaluates and generates.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/watch/pulse.h"
#include "model/build.h"
#include "model/fp8.h"
#include "model/kv_cache.h"
#include "model/routing.h"
#include "optim/grad_norm.h"
#include "optim/grad_sync.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "program/lower.h"
#include "runtime/op_tracer.h"
#include "runtime/pipeline_comm.h"
#include "runtime/sharing.h"
#include "runtime/stage_memory.h"
#include "runtime/two_passes.h"
#include "schedule/schedule.h"
#include "spec/recompute.h"

namespace trireme {

class LayerRecorder;  // layer_recorder.h
class OffloadStore;   // offload.h

// Host buffers of one microbatch, [sequences * seq] each, filled by the data side.
struct HostBatch {
  std::span<int32_t> tokens, targets, positions;
};
// A pure function of (step, microbatch). It must not allocate.
using FillBatch = std::function<void(int64_t step, int64_t mb, const HostBatch&)>;

struct StepResult {
  double loss = 0;                  // sum of token losses of the global batch / number of its targets
  double aux_loss = 0, z_loss = 0;  // beside it, of routers (docs/moe.md): sums over layers
  double grad_norm = 0;             // before clipping; of a skipped step NaN
  double lr = 0;
  int64_t tokens = 0;  // targets of the step
  double seconds = 0;
  // Where they went: waiting for data, F, B (or I and W), the gradient norm, the update.
  double data_s = 0, forward_s = 0, backward_s = 0, norm_s = 0, update_s = 0;
  double comm_s = 0;      // of these, spent waiting for other ranks and for the wire
  CommCounts comm{};      // collectives of the step, control messages apart
  bool stopped = false;   // StepControl::stop said so; the weights are those before the step
  double loss_scale = 1;  // of this step; 1 where the precision needs none
  // Measured in this step: of all parameters, or of all but experts that are units of their own, and these.
  std::optional<NoiseSample> noise{}, noise_experts{};
  bool skipped =
      false;  // gradients overflowed at that scale, or a spike: weights and moments are those before
  std::optional<SpikeVerdict> spike{};  // why the step was skipped (train.spikes)
  // Not settled when step() returns (optimizer.post_validation): loss, norm and what follows from them are
  // known to on_settled().
  bool posted = false;
};

// Looked at between actions. Both may be empty.
struct StepControl {
  // "F", "B", ..., "norm", "update": before each action and each part of Step; a test kills the process here.
  std::function<void(std::string_view phase)> phase;
  // Called with the pass that continues, if two run by turns (Op::by_turns); `phase` was called for both.
  std::function<void(const Action&)> turn;
  // After a microbatch's last backward action, when more follow: true = leave the step, drop its gradients.
  // All ranks must answer alike. Not asked in a pipeline, whose ranks are never at the same place.
  std::function<bool()> stop;
};

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

  const RunSpec& run() const { return run_; }

  // ---- parameters and state ----
  const ParamSet& params() const { return params_; }
  const FlatState& flat() const { return flat_; }
  const Sharing& sharing() const { return sharing_; }
  CommSet* comms() const { return comms_; }
  // The streams on which it talks to other stages, and their names.
  std::span<const PipelineComm::Lane> pipeline_lanes() const;
  const std::vector<StateDecl>& state_decls() const { return memory_.state_decls(); }
  // Fresh weights: functions of (train.seed, name, global element index); optimizer state zero. Where `given`
  // says that the caller writes a parameter next, no numbers are drawn for it.
  void init_weights(const std::function<bool(const Param&)>& given = {});
  // Elements of the parameter whose master copy and moments are this rank's (all of them on one rank), and
  // those that it answers for where replicas have the same ones.
  Range owned(const Param& p) const { return memory_.owned(p); }
  Range answers_for(const Param& p) const { return memory_.answers_for(p); }
  // The owned elements, f32 on the host; what = "" for the parameter itself (its master copy), or a state
  // name such as "exp_avg".
  void write_param(const Param& p, std::string_view what, std::span<const float> v) {
    memory_.write_param(p, what, v);
  }
  void read_param(const Param& p, std::string_view what, std::span<float> v) const {
    memory_.read_param(p, what, v);
  }
  // The same memory as a tensor [owned]: host memory on cpu, for checkpoints.
  Tensor state_tensor(const Param& p, std::string_view what) const { return memory_.state_tensor(p, what); }
  // After write_param: rounds the master copies into the compute dtype, and the owners hand them round. On
  // all ranks.
  void weights_from_master();
  const LossScale& loss_scale() const { return loss_scale_; }
  const NoiseScale& noise_scale() const { return noise_scale_; }
  void restore_noise_scale(const NoiseScaleState& s) { noise_scale_.restore(s); }
  void restore_loss_scale(const LossScaleState& s) { loss_scale_.restore(s); }
  SpikeDetector& spikes() { return spikes_; }
  const SpikeDetector& spikes() const { return spikes_; }
  // Sums of token losses by sequence, in order of the global batch, for the last step whose loss is known.
  std::span<const double> sequence_losses() const { return global_loss_; }
  // Null: linear layers multiply in the compute type.
  const Fp8Layers* fp8() const { return fp8_ ? &*fp8_ : nullptr; }
  bool restore_fp8(const Fp8Histories& h) { return fp8_->restore(device_, h); }

  // ---- its program ----
  // The program of a step with these actions, lowered once. A pipeline has those of the run's schedules
  // alone.
  const Program& program_of(std::span<const Action>);
  const RankShape& shape() const { return shape_; }

  // ---- training ----
  // Runs one rank's actions of a step (counted from 1). `targets` = target tokens of the global batch. Throws
  // Error naming step, layer and op when a value is not finite; the weights are then still those before the
  // step. On all ranks; loss, gradient norm and what is skipped are the same on each.
  // The steps from now on are recorded; null = no more. The recorder outlives them. Collectives that the
  // other tracer records are told their action and microbatch.
  void trace(SpanRecorder*, CommTracer* = nullptr);
  // What this rank does is told there, action by action and layer by layer; null = nowhere.
  void watch(Pulse* p) { pulse_ = p; }
  void set_control(StepControl c) { control_ = std::move(c); }
  // may_post: with optimizer.post_validation it may return before its result is known; false: all ranks know.
  StepResult step(std::span<const Action> actions, int64_t step, int64_t targets, const FillBatch&,
                  bool may_post = true);

  // ---- a posted step (stage_post.cc) ----
  // Its result, once: in the midst of the next step(), or in settle().
  void on_settled(std::function<void(const StepResult&)>);
  // Behind the step, on all ranks: bytes for all, as many on each; from on_settled() on those of every rank.
  void tell(std::span<const std::byte> mine);
  std::span<const std::byte> told();
  void settle();                   // waits for all ranks; nothing where no step is posted
  int64_t taken_back() const;      // steps that were made again
  int64_t rollback_bytes() const;  // of the optimizer's bucket: state before the step, kept to be put back

  // Of the last step, by block and over all ranks; empty: a model without experts, or meta.
  const std::vector<LayerRouting>& routing() const { return routed_; }
  // Of this rank, microbatch by microbatch, in the last step.
  const Routing& own_routing() const { return routing_; }
  // Where choices of experts come from in the steps to come.
  void use_routing(Routing::Choices c, RecordedRouting* recording) { routing_.use(c, recording); }

  // ---- inference on several ranks (stage_follow.cc) ----
  // True: several ranks hold the model for inference. Rank 0 calls evaluate(), open_cache(), prefill(),
  // decode() and move_text(); each call is sent to the other ranks, which do their part of it.
  bool divided() const { return mode_ == RunMode::infer && comms_; }
  // Ranks above 0: does what rank 0 calls, until it calls dismiss().
  void follow();
  void dismiss();

  // ---- evaluation: forward only ----
  struct TokenLoss {
    double sum = 0;
    int64_t tokens = 0;
  };
  // each: empty, or room for the sum of each sequence's token losses. On all ranks, whatever the sequences,
  // where weights are sharded (ZeRO 3). In training each rank has its own sequences; if divided(), all
  // ranks evaluate rank 0's.
  TokenLoss evaluate(int64_t sequences, int64_t seq, const FillBatch&, std::span<double> each = {});
  // The most likely token after each sequence's token `last[i]`, of the ids below `vocab`, in training. On
  // all ranks where they take part together. A sequence whose logits are another rank's (pp, cp) gets 0; one
  // with a logit that is not finite gets -1.
  void most_likely_next(int64_t sequences, int64_t seq, const FillBatch&, std::span<const int64_t> last,
                        int64_t vocab, std::span<int32_t> ids);
  // Call on all ranks after an evaluation whose loss is not finite, each rank with its own batch. Throws
  // Error naming the weight, or the layer and op whose output shows it first.
  [[noreturn]] void find_nonfinite_loss(int64_t sequences, int64_t seq, const FillBatch&);
  // Throws Error naming `what` and the first held weight with a value that is not finite.
  void require_finite_weights(std::string_view what) const;
  // Next-token logits f32 [seq, vocab] of one sequence, on the host; all rows.
  void logits(std::span<const int32_t> tokens, std::vector<float>& out);

  // ---- generation: texts in the slots of a key/value cache (stage_cached.cc) ----
  // Memory for `slots` texts of at most `capacity` tokens; the one opened before is given up.
  void open_cache(int64_t slots, int64_t capacity);
  // Sizes of this rank's blocks and heads.
  KvCache::Sizes cache_sizes(int64_t slots, int64_t capacity) const;
  const KvCache& cache() const { return *cache_; }
  // A new text in `slot`, in place of what was there: logits f32 [vocab] of what follows its last token. The
  // arithmetic is logits()'s, so are the bits.
  void prefill(int64_t slot, std::span<const int32_t> tokens, std::span<float> logits);
  // The next token of each text in slots 0, 1, ...: positions[i] tokens of text i came before. logits f32
  // [texts, vocab]. A text's bits do not depend on the others', up to cpu::kFewRows texts.
  void decode(std::span<const int32_t> tokens, std::span<const int32_t> positions, std::span<float> logits);
  // The first `length` tokens of the text in `from`, to `to`.
  void move_text(int64_t from, int64_t to, int64_t length);

  const Arena& arena() const { return *arena_; }
  void list_calls(std::vector<Arena::Call>* in) { arena_->list_calls(in); }
  // Of the host's memory, where what is offloaded waits from start to end; its ledger's total is the
  // device's.
  int64_t waiting_bytes() const;
  void restart_peaks() { arena_->ledger().restart_peaks(); }
  int64_t take_high() { return arena_->ledger().take_high(); }
  Device& device() const { return device_; }
  std::string_view layer() const { return layer_; }  // which runs; of the runner's own texts

 private:
  friend class LayerRecorder;
  struct Microbatch;
  struct PostValidation;  // post_validation.h
  enum class Ran : uint8_t { done, stopped, again };
  // Layers [first, last) of this rank that are one stage of the schedule. Of a microbatch, slot + l - first
  // holds the input of layer l.
  struct Chunk {
    int stage = 0;
    size_t number = 0, first = 0, last = 0, slot = 0;
    bool embedding = true, head = true;
    size_t end_slot() const { return slot + last - first; }
  };
  // Two passes that run by turns.
  struct Turns {
    TwoPasses passes;
    std::function<void()> other_pass;  // for contexts of layers
    int mb = -1;                       // microbatch of the backward pass; -1: no turns
    std::optional<Ctx> ctx;            // its context
    const Action* action = nullptr;    // whose turn it is
    const Action* backward = nullptr;
    std::span<const Op> ops;  // a forward pass, then the backward passes
    const FillBatch* fill = nullptr;
    std::optional<TraceScope> span;
    double began = 0;  // the turn, on base/timed.h's clock
  };
  std::vector<StageRange> stage_ranges();
  const Chunk& chunk_of(int stage) const;
  bool passes(const Chunk& c, int mb) const {
    return !pipeline_ || pipeline_->rank_of(c.stage, mb) == pipeline_->rank();
  }
  void settle_layers();
  void bind_memory();
  void bind_rope();
  void bind_fp8();
  void find_units(std::span<const std::vector<ParamDecl>>);
  void load_batch(Microbatch&, int64_t sequences, int64_t seq, int64_t step, int64_t mb, const FillBatch&,
                  const ContextPlace&);
  Ctx context(const Microbatch&, bool backward);
  // Where an operation on a layer takes place: slot holds the layer's input.
  struct Place {
    Microbatch& m;
    const Chunk& chunk;
    size_t layer, slot;
  };
  Place place_of(const Op&);
  Ctx& pass_context(const Microbatch&);
  void load(const Op&, const FillBatch&);
  void forward(const Op&);
  void input(const Op&);
  void weight(const Op&);
  void clear(const Op&);
  void read_losses(const Microbatch&, int64_t mb);
  Owned boundary(int64_t sequences, int64_t seq);
  void post_receive(const Op&);
  void receive(const Op&);
  void send(const Op&, int number);
  void tell_layer(const Op& op) const {
    if (pulse_ && op.layer >= 0) pulse_->layer(stage_.layers[size_t(op.layer)]->name());
  }
  void find_recompute();
  void let_activations_go(const Op&);
  void recompute(const Op&);
  int64_t kept_rows() const;
  void update_unit(size_t unit, const UpdateInput&);
  int64_t kept_bytes() const;
  int64_t most_away() const;
  void free_places();
  void abandon_microbatches();
  void send_away(Microbatch&, size_t slot);
  void settle_away();
  void fetch(const Op&);
  void fetch(Microbatch&, size_t slot);
  void forward_only(Microbatch&, Ctx&);
  void run_cached(int64_t texts, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  std::span<float> logits);
  // A call of rank 0 to the ranks that follow.
  enum class Call : int64_t { open_cache, prefill, decode, move_text, evaluate, dismiss };
  void lead(Call, const std::array<int64_t, 3>& numbers, std::span<const int32_t> ids = {},
            std::span<const int32_t> more = {});
  int answering_rank(int cp_part) const;
  int64_t expert_rows(int64_t tokens) const;
  bool own_losses(int64_t sequences, int64_t seq, const FillBatch&, bool watch, TokenLoss&,
                  std::span<double> each);
  TokenLoss evaluate_divided(int64_t sequences, int64_t seq, const FillBatch&, std::span<double> each);
  void lower_programs();
  Program lower_step(std::span<const Action>, std::span<const int> send_ends) const;
  Ran run_actions(const FillBatch&);
  void run_action(const ActionOps&, const FillBatch&);
  void run_interleaved(const ActionOps& forward, const Action& backward, const FillBatch&);
  void take_turn(const Action&);
  void end_turn();
  void let_other_pass_run();
  void run_op(const Op&, const FillBatch&);
  void start_gradients();
  void sum_gradients();
  void begin_step(int64_t step, int64_t targets);
  void with_sums(const std::function<void()>& make);
  void finish_step(const FillBatch&);
  void enter(std::string_view phase, int64_t mb = -1) const {
    if (pulse_) pulse_->action(phase, mb);
    if (control_.phase) control_.phase(phase);
  }
  double global_loss(int64_t targets);
  double loss_of(std::span<const double> all, int64_t step, int64_t targets);
  void add_shared();
  void count_routing();
  void add_routing(StepResult&, int64_t step) const;
  void move_router_biases();
  void start_noise(int64_t step);
  bool experts_apart() const;
  int edp_parts() const;
  SmallBatches small_batches_of(int64_t global, bool experts) const;
  void make_local_norms();
  void first_microbatch_done(const Chunk&);
  void finish_noise();
  bool skip_overflow();
  bool skip_spike(const SpikeVerdict&);
  double clip_scale(double norm) const;
  void update(double scale);
  void prepare_post_validation();
  template <class Each>
  void each_saved(const Each&);
  void keep_state();
  void post(const FillBatch&);
  void read_settlement();
  bool settle_step(bool begun);
  void drop_begun();
  void take_back(const SpikeVerdict&);
  // Repeats a forward pass whose logits are not all finite, to name the cause.
  void require_finite(std::span<const float> logits, const std::function<void()>& forward);
  [[noreturn]] void find_nonfinite_forward(std::string_view what, const std::function<void()>& forward);
  [[noreturn]] void find_nonfinite(const FillBatch&, double loss, double norm);

  RunSpec run_;
  RunMode mode_;
  Device& device_;
  CommSet* comms_;
  std::vector<Schedule> schedules_;  // one per batch of batch.ramp; empty: programs are lowered as steps come
  Sharing sharing_;
  Stream compute_;
  DType dtype_, grad_dtype_;
  StageMemory memory_;
  Arena* arena_;                            // memory_'s
  std::unique_ptr<PipelineComm> pipeline_;  // none: this rank has all layers
  std::vector<Chunk> chunks_;               // ascending
  Communicator* answers_ = nullptr;         // inference: ranks of pp and cp, one of which has the logits
  Stage stage_;
  ParamSet& params_;  // memory_'s
  FlatState& flat_;
  std::unique_ptr<Optimizer> optimizer_;
  double optimizer_waited_s_ = 0, pipeline_waited_s_ = 0;  // before this step
  Tensor nonfinite_count_;  // i64 [1]: held always, so that a replay places its memory as the step did
  std::unique_ptr<GradNorm> grad_norm_;
  RankShape shape_;
  ShardPolicy policy_;
  // A pipeline has one per batch of batch.ramp; else one per list of actions that step() was given.
  std::vector<std::unique_ptr<const Program>> programs_;
  const Program* program_ = nullptr;  // the step that runs
  Program forward_;                   // evaluation and generation
  std::optional<Ctx> ctx_;            // context of the action that runs
  Turns turns_;
  std::vector<Recompute> recompute_;       // by layer
  std::unique_ptr<OffloadStore> offload_;  // none: inputs stay in memory
  size_t offload_places_ = 0;              // inputs that offload_ holds at once
  std::vector<int32_t> free_places_;       // free places of offload_; the next one is last
  Owned leaving_;                          // input that offload_ reads
  Event left_;
  std::optional<Fp8Layers> fp8_;
  Routing routing_;
  std::vector<LayerRouting> routed_;
  LrSchedule lr_;
  std::unique_ptr<KvCache> cache_;
  LossScale loss_scale_;
  SpikeDetector spikes_;
  NoiseScale noise_scale_;
  std::unique_ptr<LocalNorms> local_norms_;  // none: train.noise_scale = 0
  bool measuring_ = false;                   // the noise scale, in this step
  std::vector<Microbatch> microbatches_;
  std::vector<double> sequence_loss_;  // of this rank's part of the batch, microbatch by microbatch
  std::vector<double> global_loss_, gathered_loss_;  // of the global batch: in order of global index; by rank
  std::vector<float> token_loss_host_;
  std::vector<int32_t> staging_;
  int64_t step_ = 0, targets_ = 0, targets_seen_ = 0;
  std::string_view layer_;            // which layer runs, for traces and find_nonfinite
  std::unique_ptr<OpTracer> tracer_;  // none: not traced
  StepResult result_;
  StepControl control_;
  Pulse* pulse_ = nullptr;
  std::unique_ptr<PostValidation> post_;  // none: steps end when all ranks know how
  std::unique_ptr<GradSync> sync_;        // last: it waits for what is under way before the rest goes
};

}  // namespace trireme
