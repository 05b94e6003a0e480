// What a rank shares with its replicas: the layout's numbers, as this rank sees them.
#pragma once
#include <algorithm>
#include <vector>

#include "comm/comm_set.h"
#include "model/tensor_parallel.h"
#include "schedule/schedule.h"
#include "spec/run_spec.h"
#include "tensor/param.h"

namespace trireme {

struct Sharing {
  int world = 1;
  int dp = 1, dp_rank = 0;  // who has other sequences
  AxisPlace cp;             // who has other parts of them
  TensorPlace tp;           // who has other parts of layers
  AxisPlace pp;             // who has other layers
  // Of them those with the last layers, which have the losses: of copies (Schedule::copies) each those of its
  // own microbatches. First the one that has them in an evaluation, which goes as microbatch 0 does.
  std::vector<int> head_ranks = {0};
  int head_rank() const { return head_ranks.front(); }
  bool has_losses(int pp_rank) const {
    return std::find(head_ranks.begin(), head_ranks.end(), pp_rank) != head_ranks.end();
  }
  int zero = 0;  // 0 where a shard group has one rank: there is nobody to share with
  ShardPlace place;
  // Of experts, where these are units of their own (Unit::experts).
  ShardPlace expert_place;
  SyncGroups replicating, experts;
  LayerGroups layers;  // what layers talk in
  // Pipelines: the ranks that hold the first and the last stage, if both have a copy of Unit::shared; those
  // that hold the same stages. Null: there are none, or this rank is not one of them.
  Communicator *tied = nullptr, *copies = nullptr;
  // Do all ranks take part in every pass over the layers, whatever each has to do?
  bool together() const { return zero == 3 || layers.ep; }
};

// Makes the groups when they are first asked for: collective over all ranks. null: one rank, alone.
// schedules: schedules_of() the run if it has a pipeline.
Sharing sharing_of(const RunSpec&, CommSet*, std::span<const Schedule> schedules);

}  // namespace trireme
