// A rank's layers and the passes over them: F, B, I, W, R of microbatches, their messages and memory.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/build.h"
#include "model/fp8.h"
#include "model/routing.h"
#include "program/program.h"
#include "runtime/microbatch.h"
#include "runtime/pipeline_comm.h"
#include "runtime/stage_parts.h"
#include "runtime/two_passes.h"
#include "spec/recompute.h"

namespace trireme {

class LayerRecorder;

// A step, as its passes see it. targets: target tokens of the global batch.
struct StepFacts {
  int64_t step = 0;
  int64_t targets = 0;
  double loss_scale = 1;
};

// Seconds of a step: waiting for data, in F, in B (or I and W), and of these waiting for other ranks.
struct StageSeconds {
  double data_s = 0, forward_s = 0, backward_s = 0, comm_s = 0;
};

// Knows neither optimizers nor how replicas share weights: `units` runs those operations of a program.
// Thread-compatible: the rank's thread.
class StagePasses : StageParts {
 public:
  // Builds the layers, and lays out their parameters in the memory, which is empty. schedules: schedules_of()
  // the run if it has a pipeline.
  StagePasses(const StageParts&, std::span<const Schedule> schedules);
  ~StagePasses();
  StagePasses(const StagePasses&) = delete;

  // In this order: bind() after StageMemory's, takes memory of tables; prepare() before the first step, for
  // the programs of steps to come.
  void bind();
  using RunUnits = std::function<void(const Op&)>;
  void prepare(std::span<const std::unique_ptr<const Program>>, RunUnits units);

  // For lower(): the layers and stages, without units.
  const RankShape& shape() const { return shape_; }
  const PipelineComm* pipeline() const { return pipeline_.get(); }  // null: this rank has all layers

  // ---- a step ----
  void start_step(const StepFacts&);
  // The step that passes belong to, for one that runs again.
  void set_facts(const StepFacts& f) { facts_ = f; }
  void run(const Op&, const FillBatch&);
  void run_action(const Program&, const ActionOps&, const FillBatch&);
  // A forward pass interleaved with the backward pass of a later action.
  void run_interleaved(const Program&, const ActionOps& forward, const Action& backward, const FillBatch&);
  // After an error or for a replay: frees what microbatches hold.
  void abandon();
  // Likewise. Reads the messages of these receives, which other ranks have sent already, and forgets all.
  void abandon(std::span<const Action> unread);
  StageSeconds times() const;
  // Sums of token losses of this rank's sequences, microbatch by microbatch; then the targets seen.
  std::span<const double> sequence_losses() const { return sequence_loss_; }
  Routing& routing() { return routing_; }
  const Routing& routing() const { return routing_; }
  Fp8Layers* fp8() { return fp8_ ? &*fp8_ : nullptr; }  // null: linear layers multiply in the compute type
  const Fp8Layers* fp8() const { return fp8_ ? &*fp8_ : nullptr; }

  // ---- forward only: microbatch 0 ----
  // seq: of whole sequences, which every rank reads; it keeps its own part at `place`. Returns the host
  // buffers, with the own part in front, until the next load.
  HostBatch load(int64_t sequences, int64_t seq, const FillBatch&, const ContextPlace& place);
  Microbatch& loaded() { return microbatches_[0]; }
  Ctx forward_context();
  // A layer's output takes the place of its input.
  void forward_only(Ctx&, const Program&);

  const RunSpec& run_spec() const { return run_; }
  Device& device() const { return device_; }
  CommSet* comms() const { return comms_; }
  const Sharing& sharing() const { return sharing_; }
  const StepWatch& watch() const { return watch_; }
  bool divided() const { return !trains_ && comms_; }  // several ranks hold the model for inference
  int64_t waiting_bytes() const;                       // host memory of inputs that are offloaded

 private:
  friend class LayerRecorder;  // layer_recorder.h
  // Layers [first, last) of this rank that are one stage of the schedule. Slot + l - first of a microbatch
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
  // Where an operation on a layer takes place: slot holds the layer's input.
  struct Place {
    Microbatch& m;
    const Chunk& chunk;
    size_t layer, slot;
  };
  std::vector<StageRange> stage_ranges(std::span<const Schedule>);
  void make_groups();
  void find_shape(std::span<const std::vector<ParamDecl>>);
  void find_recompute();
  void bind_rope();
  void bind_fp8();
  void settle_layers();
  const Chunk& chunk_of(int stage) const;
  Place place_of(const Op&);
  int64_t expert_rows(int64_t tokens) const;
  HostBatch load_batch(Microbatch&, int64_t sequences, int64_t seq, int64_t step, int64_t mb,
                       const FillBatch&, const ContextPlace&);
  Ctx context(const Microbatch&, bool backward);
  Ctx& pass_context(const Microbatch&);
  void load(const Op&, const FillBatch&);
  void forward(const Op&);
  void input(const Op&);
  void weight(const Op&);
  void clear(const Op&);
  void read_losses(const Op&);
  Owned boundary(int64_t sequences, int64_t seq);
  void post_receive(const Op&);
  void receive(const Op&);
  void send(const Op&);
  void tell_layer(const Op&) const;
  void drop(const Op&);
  void recompute(const Op&);
  int64_t kept_rows() const;
  int64_t kept_bytes() const;
  int64_t most_away(const Program&) const;
  void free_places();
  void send_away(Microbatch&, size_t slot);
  void settle_away();
  void fetch(const Place&);
  void take_turn(const Action&);
  void end_turn();
  void let_other_pass_run();

  Arena& arena_;
  DType dtype_;
  std::unique_ptr<PipelineComm> pipeline_;
  std::vector<Chunk> chunks_;  // ascending
  LayerGroups groups_;         // sharing_'s, and the streams of this rank
  Stage stage_;
  RankShape shape_;
  RunUnits units_;
  const Program* program_ = nullptr;  // of the action that runs
  StepFacts facts_;
  StageSeconds times_;
  double pipeline_waited_s_ = 0;  // before this step
  std::optional<Ctx> ctx_;        // context of an action
  Turns turns_;
  std::vector<Recompute> recompute_;       // by layer
  std::unique_ptr<OffloadStore> offload_;  // null: inputs stay in memory
  size_t offload_places_ = 0;              // inputs that offload_ holds at once
  std::vector<int32_t> free_places_;       // free places of offload_; the next one is last
  Owned leaving_;                          // input that offload_ reads
  Event left_;
  std::optional<Fp8Layers> fp8_;
  Routing routing_;
  std::vector<Microbatch> microbatches_;
  std::vector<double> sequence_loss_;
  std::vector<float> token_loss_host_;
  std::vector<int32_t> staging_;
};

}  // namespace trireme
