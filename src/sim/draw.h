// A schedule in virtual time, drawn: as text, as SVG, and as a page that holds the SVG.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "sim/pipeline.h"

namespace trireme {

// One action of compute on its rank, in the unit of the times given.
struct Drawn {
  Act kind;
  int stage, mb;
  int64_t begin, end;
};
struct ScheduleTimeline {
  std::vector<std::vector<Drawn>> ranks;
  Replay replay;
  Bubble bubble;
  std::vector<HeldPeak> held;  // in chunks
  int chunks = 1;              // stages a rank
};
// times: one for every stage, or one of each, as tapes_of has them.
ScheduleTimeline timeline_of_stages(const Schedule&, std::span<const StageTimes> times);
inline ScheduleTimeline timeline_of(const Schedule& s, const StageTimes& of_a_stage) {
  return timeline_of_stages(s, {&of_a_stage, 1});
}

// A row a rank. Where it fits into `columns`: each time slot as in the papers, kind and microbatch, '-' while
// an action goes on, '.' idle; second and later chunks in small letters. Else one letter a column, the kind
// that takes most of its time.
std::string grid_of(const ScheduleTimeline&, int columns);

// What its letters mean.
std::string_view grid_legend();

// As wide as a page; microbatches are written where they are legible. Title and text may have any characters.
std::string svg_of(const ScheduleTimeline&, std::string_view title);
std::string html_of(const ScheduleTimeline&, std::string_view title, std::string_view text);

}  // namespace trireme
