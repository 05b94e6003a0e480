// A step at the scale of the real cluster: each pipeline rank's part of the schedule as a tape, layer by
// layer with its collectives, and every rank of the mesh on it; ranks that do the same and that nothing
// disturbs differently are replayed once.
//
// Streams: compute (the rank's own thread), tp, cp, ep, dp, and one for messages each way of the pipeline.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "schedule/schedule.h"
#include "sim/replay.h"

namespace trireme {

// One pass over one layer, nanoseconds: computing, then what its collectives keep compute waiting for.
struct PassTimes {
  int64_t compute = 0, tp = 0, cp = 0, ep = 0;
  int64_t total() const { return compute + tp + cp + ep; }
};
// A layer on one microbatch; and the collectives of its parameters among replicas (dp, with cp; experts'
// among their own): gradients, and weights.
struct LayerWork {
  PassTimes forward, input, weight, again;
  int64_t reduce = 0, gather = 0, reduce_experts = 0, gather_experts = 0;
  int64_t update = 0;                  // WorldWork::by_layer
  int64_t wire = 0, wire_experts = 0;  // bytes of these gradients
  // Bytes of a rank: parameters' states, what a microbatch keeps from its forward pass to its weight
  // gradient, what it holds besides from the beginning of its input gradient to then, and what is there
  // besides while the backward pass is at the layer.
  int64_t state = 0, kept = 0, waiting = 0, scratch = 0;
};
struct StageWork {
  struct Layer {
    std::string name;  // "blocks.3"
    int kind = 0;      // of WorldWork::kinds
  };
  std::vector<Layer> layers;
};
struct WorldWork {
  std::vector<LayerWork> kinds;
  std::vector<StageWork> stages;  // of the schedule
  std::vector<int64_t> update;    // of the optimizer, by pipeline rank
  int64_t message = 0;            // between neighbouring stages, until it is there
  int64_t message_bytes = 0;
  // As trireme's runtime does (SoftwareProfile::Sums::by_layer, optim/grad_sync.h): gradients are reduced
  // layer by layer beside the backward pass, no more than two sums under way where they need memory of their
  // own; a layer that comes next again is gathered when it was let go; the update of a layer is beside the
  // gather of the one before. Else a stage's gradients are reduced behind it, which fitted shares of a
  // software stand for.
  bool by_layer = false;
  bool cast = false;  // by_layer: gradients travel in a type of their own
  int zero = 0;       // 1, 2: updated weights are gathered behind the step; 3: before each use
  // by_layer: as in program/shape.h.
  int64_t prefetch = 1, bucket_bytes = 0;
  bool reshard_last = true, interleave = false;
  int64_t base = 0;  // bytes of a rank beside all that
};

// What is unlike the plan. Factors are of time: ranks compute so much slower; of bandwidth: a node's link to
// the others has that share of it.
struct Disturbance {
  std::map<int, double> slow_ranks;
  std::map<int, double> slow_links;  // by node
  int failing_rank = -1;             // -1 = none
  int64_t fails_at = 0;              // of the step
  bool any() const { return !slow_ranks.empty() || !slow_links.empty() || failing_rank >= 0; }
};

struct World {
  Mesh mesh;
  Schedule schedule;  // with messages, reductions and steps (spec's schedule_of)
  WorldWork work;
  int node = 8;  // ranks of one, neighbours in the world's numbers
  // Transfers of a rank that are under way at once share its links (sim/shared_links.h): those whose ranks
  // are of one node the one to them, all others its share of the network. Else each is as fast as alone.
  bool share_links = false;
  Disturbance disturbed;
};

// Ranks that have the same timeline to the nanosecond. Two ranks are in one class if they do the same at the
// same prices, their groups' members are of the same classes, and so are their pipeline's ranks: the coarsest
// such division (colour refinement), so a disturbed rank divides classes exactly as far as its effects reach.
struct RankClass {
  int rank = 0;            // the first of it, which stands for all
  int pp = 0;              // pipeline rank
  int64_t ranks = 0;       // how many
  bool disturbed = false;  // slow, on a slow link, or failing itself
};

struct WorldReplay {
  std::vector<RankClass> classes;  // by pipeline rank, then by first rank
  std::vector<int> class_of;       // by rank of the world
  std::vector<RankTape> tapes;     // by class; with all_ranks by rank
  Replay replay;                   // as tapes
  int64_t pieces = 0;              // events: begun and ended
  double seconds = 0;              // that the replay took here
  bool all_ranks = false;
  size_t at(size_t of_class) const {  // in tapes
    return all_ranks ? size_t(classes[of_class].rank) : of_class;
  }

  struct Owned;  // what the tapes point to
  std::shared_ptr<const Owned> owned;
};

// Events that a replay takes: some 100 bytes each.
inline constexpr int64_t kMostReplayed = 100'000'000;

// all_ranks: no class stands for its ranks; all are replayed. Errors (request): a schedule whose stages have
// copies, ranks and nodes that the world does not have, more than kMostReplayed events.
WorldReplay replay_world(const World&, bool all_ranks = false);

}  // namespace trireme
