// From the numbers of a ModelSpec to the layers of the pipeline stages of a rank.
#pragma once
#include <span>

#include "model/attention.h"
#include "spec/model_spec.h"
#include "spec/moe_spec.h"

namespace trireme {

// Which layers a stage holds: blocks [first, last), the embedding before them, the head behind them.
struct StageRange {
  int64_t first = 0, last = 0;
  bool embedding = true, head = true;
  size_t layers() const { return size_t(last - first) + embedding + head; }
};

// Layers in the order data travels, those of one stage behind those of another where a rank has several. They
// share the rope table, whose memory the runtime binds.
struct Stage {
  std::unique_ptr<RopeTable> rope;  // null with learned positions
  std::vector<std::unique_ptr<Layer>> layers;

  std::vector<std::vector<ParamDecl>> declare() const;  // a list a layer
  void bind(ParamSet&);
};

// The spec is resolved: heads, kv_heads, head_dim, ffn and max_positions are numbers. tp, ep: the
// rank's places among the ranks that divide layers and experts. MoeSpec: how routers are trained.
Stage build_stages(const ModelSpec&, std::span<const StageRange>, const TensorPlace& = {}, AxisPlace ep = {},
                   const MoeSpec& = {});
Stage build_stage(const ModelSpec&, const StageRange&);

}  // namespace trireme
