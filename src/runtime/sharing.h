// What a rank shares with its replicas: the layout's numbers, as this rank sees them.
#pragma once
#include "comm/comm_set.h"
#include "model/layer.h"
#include "spec/run_spec.h"
#include "tensor/param.h"

namespace trireme {

struct Sharing {
  int dp = 1, dp_rank = 0;
  AxisPlace tp;
  int zero = 0;  // 0 where a shard group has one rank: there is nobody to share with
  ShardPlace place;
  // Null where the group has one rank. shard: those that divide units among them; replicas: those that hold
  // the same part.
  Communicator *shard = nullptr, *replicas = nullptr;
  LayerGroups layers;  // what layers talk in
};

// Makes the groups when they are first asked for: collective over all ranks. null: one rank, alone.
Sharing sharing_of(const RunSpec&, CommSet*);

}  // namespace trireme
