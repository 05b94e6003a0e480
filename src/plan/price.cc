#include "plan/price.h"

#include <algorithm>
#include <cmath>

#include "comm/algorithms.h"
#include "mesh/mesh.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

int64_t nanoseconds(double s) {
  return std::llround(s * 1e9);
}

CommCall call_of(const Piece& p) {
  CommCall c;
  for (size_t k = 0; k < kCollectives; k++)
    if (name_of(Collective(k)) == p.name) c.kind = Collective(k);
  c.algorithm = p.algorithm, c.payload = p.payload, c.wire = p.wire;
  return c;
}

// A message costs what a hop of a ring between the two would.
double message_seconds(const Tape& tape, const Piece& p, const CommOptions& links) {
  const std::vector<int> both = {std::min(tape.rank, p.peer), std::max(tape.rank, p.peer)};
  CommCall c = call_of(p);
  c.payload = 2 * c.wire;
  return call_seconds(c, shape_of(both, links), links);
}

int64_t ranks_of_a_machine(const RunSpec& run, const CommOptions& links) {
  return links.node == 0 ? run.world() : std::min<int64_t>(links.node, run.world());
}
double disk_seconds(const Cost& c, const ClusterSpec& cluster, int64_t sharing) {
  if (cluster.disk_bandwidth == 0) return 0;
  return double(c.bytes_read + c.bytes_written) * double(sharing) / cluster.disk_bandwidth;
}

// The ranks whose steps differ.
std::vector<int> distinct_ranks(const RunSpec& run) {
  static constexpr Axis kDp[] = {Axis::dp}, kCp[] = {Axis::cp}, kPp[] = {Axis::pp, Axis::cp};
  if (run.layout.pp > 1) return mesh_of(run.layout).group(0, kPp);  // other layers
  if (run.layout.cp > 1) return mesh_of(run.layout).group(0, kCp);  // other blocks of keys
  if (run.optimizer.name != "muon" || effective_zero(run.layout) == 0) return {0};
  const std::vector<int> replicas = mesh_of(run.layout).group(0, kDp);
  const int64_t group = run.layout.shard_group;
  const size_t n = group > 0 ? size_t(group) : replicas.size();
  return {replicas.begin(), replicas.begin() + std::ptrdiff_t(std::min(n, replicas.size()))};
}

}  // namespace

OpSeconds op_seconds(std::string_view op, const Cost& cost, const ClusterSpec& cluster,
                     std::string_view compute) {
  const bool matrix = op == "matmul" || op.starts_with("grouped_matmul") || op.starts_with("attention");
  const double peak = cluster.peak_flops(matrix ? compute : "f32"), bandwidth = cluster.memory_bandwidth;
  const double computing = peak > 0 ? cost.flops / peak : 0;
  const double moving = bandwidth > 0 ? double(cost.bytes_read + cost.bytes_written) / bandwidth : 0;
  return {std::max(computing, moving), computing >= moving};
}

std::vector<Price> price(const Tape& tape, const ClusterSpec& cluster, const RunSpec& run) {
  const CommOptions links = options_of(run, cluster);
  std::vector<Price> prices;
  prices.reserve(tape.pieces.size());
  for (const Piece& p : tape.pieces) {
    double s = 0;
    if (of_disk(p))
      s = disk_seconds(p.cost, cluster, ranks_of_a_machine(run, links));
    else if (p.kind == PieceKind::op)
      s = op_seconds(p.name, p.cost, cluster, run.precision.compute).seconds;
    if (p.kind == PieceKind::call)
      s = call_seconds(call_of(p), shape_of(tape.groups[size_t(p.group)].ranks, links), links);
    if (p.kind == PieceKind::send) s = message_seconds(tape, p, links);
    prices.push_back({.before = 0, .time = nanoseconds(s)});
  }
  return prices;
}

Replay replay_steps(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                    int steps, const Tape* one) {
  const std::vector<int> ranks = distinct_ranks(run);
  std::vector<Tape> others(ranks.size());
  std::vector<std::vector<Price>> prices;
  std::vector<RankTape> tapes;
  for (size_t i = 0; i < ranks.size(); i++) {
    const bool known = one && ranks[i] == one->rank;
    if (!known) others[i] = record_training(run, schedule, threads, ranks[i], cluster, steps);
    prices.push_back(price(known ? *one : others[i], cluster, run));
  }
  for (size_t i = 0; i < ranks.size(); i++)
    tapes.push_back({ranks[i], one && ranks[i] == one->rank ? one : &others[i], prices[i]});
  return replay(tapes);
}

StepTime step_time(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                   const Tape& one) {
  const Replay all = replay_steps(run, schedule, cluster, threads, 1, &one);
  StepTime t{.step_s = double(all.makespan) * 1e-9};
  if (run.optimizer.post_validation != "off") {
    const Replay two = replay_steps(run, schedule, cluster, threads, 2, nullptr);
    t.step_s = double(two.makespan - all.makespan) * 1e-9;
  }
  for (const RankReplay& r : all.ranks) {
    t.compute_s = std::max(t.compute_s, double(r.busy) * 1e-9);
    t.comm_s = std::max(t.comm_s, double(r.comm) * 1e-9);
    t.exposed_s = std::max(t.exposed_s, double(r.exposed) * 1e-9);
    t.disk_s = std::max(t.disk_s, double(r.disk) * 1e-9);
    t.exposed_disk_s = std::max(t.exposed_disk_s, double(r.exposed_disk) * 1e-9);
  }
  return t;
}

}  // namespace trireme
