// Memory of a step's ranks, composed from their programs and from tapes of their layers
// (program/program_bytes.h). It is equal to a booking of the step in every byte, but no microbatch is run.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/interned.h"
#include "comm/comm_set.h"
#include "runtime/booking.h"
#include "runtime/layer_recorder.h"
#include "runtime/meta_rank.h"
#include "schedule/steady.h"

namespace trireme {

// Returns false for runs whose memory only a booking has: post-validation and the noise scale hold blocks
// that programs do not show.
bool composes(const RunSpec&);

// A rank on meta, its program and its tapes. Requires composes().
class ComposedRank {
 public:
  // The first rank of the world at the pipeline rank `pp_rank`.
  ComposedRank(const RunSpec&, const Schedule&, int threads, const ClusterSpec&, int pp_rank, LayerTapes&);
  ~ComposedRank();
  ComposedRank(const ComposedRank&) = delete;
  const Program& program() const { return *program_; }
  const RankTapes& tapes() const { return tapes_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<CommFactory> factory_;
  std::unique_ptr<CommSet> comms_;
  std::unique_ptr<StageRunner> runner_;
  std::unique_ptr<LayerRecorder> recorder_;
  RankTapes tapes_;
  const Program* program_ = nullptr;
};

struct StageArena {
  int pp_rank = 0;
  int64_t bytes = 0;  // as arena_of_stage() books them
};

// All pipeline ranks of a run. Ranks with equal stages share one rank on meta. Requires composes().
class ComposedRun {
 public:
  // tapes: of runs with an equal run_key(); outlives this, as the schedule does.
  ComposedRun(const RunSpec&, const Schedule&, int threads, const ClusterSpec&, LayerTapes& tapes);
  ~ComposedRun();
  size_t kinds() const { return kinds_.size(); }  // ranks with different stages
  size_t kind(int pp_rank) const { return kind_.at(size_t(pp_rank)); }

  ProgramBytes booked(int pp_rank) const;  // without arena_bytes
  ProgramBytes placed(int pp_rank) const;
  PlacedCalls listed(int pp_rank) const;
  // By kind, and by the number of the rank's devices (null: all alike): the rank with the largest arena. Once
  // an arena has more than `enough` bytes, only that one.
  std::vector<StageArena> largest_arenas(int64_t enough = kEndlessArena,
                                         const NumberList* devices = nullptr) const;

 private:
  struct Rank {
    Program program;
    RankTapes tapes;
    SteadyOps steady;
  };
  Rank rank(int pp_rank) const;
  const Schedule& schedule_;
  Holders holders_;
  std::vector<std::vector<int>> send_ends_;
  std::optional<SteadyPart> steady_;
  std::vector<std::unique_ptr<ComposedRank>> kinds_;
  std::vector<size_t> kind_;  // by pipeline rank
};

// ComposedRun::largest_arenas(). If the run does not compose, the rank is chosen without the features that
// prevent it, then booked.
std::vector<StageArena> largest_arenas(const RunSpec&, const Schedule&, int threads, const ClusterSpec&,
                                       int64_t enough = kEndlessArena, const NumberList* devices = nullptr);

}  // namespace trireme
