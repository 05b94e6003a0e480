#include "measure/price.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "catalog/call_price.h"
#include "comm/algorithms.h"
#include "measure/speeds.h"
#include "mesh/mesh.h"
#include "sim/comb.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Of a step: nanoseconds of many more would not fit 64 bits.
constexpr double kMostSeconds = 1e8;

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

// A call or message between ranks. By alpha and beta a message costs what a hop of a ring between the two
// would.
double talk_seconds(const Tape& tape, const Piece& p, const ClusterSpec& cluster, const RunSpec& run,
                    const CommOptions& links) {
  CommCall c = call_of(p);
  const bool message = p.kind == PieceKind::send;
  const std::vector<int> both = {std::min(tape.rank, p.peer), std::max(tape.rank, p.peer)};
  const std::vector<int>& ranks = message ? both : tape.groups[size_t(p.group)].ranks;
  if (message) c.kind = Collective::p2p;
  if (by_libraries(run, cluster))
    return library_call_seconds(c, ranks, run.world(), cluster, links, run.train.comm == "nccl");
  if (message) c.payload = 2 * c.wire;
  return call_seconds(c, shape_of(ranks, links), links);
}

// What was measured of such a call.
std::optional<double> call_speed(const Speeds& speeds, const Tape& tape, const Piece& p) {
  // A message costs what a hop of a ring between the two would: payload counts both ways.
  if (p.kind == PieceKind::send)
    return speeds.call("p2p", "direct", speeds.ranks(), p.stream != 0, 2.0 * double(p.payload));
  if (p.kind != PieceKind::call) return std::nullopt;
  return speeds.call(p.name, p.algorithm, tape.groups[size_t(p.group)].ranks.size(), p.stream != 0,
                     double(p.payload));
}

double piece_seconds(const Piece& p, int rank, const ClusterSpec& cluster, const RunSpec& run,
                     const std::optional<Speeds>& speeds, double of_step) {
  if (speeds)
    if (const std::optional<double> s = speeds->op(as_filled(p, run, rank), run.precision.compute, of_step))
      return *s;
  return op_seconds(p.name, p.cost, cluster, run.precision.compute).seconds;
}

int64_t ranks_of_a_machine(const RunSpec& run, const CommOptions& links) {
  return links.node == 0 ? run.world() : std::min<int64_t>(links.node, run.world());
}
double disk_seconds(const Cost& c, const ClusterSpec& cluster, int64_t sharing) {
  if (cluster.disk_bandwidth == 0) return 0;
  return double(c.bytes_read + c.bytes_written) * double(sharing) / cluster.disk_bandwidth;
}
// Either way has the bandwidth for itself.
double host_seconds(const Cost& c, const ClusterSpec& cluster) {
  if (cluster.host_bandwidth == 0) return 0;
  return double(c.bytes_read + c.bytes_written) / cluster.host_bandwidth;
}

// Everything that a price depends on where no kernels were measured.
using PriceKey = std::tuple<PieceKind, std::string_view, std::string_view, int32_t, int32_t, int64_t, int64_t,
                            double, int64_t, int64_t>;
PriceKey key_of(const Piece& p) {
  return {p.kind,    p.name, p.algorithm,  p.group,           p.peer,
          p.payload, p.wire, p.cost.flops, p.cost.bytes_read, p.cost.bytes_written};
}

// What goes over the wire while compute goes on takes processor time from it where ranks' threads are as many
// as cores, as they are when they are measured together: rank threads' wires are copies.
double hidden_seconds(const Replay& replay) {
  int64_t most = 0;
  for (const RankReplay& r : replay.ranks) most = std::max(most, r.comm - (r.exposed - r.late));
  return double(most) * 1e-9;
}

// The ranks whose steps differ: with Muon the owners of matrices too, up to so many in all. Beyond, the first
// of each group stands for it; it owns the largest matrix.
constexpr size_t kMostDistinct = 64;

}  // namespace

