// Bytes of a run's layers, taken from tapes of their passes (program/layer_tape.h). A tape is recorded by
// running the layer on meta, so there is no other form of what a layer keeps.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "forecast/search_layout.h"
#include "forecast/work_prices.h"
#include "program/shape.h"
#include "spec/run_spec.h"
#include "tensor/param.h"

namespace trireme {

enum LayerPass : size_t { kPassForward, kPassDrop, kPassAgain, kPassInput, kPassWeight, kLayerPasses };
struct PassBytes {
  double net = 0;              // after the pass, compared with before it
  double high = 0;             // at most during it
  std::vector<double> totals;  // after each event of the tape
};

// A unit of parameters (tensor/param.h), before it is divided among replicas.
struct UnitSize {
  int64_t numel = 0, others = 0;  // others: without hidden matrices
  bool experts = false, frozen = false;
};

struct LayerBytes {
  std::array<PassBytes, kLayerPasses> passes;
  std::vector<uint32_t> own;     // units: numbers in RecordedLayers::units
  std::optional<uint32_t> tied;  // the unit of a layer whose table it uses too
  double buffers = 0;            // ParamDecl::buffer
};

// Ranks that have the same unit: they divide its state by ZeRO in parts for `shards` of them.
struct UnitSharers {
  int zero = 0, shards = 1, all = 1;
};
// experts: of units that have experts alone.
UnitSharers sharers_of(const LayoutSpec&, bool experts);

// All that a rank's memory is made of, by kind of layer.
struct RecordedLayers {
  std::array<LayerBytes, size_t(kWorkLayers)> kinds;
  std::vector<UnitSize> units;
  double batch = 0;     // ids, targets, positions and losses of a microbatch
  double boundary = 0;  // an output of a layer, which is the input of the next
  double between = 0;   // at most, outside the passes of layers
  double rest = 0;      // kept between steps in addition to units and buffers
  // Bytes of an element.
  double weight = 0, grad = 0, master = 0, wire = 0;
  std::vector<StateDecl> state;  // the optimizer's
  ShardPolicy policy;
  bool reshard_after_forward = true;
  std::string structure;  // equal if the units of all kinds of layers are the same ones

  double gathered(uint32_t unit, int shards) const;  // the whole unit's weights
  double whole_grad(uint32_t unit, int shards) const;
  double wired(uint32_t unit, int shards) const;  // the whole gradient on the wire
  // Kept between steps. dense_shards: of units without experts (others_numel() divides by these).
  double kept(uint32_t unit, const UnitSharers&, int dense_shards, bool optimizer) const;
};

// Requires: resolved run, its layout's pp and schedule are not read. split_ends: the embedding and the head
// are on different ranks, so a tied table is there twice.
RecordedLayers record_layers(const RunSpec&, bool split_ends);
// The same by Again; layout.recompute is not read.
std::vector<RecordedLayers> record_ways(const RunSpec&, bool split_ends);

// Tensors grow with the rows of a microbatch, and a tape's events stay the same. So the bytes after each
// event are those of few rows and a multiple of what further rows add.
class LayersByRows {
 public:
  // Records one sequence as record_layers() does, and two sequences when at() needs them.
  LayersByRows(const RunSpec&, bool split_ends);
  RecordedLayers at(double sequences, Again);
  bool knows_more() const { return !two_.empty(); }

 private:
  RunSpec run_;
  bool split_ends_;
  std::vector<RecordedLayers> one_, two_;  // by Again
};

}  // namespace trireme
