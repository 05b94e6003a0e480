// Longest paths through the operations of one stage: what an action adds to the clocks of its rank, whatever
// its rank does before and after.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "forecast/path_prices.h"
#include "forecast/step_bound.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "program/shape.h"
#include "schedule/schedule.h"

namespace trireme::step_paths {

// The layers of a stage, by kind of WorldWork::kinds.
using Layers = std::vector<int>;

// An action of a stage. turned: after a pass that used the same weights last; delayed: so, with a weight
// gradient in between; summed: the last of its stage, which reduces gradients with ZeRO 0 and 1.
enum ActionSpan : size_t {
  kF,
  kTurnedF,
  kDelayedF,
  kB,
  kTurnedB,
  kI,
  kTurnedI,
  kDelayedI,
  kW,
  kSummedB,
  kTurnedSummedB,
  kSummedW,
  kSpans
};
// The next action that uses weights. Before the last two, gathers for it are on the action's lane: before a
// repeated one only if no more units are used than are gathered ahead.
enum NextAction : size_t {
  kNextOther,
  kNextTurned,    // or delayed
  kNextRepeated,  // the same stage's pass in the same direction
  kNexts
};
// Clocks of a rank. An action adds to each clock after it the longest path from each clock before it.
enum ClockFrom : size_t {
  kFromCompute,
  kFromLane,    // the stream of collectives among replicas
  kFromBefore,  // compute before it waited for the action's messages: weights that the previous pass released
                // are regathered from here
  kFromSum,     // the last sum of the actions before has ended, and its memory is free
  kFromSumBefore,  // the last but one
  kFromFetched,    // the action's first weights, gathered during the previous action, have arrived
  kFromAhead,      // within the action: the next action's first weights have arrived
  kFroms
};
enum ClockTo : size_t {
  kToCompute,  // the last pass, and waits for earlier sums, whose memory the last sum needs
  kToLane,
  kToAhead,  // the next action's first weights may be gathered; before turned and repeated ones: they have
             // arrived
  kToSum,    // the action's last sum
  kToSumBefore,  // the last but one
  kTos
};
constexpr size_t way_of(ClockFrom from, ClockTo to) {
  return size_t(to) * kFroms + size_t(from);
}
// Behind the ways, the gathers that make the action's first weights be there (kFromFetched): after an action
// of another stage, and of the same.
constexpr size_t kFetch = size_t(kFroms) * size_t(kTos), kFetchAgain = kFetch + 1, kWays = kFetch + 2;
constexpr double kNoWay = -1e18;

// The structure of a stage's programs, whatever the prices.
struct Structure {
  int zero = 0;
  int64_t prefetch = 1, bucket_bytes = 0;
  bool cast = false, reshard_last = true, reshard_after_forward = true;
  bool replicas = false, expert_replicas = false, exchanges = false, recomputes = false;
  std::array<uint8_t, size_t(kWorkLayers)> collectives{};  // by kind: which of its prices are above 0
  std::array<int64_t, 2> wire{};                           // bytes of a block's gradients, for buckets
  auto key() const {
    return std::tie(zero, prefetch, bucket_bytes, cast, reshard_last, reshard_after_forward, replicas,
                    expert_replicas, exchanges, recomputes, collectives, wire);
  }
  bool operator<(const Structure& o) const { return key() < o.key(); }
  bool operator==(const Structure& o) const { return key() == o.key(); }
};
Structure structure_of(const BoundCase&);

// Prices of a layout, with what paths are kept by.
struct PricesAt {
  Prices prices;
  uint64_t number = 0;  // a hash of them
  Profile profile = 0;
  bool exact = false;  // StepBound::of()
};

// Programs of one stage by itself: three microbatches, the gradients of both at once (F B) and one after the
// other (F I W); and with another stage's actions between its own.
class StagePaths {
 public:
  StagePaths(const Layers&, const Structure&, const BoundCase&);

  // The least nanoseconds that the action adds, by those ways that have a path. Valid until the next call.
  struct Live {
    size_t way = 0;
    double ns = 0;
  };
  std::span<const Live> of(ActionSpan, NextAction, const PricesAt&);
  // All operations of a rank with all stages, up to the norm.
  double whole(int64_t microbatches, const PricesAt&);
  // From when all ranks agree on the norm to the end of the step.
  double end(const PricesAt&);
  // Nanoseconds of collectives among replicas for a microbatch, which are one after another.
  double lane(bool split, const Prices&);
  // Passes alone, of one span and of all.
  double passes_of(ActionSpan, const Prices&) const;
  double passes(const Prices&) const;
  double head(const Prices&) const;

