// Moments of a pipeline's ranks at which their memory may be at its peak, as counts of what they hold. They
// are found in Programs (program/lower.h) once for each structure of a step. Whatever the sizes of what is
// held, the peak is at one of them.
#pragma once
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/interned.h"
#include "forecast/layer_bytes.h"

namespace trireme {

// A rank holds layers of microbatches, by kind and by their last pass; batches; messages; and whole units.
enum HeldState : size_t { kForwarded, kMadeAgain, kWaiting, kWeighted, kHeldStates };
enum HeldUnit : size_t { kGatheredUnit, kWholeGrad, kOnWire, kHeldUnits };
inline constexpr size_t kHeldLayers = size_t(kWorkLayers) * kHeldStates;
inline constexpr size_t kBatches = kHeldLayers, kBoundaries = kBatches + 1, kFirstUnit = kBoundaries + 1;
inline constexpr size_t kMostUnits = 8;

// Numbers of units: place (number in RecordedLayers::units, times kHeldUnits, plus HeldUnit) and count.
using UnitCounts = std::vector<std::pair<uint32_t, float>>;
// A moment during a pass over a layer of that kind; kind = kWorkLayers: during none.
struct MemoryMoment {
  WorkLayer kind = kWorkLayers;
  LayerPass pass = kPassForward;
  uint32_t units = 0;  // in RankMoments::units
};

// How a sharding decides when units are held. every_pass: gradients leave in every backward pass (ZeRO 2 and
// 3), and weights are gathered; with ZeRO 2 the gathered ones have no bytes.
struct UnitPolicy {
  bool every_pass = false, casts = false, replicas = false, expert_replicas = false;
  auto operator<=>(const UnitPolicy&) const = default;
};

// Pipeline ranks with the same layers, on devices of one kind.
struct RankMoments {
  int64_t device = 0;                                 // a number in Pipeline::devices
  std::array<int64_t, size_t(kWorkLayers)> layers{};  // by kind
  std::vector<UnitCounts> units;
  std::vector<std::vector<char>> has_all;  // [a][b]: units[a] has each unit as often as units[b]
  std::vector<MemoryMoment> moments;  // none holds at least as much of everything as another one of its pass
  // Counts by moment, for each state (or kBatches, kBoundaries) that some moment has.
  std::vector<std::pair<uint32_t, std::vector<float>>> held;
};

class MemoryMoments {
 public:
  // cut: as LayoutSpec::cut.
  MemoryMoments(const ModelSpec&, int64_t seq, std::string_view cut);
  ~MemoryMoments();
  struct Pipeline {
    std::string_view schedule = "1f1b";
    int64_t pp = 1, chunks = 1, microbatches = 1;
    // Interned: layers of each stage (null: by the cut), and the number of each rank's kind of devices (null:
    // all alike).
    const NumberList* stage_layers = nullptr;
    const NumberList* devices = nullptr;
    bool operator<(const Pipeline& o) const {
      if (microbatches != o.microbatches) return microbatches < o.microbatches;
      if (pp != o.pp) return pp < o.pp;
      if (chunks != o.chunks) return chunks < o.chunks;
      if (const int order = schedule.compare(o.schedule); order != 0) return order < 0;
      return std::tie(stage_layers, devices) < std::tie(o.stage_layers, o.devices);
    }
  };
  // The layers' units and ShardPolicy are read. Layers that keep all they need make nothing again, in no
  // bytes. Stays valid.
  const std::vector<RankMoments>& of(const Pipeline&, const RecordedLayers&, const UnitPolicy&,
                                     bool exchanges);
  // By ranks with the same layers.
  struct Least {
    std::array<int64_t, size_t(kWorkLayers)> layers{};  // by kind
    int64_t device = 0;                                 // a number in Pipeline::devices
    int64_t blocks = 0;  // the most that microbatches hold at once after their forward pass
  };
  std::vector<Least> least(const Pipeline&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
