// Longest paths through the actions and messages of a schedule, in which each action adds to the clocks of
// its rank what the paths within its stage say (forecast/stage_paths.h).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "forecast/stage_paths.h"
#include "schedule/steady.h"

namespace trireme::step_paths {

class PipelinePaths {
 public:
  // classes: a number for the layers of each stage.
  PipelinePaths(std::string_view schedule, int64_t pp, int64_t chunks, int64_t microbatches,
                const std::vector<int>& classes);

  struct Added {
    int stage_class = 0;
    ActionSpan span = kF;
    NextAction next = kNextOther;
    bool operator==(const Added&) const = default;
  };
  // kWays prices for each of these, then the message's.
  const std::vector<Added>& added() const { return added_; }
  uint32_t message() const { return uint32_t(added_.size() * kWays); }
  bool split() const { return split_; }  // gradients of inputs and weights are separate actions

  struct Path {
    double total = 0;
    const Counts* counts = nullptr;
  };
  // Gathers and sums have other places with ZeRO 2, with ZeRO 3 and with the exchange of experts. So paths
  // are looked for in each kind of step.
  static constexpr size_t kKinds = 6;
  static size_t kind_of(int zero, bool exchanges) {
    return 2 * (zero < 2 ? 0 : size_t(zero) - 1) + exchanges;
  }
  // look: the longest path at these very prices is looked for.
  Path longest(const std::vector<double>& prices, size_t kind, bool look);
  bool settled(size_t kind) const {  // no search finds more
    const Looked& l = looked_[kind];
    return l.in_vain >= Paths<Counts>::kMostInVain || l.tried.full();
  }
  // Whether paths were not looked for at such prices.
  bool fresh(size_t kind, Profile p) { return looked_[kind].tried.add(p); }

 private:
  struct Step {
    Act kind = Act::F;
    int16_t stage = 0, mb = 0;
    int32_t message = -1, to = -1;
    ActionSpan span = kF;
    uint32_t price = 0;    // that of the first way
    uint32_t fetch = 0;    // kFetch or kFetchAgain of the next action that uses weights; 0: none
    bool fetched = false;  // its first weights were gathered before it
    NextAction next = kNextOther;
    bool first = false;   // the rank's first action
    bool steady = false;  // in the part of the rank's actions that repeats
  };
  struct Node {
    double end = 0;
    int32_t before = -1;
    uint32_t price = 0;
    int32_t rank = 0, step = 0;
  };
  struct Clocks;
  uint32_t price_of(const Added&);
  static void find_next(std::vector<Step>& rank);
  void find_fetches(std::vector<Step>& rank);
  bool search(const std::vector<double>& prices);
  void add_repeats(const std::vector<Node>&, const std::vector<int32_t>& path,
                   std::vector<float>& counts) const;

  int stages_ = 0, microbatches_ = 0;
  int64_t fewer_ = 0;  // microbatches that are not run
  std::optional<SteadyPart> part_;
  std::vector<std::vector<Step>> ranks_;
  std::vector<Added> added_;
  bool split_ = false;
  Paths<Counts> paths_;
  struct Looked {
    Tried tried;
    int in_vain = 0;
  };
  std::array<Looked, kKinds> looked_;
};

}  // namespace trireme::step_paths
