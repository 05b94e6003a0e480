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

// The ranks whose steps differ.
std::vector<int> distinct_ranks(const RunSpec& run) {
  static constexpr Axis kDp[] = {Axis::dp}, kCp[] = {Axis::cp};
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
    if (p.kind == PieceKind::op) s = op_seconds(p.name, p.cost, cluster, run.precision.compute).seconds;
    if (p.kind == PieceKind::call)
      s = call_seconds(call_of(p), shape_of(tape.groups[size_t(p.group)].ranks, links), links);
    prices.push_back({.before = 0, .time = nanoseconds(s)});
  }
  return prices;
}

StepTime step_time(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                   const Tape& rank0) {
  const std::vector<int> ranks = distinct_ranks(run);
  std::vector<Tape> others;
  for (size_t i = 1; i < ranks.size(); i++)
    others.push_back(record_training(run, schedule, threads, ranks[i], cluster));
  std::vector<std::vector<Price>> prices;
  for (size_t i = 0; i < ranks.size(); i++) prices.push_back(price(i ? others[i - 1] : rank0, cluster, run));
  std::vector<RankTape> tapes;
  for (size_t i = 0; i < ranks.size(); i++)
    tapes.push_back({ranks[i], i ? &others[i - 1] : &rank0, prices[i]});
  const Replay all = replay(tapes);
  StepTime t{.step_s = double(all.makespan) * 1e-9};
  for (const RankReplay& r : all.ranks) {
    t.compute_s = std::max(t.compute_s, double(r.busy) * 1e-9);
    t.comm_s = std::max(t.comm_s, double(r.comm) * 1e-9);
    t.exposed_s = std::max(t.exposed_s, double(r.exposed) * 1e-9);
  }
  return t;
}

}  // namespace trireme