 private:
  struct StageProgram {
    RankShape shape;
    std::vector<int> kinds;  // by layer
    Program program;
  };
  // Operations [begin, end), less those of other actions; compute ends at compute_end.
  struct Part {
    const StageProgram* program = nullptr;
    size_t begin = 0, received = 0, compute_end = 0, end = 0;  // [begin, received): before its messages
    size_t ahead = kNever;                                     // kToAhead
    bool ahead_is_exact = false;                               // else it is the earliest place
    size_t gathered = kNever;                                  // before a turned part: the last gather for it
    size_t fetched = kNever;  // in a turned part: the previous action's last gather for it
    bool turned = false;
    bool sums_before = false;   // in [begin, received)
    bool last_of_both = false;  // the end is that of compute, if it is later than the lane's
    std::vector<char> others;   // by operation: a gather for a later action, or sums of an earlier one
  };
  static constexpr size_t kNever = size_t(-1);
  // A price on a path, and the operation that has it.
  struct Taken {
    size_t price = 0, op = 0;
  };
  // A path of a rank with all stages; a further microbatch takes `again`.
  struct WholePath {
    Counts once, again;
    bool operator==(const WholePath&) const = default;
  };
  struct Whole {
    StageProgram program;
    Part part;
    Paths<WholePath> paths;
    Tried tried;
  };
  static constexpr int64_t kWhole = 4;  // microbatches that are run
  struct Way {
    bool none = false;
    Paths<Counts> paths;
  };
  // The part before such an action.
  static constexpr size_t before(NextAction next, size_t span) { return size_t(next) * kSpans + span; }
  static constexpr size_t kEnd = size_t(kNexts) * kSpans;  // a part behind those of actions

  WorldWork work_of(const WorldWork&) const;
  Schedule with_all(Schedule) const;
  void make(StageProgram&, Schedule) const;
  bool gathers_in_passes() const { return structure_.zero == 3 && structure_.reshard_after_forward; }
  Schedule order(int stages, bool split) const;
  void ensure_own(bool split);
  void ensure(bool split);
  Counts count_lane(const StageProgram&) const;
  void find_spans(const StageProgram&, bool split);
  void set_part(const StageProgram&, size_t begin, size_t received, size_t end, Part&) const;
  void find_ahead(bool split);
  void find_turned(bool split);
  void find_repeated(bool split);
  void set_gathered(Part&, const ActionOps& next, bool turned) const;
  void search(size_t span, ClockFrom, const PricesAt&, bool look);
  bool has_way(const Part&, ClockFrom, ClockTo) const;
  // By ClockTo; nothing: there is no path.
  using ToPaths = std::array<std::optional<std::vector<Taken>>, kTos>;
  ToPaths longest(const Part&, ClockFrom, const Prices&) const;
  static Counts counts_of(std::span<const Taken>);
  WholePath whole_path(const Whole&, const Prices&) const;

  Layers layers_;
  std::array<double, size_t(kWorkLayers)> of_kind_{};  // layers
  Mesh mesh_;
  Structure structure_;
  WorldWork work_;
  std::array<bool, 2> own_made_{}, made_{};
  std::array<StageProgram, 2> programs_, between_, turned_, repeated_;  // split or not
  std::array<Whole, size_t(kWhole)> whole_;                             // by microbatches
  std::array<Part, kEnd + 1> parts_{};
  std::array<Counts, kSpans> fetch_;  // kFetch
  bool many_ = false;                 // a pass uses more units than are gathered ahead
  std::array<Counts, 2> lane_{};      // split or not
  // The paths of a part. A search needs few parts of a stage.
  struct Searched {
    std::array<Way, kFetch> ways;
    std::vector<size_t> there;  // ways that have a path
    Tried tried;
    // At the previous prices:
    uint64_t number = 0;
    Prices prices;
    std::vector<Live> live;
  };
  Searched& searched(size_t span) {
    std::unique_ptr<Searched>& s = searched_[span];
    if (!s) s = std::make_unique<Searched>();
    return *s;
  }
  std::array<std::unique_ptr<Searched>, kEnd + 1> searched_;
};

}  // namespace trireme::step_paths
