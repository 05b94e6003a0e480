#include "forecast/quick_forecast.h"

#include <algorithm>

#include "catalog/call_price.h"
#include "comm/options.h"
#include "runtime/composed_booking.h"
#include "sim/replay.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// The tape replayed by itself: what it receives is there at once. Ranks of its groups come with it.
double seconds_alone(Tape tape, const RunSpec& run, const ClusterSpec& cluster) {
  const std::vector<Price> prices = price(tape, cluster, run);
  for (Piece& p : tape.pieces)
    if (p.kind == PieceKind::recv) p.kind = PieceKind::op;  // which has no price
  const std::vector<RankTape> one = {{.rank = tape.rank, .tape = &tape, .prices = prices}};
  return double(replay(one).makespan) * 1e-9;
}

double idle_of(const RunSpec& run) {
  return 1 + double(run.layout.pp - 1) / double(run.layout.chunks * run.microbatches());
}

}  // namespace

QuickForecast quick_forecast(const RunSpec& run, const ClusterSpec& cluster, int threads, bool expected) {
  const Schedule schedule = schedule_of(run);
  const ClusterSpec priced = expected ? cluster : at_the_roof(cluster);
  QuickForecast q{.idle = idle_of(run)};
  int64_t arena = 0, snapshot = 0;
  const NumberList memory = memory_of_ranks(cluster, run.layout);
  const NumberList* devices = interned(memory);  // ranks with equal memory
  bool disk = false, host = false;
  for (const StageArena& a : largest_arenas(run, schedule, threads, cluster, kEndlessArena, devices)) {
    Booking b = book_stage(run, schedule, threads, cluster, a.pp_rank);
    const int64_t more = devices ? memory[size_t(a.pp_rank)] - cluster.memory_bytes : 0;
    arena = std::max(arena, b.arena_bytes - more);
    snapshot = std::max(snapshot, b.snapshot_bytes);
    for (const Piece& p : b.tape.pieces) disk |= of_disk(p), host |= of_host(p);
    q.alone_s = std::max(q.alone_s, seconds_alone(std::move(b.tape), run, priced));
    q.booked++;
  }
  q.bytes = arena + (has_own_devices(cluster) ? 0 : snapshot);
  q.offload_priced = (!disk || cluster.disk_bandwidth > 0) && (!host || cluster.host_bandwidth > 0);
  q.wire_priced = run.world() == 1 || links_known(forecast_links(run, cluster)) || wires_stated(cluster);
  return q;
}

}  // namespace trireme
