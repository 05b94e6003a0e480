// Ranks on meta, for bookings.
#pragma once
#include "runtime/stage_runner.h"

namespace trireme {

inline constexpr int64_t kEndlessArena = int64_t(1) << 52;

// Stands for the run's device.
std::unique_ptr<Device> meta_device(const RunSpec&, int threads);
// The first rank of the world that has this place in its pipeline.
int first_of_stage(const RunSpec&, int pp_rank);
// Runs evaluations of each size that training may have. Returns the end of the highest block that the arena
// ever placed.
int64_t evaluations_high_water(StageRunner&, const RunSpec&);

}  // namespace trireme