std::vector<int> distinct_ranks(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  const Mesh mesh = mesh_of(l);
  if (run.known_routing.rows) {  // each rank has rows of its own
    if (run.world() > int64_t(kMostDistinct))
      bad_request("a recorded routing is booked rank by rank, of up to {} ranks, and the run has {}",
                  kMostDistinct, run.world());
    std::vector<int> all(size_t(run.world()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::vector<Axis> axes, same = {Axis::dp};
  if (l.pp > 1) axes.push_back(Axis::pp);                            // other layers
  if (l.cp > 1) axes.push_back(Axis::cp), same.push_back(Axis::cp);  // other blocks of keys
  const std::vector<int> few = mesh.group(0, axes);
  if (run.optimizer.name != "muon") return few;
  if (effective_zero(l) > 0 && l.dp > 1) axes.push_back(Axis::dp);
  if (l.tp > 1) axes.push_back(Axis::tp);
  std::vector<int> ranks;
  for (int r : mesh.group(0, axes))
    if (l.shard_group == 0 || l.cp > 1 || mesh.coord(r, same) < l.shard_group) ranks.push_back(r);
  return ranks.size() <= kMostDistinct ? ranks : few;
}

OpSeconds op_seconds(std::string_view op, const Cost& cost, const ClusterSpec& cluster,
                     std::string_view compute) {
  double peak = cluster.peak_flops(is_product(op) ? compute : "f32");
  if (op == "fp8_matmul") peak = std::max(peak, cluster.peak_flops("fp8"));  // 0 where it is emulated
  const double bandwidth = cluster.memory_bandwidth;
  const double computing = peak > 0 ? cost.flops / peak : 0;
  const double moving = bandwidth > 0 ? double(cost.bytes_read + cost.bytes_written) / bandwidth : 0;
  return {std::max(computing, moving), computing >= moving};
}

ClusterSpec at_the_roof(ClusterSpec c) {
  c.alone = c.together = {};
  return c;
}

std::vector<Price> price(const Tape& tape, const ClusterSpec& cluster, const RunSpec& run) {
  const CommOptions links = forecast_links(run, cluster);
  const Calibration* measured = calibration_of(run, cluster);
  const std::optional<Speeds> speeds = measured ? std::optional<Speeds>(*measured) : std::nullopt;
  std::map<std::string_view, double> of_step;
  if (speeds)
    for (const Piece& p : tape.pieces)
      if (p.kind == PieceKind::op && passes_through_state(p.name)) of_step[p.name] += work_of(p) / tape.steps;
  std::map<PriceKey, double> known;  // calls, and ops without measured rates
  std::vector<Price> prices;
  prices.reserve(tape.pieces.size());
  double all = 0;
  for (const Piece& p : tape.pieces) {
    const auto seconds = [&] {
      std::optional<double> s;
      if (speeds && run.train.comm == "thread") s = call_speed(*speeds, tape, p);
      if (of_disk(p))
        s = disk_seconds(p.cost, cluster, ranks_of_a_machine(run, links));
      else if (of_host(p))
        s = host_seconds(p.cost, cluster);
      else if (p.kind == PieceKind::op)
        s = piece_seconds(p, tape.rank, cluster, run, speeds,
                          passes_through_state(p.name) ? of_step[p.name] : 0);
      else if ((p.kind == PieceKind::call || p.kind == PieceKind::send) && !s)
        s = talk_seconds(tape, p, cluster, run, links);
      return s;
    };
    std::optional<double> s;
    if (speeds) {
      s = seconds();
    } else {
      const auto [it, first] = known.try_emplace(key_of(p), 0.0);
      if (first) it->second = seconds().value_or(0);
      s = it->second;
    }
    const double before = speeds && p.launched ? speeds->between_s() : 0;
    all += before + s.value_or(0);
    if (!(all <= kMostSeconds))
      bad_request(
          "a step of more than {:.0e} s on cluster \"{}\": its peaks, bandwidths, latencies or measured "
          "tables "
          "cannot be right",
          kMostSeconds, cluster.name);
    prices.push_back({.before = nanoseconds(before), .time = nanoseconds(s.value_or(0))});
  }
  return prices;
}

namespace {

// bubble: of the replay, where it is asked for.
Replay replay_ranks(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                    int steps, const KnownTapes& known, double* bubble, const RecordedRanks& recorded = {}) {
  const std::vector<int> ranks = distinct_ranks(run);
  std::vector<Tape> others(ranks.size());
  std::vector<std::vector<Price>> prices;
  std::vector<RankTape> tapes;
  for (size_t i = 0; i < ranks.size(); i++) {
    const auto it =
        std::find_if(known.begin(), known.end(), [&](const Tape* t) { return t->rank == ranks[i]; });
    if (it == known.end()) others[i] = record_training(run, schedule, threads, ranks[i], cluster, steps);
    tapes.push_back({ranks[i], it == known.end() ? &others[i] : *it, {}});
    prices.push_back(price(*tapes[i].tape, cluster, run));
    if (recorded) recorded(int64_t(i) + 1, int64_t(ranks.size()));
  }
  for (size_t i = 0; i < ranks.size(); i++) tapes[i].prices = prices[i];
  Replay all = replay(tapes);
  for (size_t i = 0; bubble && i < tapes.size(); i++)
    *bubble = std::max(*bubble, own_span(stretches_of(tapes[i], all.ranks[i], all.makespan)).bubble());
  return all;
}

}  // namespace

Replay replay_steps(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                    int steps, const Tape* one) {
  return replay_ranks(run, schedule, cluster, threads, steps, one ? KnownTapes{one} : KnownTapes{}, nullptr);
}

StepTime step_time(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                   const Tape& one) {
  return step_time(run, schedule, cluster, threads, KnownTapes{&one});
}

StepTime step_time(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                   const KnownTapes& known, const RecordedRanks& recorded) {
  StepTime t;
  const Replay all = replay_ranks(run, schedule, cluster, threads, 1, known,
                                  run.layout.pp > 1 ? &t.bubble : nullptr, recorded);
  t.step_s = double(all.makespan) * 1e-9;
  if (run.optimizer.post_validation != "off") {
    const Replay two = replay_steps(run, schedule, cluster, threads, 2, nullptr);
    t.step_s = double(two.makespan - all.makespan) * 1e-9;
  }
  const Calibration* c = calibration_of(run, cluster);
  if (c && run.world() > 1 && run.train.device != "cuda") {  // whose wires take nothing from compute
    const double whole = c->*whole_step(divided_axis(run.layout));
    const Beside beside = calls_beside(*known.front());
    t.step_s = (t.step_s + hidden_seconds(all)) * (whole > 0 ? whole : 1) +
               c->beside_s * double(beside.calls) + c->beside_s_per_byte * double(beside.bytes);
  }
  for (const RankReplay& r : all.ranks) {
    t.compute_s = std::max(t.compute_s, double(r.busy) * 1e-9);
    t.comm_s = std::max(t.comm_s, double(r.comm) * 1e-9);
    t.exposed_s = std::max(t.exposed_s, double(r.exposed) * 1e-9);
    t.disk_s = std::max(t.disk_s, double(r.disk) * 1e-9);
    t.exposed_disk_s = std::max(t.exposed_disk_s, double(r.exposed_disk) * 1e-9);
    t.host_s = std::max(t.host_s, double(r.host) * 1e-9);
    t.exposed_host_s = std::max(t.exposed_host_s, double(r.exposed_host) * 1e-9);
  }
  return t;
}

}  // namespace trireme
