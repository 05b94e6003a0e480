// The inputs of lower() besides a rank's actions: its layers, their units of parameters, and how replicas
// share the training state.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

// Parameters that are gathered, reduced and updated together (tensor/param.h, Unit).
struct UnitShape {
  std::string name;            // "blocks.3", "blocks.3.experts"
  size_t layer = 0;            // the layer whose parameters they are
  bool experts = false;        // the experts of a layer whose other parameters are another unit
  bool gathers = false;        // ZeRO 3: the weights are divided and gathered for each use
  bool slots = false;          // ZeRO 2 and 3: the whole gradient has memory only until it is reduced
  bool reduces = true;         // false: no other rank has the same parameters, or they are frozen
  bool frozen = false;         // not trained: neither summed nor updated
  int64_t begin = 0, end = 0;  // bytes of the unit's gradient on the wire, from the start of the flat layout
};

struct LayerShape {
  std::string name;
  std::vector<uint32_t> units;  // its own, then that of a parameter that it is tied to
  bool recomputes = false;      // the backward pass makes again what the forward pass dropped
};

// A stage that the rank holds: layers [first, last).
struct StageShape {
  int stage = 0;
  size_t first = 0, last = 0;
  bool embedding = false, head = false;
};

struct RankShape {
  std::vector<UnitShape> units;
  std::vector<LayerShape> layers;
  std::vector<StageShape> stages;  // ascending
  bool tied = false;               // the head uses the embedding's table
};

// How replicas share weights, gradients and optimizer state, and what overlaps with compute.
struct ShardPolicy {
  int zero = 0;
  int64_t prefetch = 1;            // zero 3: units gathered ahead of the one in use
  bool reshard_last = true;        // zero 3: LayoutSpec::reshard_last
  bool experts_in_weight = false;  // W computes experts' rows again, so it uses their weights
  bool casts = false;              // gradients travel in another type than they are summed in
  int64_t bucket_bytes = 0;        // zero 0: neighbouring units are reduced together up to this size
  bool offloads_inputs = false;    // inputs of recomputed layers wait outside the device's memory
  bool interleaves = false;        // a forward and a backward pass of an overlap group run by turns
  // trireme's runtime overlaps by unit, and only programs by unit are executed. The fitted times of other
  // software stand for an overlap by stage:
  // - a layer's weights are gathered while the layer before runs, even if the same weights are still in use;
  // - with ZeRO below 3, a stage's gradients are reduced after its last backward pass;
  // - all weights are updated, then all are gathered.
  bool by_stage = false;
};

}  // namespace trireme
