// Memory of a rank's step, composed from its program and the tapes of its layers. No layer is run.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "program/layer_tape.h"
#include "program/program.h"
#include "schedule/steady.h"
#include "trace/best_fit.h"

namespace trireme {

// The variants of one pass over one layer.
struct PassKey {
  OpKind kind = OpKind::forward;  // forward, drop, again, input or weight
  bool by_turns = false;          // another pass runs while this one waits (Op::by_turns)
  std::string started;            // weight: as LayerTape::started, before the pass; else empty
  int16_t mb = -1;                // the microbatch if routing is known by microbatch, else -1
  auto operator<=>(const PassKey&) const = default;
};

// Everything that decides a rank's memory in addition to its program.
struct RankTapes {
  RankShape shape;
  ShardPolicy policy;
  bool by_microbatch = false;    // routing is known, so tapes differ by microbatch
  std::vector<BlockSize> batch;  // blocks of a loaded microbatch, in the order of making and freeing
  BlockSize message;             // between stages
  BlockSize fetched;             // an input that comes back from the offload store
  std::vector<BlockSize> weights,
      grads;                       // by unit: gathered weights, and the whole gradient (ShardPolicy::zero)
  std::vector<size_t> parameters;  // by unit
  LayerTape begin, end;            // before the first operation; after the sums over replicas
  // The rank's memory between steps.
  BestFit placed{0};
  Ledger booked;
  int64_t evaluations = 0;  // bytes of the range that evaluations take, `placed` included
  // Returns a tape that stays valid while this exists.
  std::function<const LayerTape&(size_t layer, const PassKey&)> pass;
};

struct ProgramBytes {
  BucketBytes peak{};     // by bucket
  BucketBytes at_peak{};  // at the peak of the total
  int64_t peak_total = 0;
  // The range that the step and evaluations take, holes included; 0 in booked_bytes().
  int64_t arena_bytes = 0;
};
// Operations that repeat: those `ops.step` later are the same for the microbatches `period` later.
struct SteadyOps {
  Repeats ops;  // numbers in Program::ops; step = 0: none repeat
  int period = 0;
};
// part: the steady part of the rank's actions.
SteadyOps steady_ops(const Program&, const Repeats& part, int period);

// Bytes of the buckets alone, from the sums of tapes. Once the rank's memory repeats, the rest of the steady
// part is left out; the result is the same.
ProgramBytes booked_bytes(const Program&, const RankTapes&, const SteadyOps& = {});

// Calls of the arena, in order.
struct PlacedCalls {
  std::vector<int64_t> sizes;   // padded; < 0: a block is freed
  std::vector<size_t> first;    // by operation up to the norm: calls before it
  std::vector<int64_t> booked;  // likewise: bytes of all buckets before it
};
// With the range, by placing each block as the arena does. listed: requires that there is no steady part.
ProgramBytes placed_bytes(const Program&, const RankTapes&, const SteadyOps& = {},
                          PlacedCalls* listed = nullptr);

// As to_text(Program), with the bytes after each operation up to the norm.
std::string to_text(const Program&, const PlacedCalls&);

}  // namespace trireme
