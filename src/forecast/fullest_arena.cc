#include "forecast/fullest_arena.h"

#include "runtime/composed_booking.h"
#include "spec/run_schedule.h"

namespace trireme {

FullestArena fullest_arena(const RunSpec& run, const RankRoom& room, int64_t enough) {
  FullestArena most;
  for (const StageArena& a : largest_arenas(run, schedule_of(run), 1, {}, enough, room.devices)) {
    most.ranks++;
    const double more = room.devices ? room.of((*room.devices)[size_t(a.pp_rank)]) : 0;
    if (most.bytes > 0 && double(a.bytes) - more <= double(most.bytes) - most.more) continue;
    most.bytes = a.bytes;
    most.pp_rank = a.pp_rank;
    most.more = more;
  }
  return most;
}

}  // namespace trireme
