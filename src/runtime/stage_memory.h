// Memory of one rank of a run: its arena, its parameters and their state, on the device or outside it.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "runtime/offload.h"
#include "runtime/sharing.h"
#include "runtime/state_offload.h"
#include "spec/run_spec.h"
#include "tensor/arena.h"
#include "tensor/flat_state.h"

namespace trireme {

OffloadTo offload_to(const RunSpec&);

// Knows parameters by their declarations, and neither layers' maths nor optimizers. Thread-compatible: the
// rank's thread.
class StageMemory {
 public:
  // trains: there are gradients and optimizer state. Run, device and sharing outlive this.
  StageMemory(const RunSpec&, bool trains, Device&, const Sharing&, int64_t arena_bytes);
  ~StageMemory();
  StageMemory(const StageMemory&) = delete;

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  ParamSet& params() { return params_; }
  const ParamSet& params() const { return params_; }
  FlatState& flat() { return flat_; }
  const FlatState& flat() const { return flat_; }
  const std::vector<StateDecl>& state_decls() const { return state_decls_; }
  StateOffload* state_offload() const { return state_offload_.get(); }  // null: state is in the arena

  // In this order: hold_flat() takes memory for weights, gradients and state; bind() for buffers, and sets
  // what is kept whole of the parameters' views. hold() takes memory that is kept to the end.
  void hold_flat(std::vector<StateDecl>);
  void bind();
  Tensor nonfinite_count() const { return nonfinite_count_; }  // i64 [1]: for counting, always held
  Tensor hold(Bucket, const Shape&, DType);

  // Fresh weights, in master copies alone: StageRunner::init_weights().
  void init_weights(const std::function<bool(const Param&)>& given);
  // Elements of the parameter whose master copy and moments are this rank's (all of them on one rank), and
  // those that it answers for where replicas have the same ones.
  Range owned(const Param&) const;
  Range answers_for(const Param&) const;
  // The owned elements, f32 on the host; what = "" for the parameter itself (its master copy), or a state
  // name such as "exp_avg". state_tensor: the same memory as a tensor [owned]: host memory on cpu, for
  // checkpoints.
  Tensor state_tensor(const Param&, std::string_view what) const;
  void write_param(const Param&, std::string_view what, std::span<const float>);
  void read_param(const Param&, std::string_view what, std::span<float>) const;
  // Rounds this rank's master copies into its own parts of the weights.
  void cast_masters();

 private:
  const Unit& unit_of(const Param&) const;
  bool waits(const Tensor& state) const;
  void hold_state();
  void bind_views();
  void zero_padding();
  void cast_waiting_masters();

  const RunSpec& run_;
  bool trains_;
  Device& device_;
  const Sharing& sharing_;
  Stream compute_;
  DType dtype_, grad_dtype_;
  std::byte* memory_;
  int64_t bytes_;
  Arena arena_;
  ParamSet params_;
  std::vector<StateDecl> state_decls_;
  FlatState flat_;
  Tensor nonfinite_count_;
  std::vector<Owned> persistent_;
  std::unique_ptr<StateOffload> state_offload_;  // none: state is in the arena
};

}  // namespace trireme
