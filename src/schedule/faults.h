// What validate() says, and where: its message above the grid of steps and ranks.
#pragma once
#include <span>
#include <string>

#include "schedule/places.h"
#include "schedule/schedule.h"

namespace trireme {

// Throws an Error (request): "schedule: what", and below it steps downwards and ranks across with every place
// in brackets and the first one's row marked. Of big schedules, what is around the first.
[[noreturn]] void schedule_fault(const Schedule&, std::span<const ActionPlace>, const std::string& what);

// Part of validate(): what replicas say to each other, and steps. Either no rank steps, or each does once,
// last. A stage's gradients are reduced once, behind its last weight gradient, or with each of them (ZeRO 2;
// always where weights are gathered). Where a stage's weights are gathered at all, they are wherever they are
// used, each time for a use; they are let go behind every backward pass, and behind all forward passes or
// none.
void check_replicas(const Schedule&);

}  // namespace trireme
