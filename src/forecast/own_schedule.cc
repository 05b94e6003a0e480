#include "forecast/own_schedule.h"

#include <algorithm>

#include "measure/price.h"
#include "mesh/mesh.h"
#include "sim/find_schedule.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// One whose machine computes, at whatever speed.
ClusterSpec with_peaks(ClusterSpec c, const RunSpec& run) {
  constexpr double kAnyPeak = 1e12;
  if (c.peak_flops(run.precision.compute) > 0 && c.peak_flops("f32") > 0) return c;
  c.peak.f32 = c.peak.bf16 = kAnyPeak;
  return c;
}

// Time of the rank's compute in actions of that kind on microbatch mb, without waiting for neighbours.
int64_t time_in(const Tape& tape, const RankReplay& times, std::string_view action, int mb) {
  int64_t sum = 0;
  for (size_t i = 0; i < tape.pieces.size(); i++) {
    const Piece& p = tape.pieces[i];
    if (p.stream == 0 && p.kind != PieceKind::recv && p.action == action && p.microbatch == mb)
      sum += times.pieces[i].end - times.pieces[i].begin;
  }
  return sum;
}

int64_t longest_message(const Tape& tape, std::span<const Price> prices) {
  int64_t most = 0;
  for (size_t i = 0; i < tape.pieces.size(); i++)
    if (tape.pieces[i].kind == PieceKind::send) most = std::max(most, prices[i].time);
  return most;
}

}  // namespace

std::vector<StageTimes> stage_times(const RunSpec& run, const ClusterSpec& cluster) {
  // Two microbatches: the second of a step adds to gradients, as all but the first do.
  RunSpec probe = run;
  const int64_t microbatches = std::min<int64_t>(2, run.microbatches());
  probe.layout.schedule = "zb-h1", probe.layout.schedule_file.clear(), probe.layout.in_flight = 0;
  if (probe.layout.recompute == "auto")  // not chosen yet
    probe.layout.recompute = "none", probe.layout.recompute_limit = 0, probe.layout.recompute_shard = false;
  probe.batch.global = run.layout.dp * run.batch.micro * microbatches;
  const Schedule schedule = schedule_of(probe);
  const ClusterSpec priced = with_peaks(cluster, run);
  const Mesh mesh = mesh_of(run.layout);
  static constexpr Axis kStages[] = {Axis::pp, Axis::cp};  // ranks of cp have other blocks of keys
  const std::vector<int> ranks = mesh.group(0, kStages);
  std::vector<Tape> tapes;
  std::vector<std::vector<Price>> prices;
  for (int r : ranks) {
    tapes.push_back(record_training(probe, schedule, 1, r, priced));  // threads change no price
    prices.push_back(price(tapes.back(), priced, probe));
  }
  std::vector<RankTape> step;
  for (size_t i = 0; i < ranks.size(); i++) step.push_back({ranks[i], &tapes[i], prices[i]});
  const Replay all = replay(step);
  std::vector<StageTimes> times(size_t(run.layout.pp), {.forward = 0, .input = 0, .weight = 0});
  for (size_t i = 0; i < ranks.size(); i++) {
    StageTimes& t = times[size_t(mesh.coord(ranks[i], Axis::pp))];
    const auto spent = [&](std::string_view action) {
      return time_in(tapes[i], all.ranks[i], action, int(microbatches) - 1);
    };
    t.forward = std::max(t.forward, spent("F")), t.weight = std::max(t.weight, spent("W"));
    t.input = std::max(t.input, spent("I") + spent("R"));
    t.send = std::max(t.send, longest_message(tapes[i], prices[i]));
  }
  return times;
}

void find_own_schedule(RunSpec& run, const ClusterSpec& cluster) {
  if (run.own_schedule.actions) return;
  read_own_schedule(run);
  if (run.layout.schedule != "auto") return;
  const int64_t most = run.layout.in_flight > 0 ? run.layout.in_flight : run.layout.pp;
  const std::vector<HeldLimit> limits(size_t(run.layout.pp), {.most = most});
  set_own_schedule(run, find_schedule(stage_times(run, cluster), int(run.microbatches()), limits, Aim::step),
                   "layout.schedule = \"auto\"");
}

}  // namespace trireme
