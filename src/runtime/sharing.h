// What a rank shares with its replicas: the layout's numbers, as this rank sees them.
#pragma once
#include "comm/comm_set.h"
#include "model/layer.h"
#include "optim/grad_sync.h"
#include "spec/run_spec.h"
#include "tensor/param.h"

namespace trireme {

struct Sharing {
  int dp = 1, dp_rank = 0;  // who has other sequences
  AxisPlace tp, cp;         // cp: who has other parts of them
  AxisPlace pp;             // who has other layers
  int head_rank = 0;        // of them: the one with the last layers, which has the losses
  int zero = 0;             // 0 where a shard group has one rank: there is nobody to share with
  ShardPlace place;
  // Of experts, where these are units of their own (Unit::experts).
  ShardPlace expert_place;
  SyncGroups replicating, experts;
  LayerGroups layers;  // what layers talk in
  // Do all ranks take part in every pass over the layers, whatever each has to do?
  bool together() const { return zero == 3 || layers.ep; }
};

// Makes the groups when they are first asked for: collective over all ranks. null: one rank, alone.
Sharing sharing_of(const RunSpec&, CommSet*);

}  // namespace trireme
