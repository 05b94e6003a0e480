// What one pipeline rank issues in a step of a World, as a tape with the prices of an undisturbed rank.
#pragma once
#include "sim/world.h"

namespace trireme {

// Groups of a program's tape, by TapeGroup: its ranks are said by each rank's place.
enum class GroupKind : uint8_t { tp, cp, ep, dp, edp, world };
inline constexpr size_t kGroupKinds = 6;
std::string_view name_of(GroupKind);
std::vector<Axis> axes_of(GroupKind);

struct RankProgram {
  Tape tape;  // groups: those of kGroupKinds that have several ranks; peers: pipeline ranks
  std::vector<Price> prices;
  std::vector<GroupKind> kinds;  // of tape.groups
};
RankProgram program_of(const World&, int pp_rank);

}  // namespace trireme
