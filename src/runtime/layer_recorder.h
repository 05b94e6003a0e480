// Records tapes of a rank's layers (program/layer_tape.h), by running each kind of layer once on meta.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program_bytes.h"
#include "runtime/stage_runner.h"

namespace trireme {

// Tapes by kind of layer. Runs whose tapes are equal may share one.
using LayerTapes = std::map<std::string, std::map<PassKey, LayerTape>>;

class LayerRecorder {
 public:
  // Requires: a training runner on meta, between steps. Both outlive this; the runner takes no steps
  // meanwhile. `tapes` has those that are known already, of runs with an equal run_key().
  // by_number: each layer is a kind, named by its number; `tapes` serve this rank alone.
  LayerRecorder(StageRunner&, LayerTapes& tapes, bool by_number = false);
  LayerRecorder(const LayerRecorder&) = delete;
  ~LayerRecorder();

  const LayerTape& pass(size_t layer, const PassKey&);
  // A layer's backward pass for weights whose gradients another microbatch has started.
  PassKey later_pass(size_t layer) const;
  // Tapes of a block that is recomputed as `way` says, after the same forward pass.
  struct Again {
    Recompute way;
    LayerTape drop, again;
  };
  // Requires: no pass of the block is recorded yet, and the run recomputes nothing.
  std::vector<Again> recomputed(size_t layer, std::span<const Recompute> ways);
  // Everything else of the rank. Its `pass` calls this recorder.
  RankTapes rank();
  // Equal for layers whose passes take equal memory in runs with an equal run_key().
  const std::string& kind(size_t layer) const { return kinds_.at(layer); }

 private:
  using Calls = std::vector<Arena::Call>;
  struct At;  // a layer of the microbatch that is recorded
  struct Blocks;
  void record(size_t layer, const PassKey&, std::span<Again> ways = {});
  LayerTape run_pass(const At&, OpKind, Blocks&);
  LayerTape between(const std::function<void()>&);
  std::string kind_of(size_t layer) const;
  void run(OpKind, const At&, int32_t unit = -1);
  std::vector<BlockSize> batch_blocks();

  StageRunner& runner_;
  StagePasses& passes_;  // runner_'s
  ParamSet& params_;     // likewise
  LayerTapes& tapes_;
  std::vector<std::string> kinds_;  // by layer
  Calls calls_;
};

// Runs with equal keys have equal tapes of equal kinds of layers: everything of the run but what the program
// decides.
std::string run_key(const RunSpec&);

}  // namespace trireme
