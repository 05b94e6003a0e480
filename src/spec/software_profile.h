// How a training software runs a layout, as far as step time and memory depend on it. Names of its launch
// flags are in search/framework.cc, its measured efficiencies in data/score_constants.json.
#pragma once
#include <string_view>

namespace trireme {

struct SoftwareProfile {
  // Time that a rank waits for the collectives of a step.
  enum class Waits {
    by_share,  // a share of the collectives' time, fitted on measured runs
    by_order,  // replayed in the order of operations (program/lower.h). No share is fitted: Fit::tp, cp, ep,
               // ep_far, dp and pp are factors of the collectives' time, 1 unless stated.
  };
  // Memory of a rank.
  enum class Holds {
    by_rule,  // in closed form (cost/step_memory.h)
    by_tape,  // recorded tapes of the layers (program/layer_tape.h), at the moments of the rank's program
  };
  // When gradients leave and weights are updated.
  enum class Sums { by_stage, by_layer };

  Waits waits = Waits::by_share;
  Holds holds = Holds::by_rule;
  Sums sums = Sums::by_stage;
  bool divides_experts = true;   // tensor parallel ranks may divide each expert (StepCase::expert_tp)
  bool searched_groups = false;  // layout.shard_group is priced

  bool ordered() const { return waits == Waits::by_order; }
  bool taped() const { return holds == Holds::by_tape; }
  bool by_layer() const { return sums == Sums::by_layer; }
};

inline constexpr SoftwareProfile kTrireme{.waits = SoftwareProfile::Waits::by_order,
                                          .holds = SoftwareProfile::Holds::by_tape,
                                          .sums = SoftwareProfile::Sums::by_layer,
                                          .divides_experts = false,
                                          .searched_groups = true};
// Other people's software, whose program is not known.
inline constexpr SoftwareProfile kElsewhere{};

// The profile of --software NAME; "" is trireme.
constexpr const SoftwareProfile& profile_of(std::string_view software) {
  return software.empty() ? kTrireme : kElsewhere;
}

}  // namespace trireme
