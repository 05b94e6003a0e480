// What came out of a schedule in virtual time, beside what papers say of it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "sim/draw.h"
#include "sim/published.h"

namespace trireme {

// By rank, what it holds at its fullest: in microbatches of its whole share.
std::vector<double> held_by_rank(const ScheduleTimeline&);

// Four lines: bubble and activations held, each followed by the published formula where there is one. unit:
// so much of the timeline's time is one of the times that its reader gave.
std::string summary_of(const ScheduleTimeline&, const std::optional<Published>&, double unit);

}  // namespace trireme
