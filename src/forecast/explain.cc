#include "forecast/explain.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/json.h"
#include "base/progress.h"
#include "mesh/mesh.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

std::string outside(const LayoutSpec& l) {
  return l.offload_to == "host" ? "the host's memory" : "a file";
}

std::string whereabouts_of_parameters(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  const int zero = effective_zero(l);
  std::vector<std::string> parts;
  if (l.pp > 1)
    parts.push_back(fmt::format("layers are divided over {} pipeline ranks{}", l.pp,
                                has_copies(run) ? ", each layer on more than one of them" : ""));
  if (l.tp > 1) parts.push_back(fmt::format("each layer's matrices over {} tensor parallel ranks", l.tp));
  if (l.ep > 1) parts.push_back(fmt::format("experts, whole, over {} expert parallel ranks", l.ep));
  const int64_t replicas = replicas_of(l);
  if (replicas > 1) {
    const int64_t group = zero > 0 && l.shard_group > 0 ? l.shard_group : replicas;
    static constexpr const char* kDivided[] = {"nothing", "optimizer state", "optimizer state and gradients",
                                               "weights, gradients and optimizer state"};
    parts.push_back(zero == 0 ? fmt::format("each of {} replicas has all of it", replicas)
                              : fmt::format("{} over {} of {} replicas (ZeRO {})", kDivided[zero], group,
                                            replicas, zero));
    if (zero == 3)
      parts.push_back(l.reshard_after_forward
                          ? "a layer's weights are whole from its gather to its last use"
                          : "a layer's weights are whole from its forward to its backward");
  }
  if (l.offload == "state" || l.offload == "all") parts.push_back("optimizer state waits in " + outside(l));
  return parts.empty() ? "all on the one rank" : fmt::format("{}", fmt::join(parts, "; "));
}

std::string whereabouts_of_activations(const RunSpec& run, const std::vector<int>& in_flight) {
  const LayoutSpec& l = run.layout;
  std::vector<std::string> parts = {
      fmt::format("microbatches of {} x {} tokens", run.batch.micro, run.data.seq_len)};
  if (l.cp > 1) parts.push_back(fmt::format("sequences over {} context parallel ranks", l.cp));
  if (l.tp > 1)
    parts.push_back(
        l.sequence
            ? fmt::format("heads, feed-forward and rows over {} ranks", l.tp)
            : fmt::format("heads and feed-forward over {} ranks, the residual stream whole on each", l.tp));
  if (l.pp > 1) parts.push_back(fmt::format("stages hold up to {} microbatches", fmt::join(in_flight, ", ")));
  if (l.recompute == "full") parts.push_back("of a block its input is kept, the rest computed again");
  if (l.recompute == "selective")
    parts.push_back(fmt::format("{} are computed again", fmt::join(l.recompute_tensors, ", ")));
  if (l.offload == "inputs" || l.offload == "all") parts.push_back("kept inputs wait in " + outside(l));
  return fmt::format("{}", fmt::join(parts, "; "));
}
}  // namespace

std::vector<Meeting> meetings_of(const Tape& t) {
  std::map<std::tuple<std::string, std::string, std::string>, Meeting> all;
  std::vector<std::tuple<std::string, std::string, std::string>> order;
  for (const Piece& p : t.pieces) {
    const bool message = p.kind == PieceKind::send || p.kind == PieceKind::recv;
    if (p.kind != PieceKind::call && !message) continue;
    const std::string group = message ? "pp" : t.groups[size_t(p.group)].name;
    const std::string what = message ? (p.kind == PieceKind::send ? "send" : "recv") : std::string(p.name);
    const auto key = std::tuple(group, what, std::string(p.action));
    const auto [it, fresh] = all.try_emplace(key);
    Meeting& m = it->second;
    if (fresh) {
      order.push_back(key);
      m = {.group = group, .collective = what, .action = std::string(p.action)};
      m.ranks = message ? 2 : int64_t(t.groups[size_t(p.group)].ranks.size());
      m.beside = true;
    }
    m.calls++, m.wire += p.wire;
    m.beside = m.beside && p.stream != 0;
  }
  std::vector<Meeting> list;
  list.reserve(order.size());
  for (const auto& key : order) list.push_back(all.at(key));
  return list;
}

int most_in_flight(const Schedule& s, int pp_rank) {
  std::set<std::pair<int, int>> open;  // stage, microbatch
  size_t most = 0;
  for (const Action& a : s.ranks[size_t(pp_rank)]) {
    if (a.kind == Act::F) open.emplace(a.stage, a.mb);
    if (a.kind == Act::B || a.kind == Act::W) open.erase({a.stage, a.mb});
    most = std::max(most, open.size());
  }
  return int(most);
}
namespace {

// What the ranks of each stage say to others: the first of each stands for it (under AdamW its replicas say
// as much, but for the parts of the norm).
std::vector<Explanation::OfStage> meetings_by_stage(const RunSpec& run, const Schedule& schedule, int threads,
                                                    const ClusterSpec& cluster) {
  std::vector<Explanation::OfStage> all;
  const Mesh mesh = mesh_of(run.layout);
  for (int stage = 0; stage < int(run.layout.pp); stage++) {
    int rank = 0;
    while (mesh.coord(rank, Axis::pp) != stage) rank++;
    Explanation::OfStage of{.rank = rank, .stage = stage};
    for (const Meeting& m : meetings_of(record_training(run, schedule, threads, rank, cluster)))
      of.calls += m.calls, of.wire += m.wire;
    all.push_back(of);
  }
  return all;
}
}  // namespace

Explanation explain(const RunSpec& run, const Schedule& schedule, const Forecast& f, int threads,
                    const ClusterSpec& cluster) {
  Explanation e;
  e.rank = f.booking.tape.rank, e.stage = mesh_of(run.layout).coord(e.rank, Axis::pp);
  e.world = run.world(), e.stages = run.layout.pp;
  if (e.stages > 1) e.of_stages = meetings_by_stage(run, schedule, threads, cluster);
  e.state = f.booking.state, e.parameters = f.booking.parameters;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) e.in_flight.push_back(most_in_flight(schedule, int(r)));
  e.parameters_are = whereabouts_of_parameters(run);
  e.activations_are = whereabouts_of_activations(run, e.in_flight);
  e.activations = f.booking.peak[size_t(Bucket::activations)];
  e.at_peak = f.booking.at_peak[size_t(Bucket::activations)];
  e.meetings = meetings_of(f.booking.tape);
  // Computing and waits are those of the replayed step.
  e.step_s = f.closed_form ? f.time.step_s : f.step_s;
  e.compute_s = f.time.compute_s;
  e.replayed = f.replayed;
  e.expected = f.expected && !f.closed_form, e.wire_priced = f.wire_priced;
  if (f.wire_priced) e.comm_s = f.time.comm_s, e.exposed_s = f.time.exposed_s;
  return e;
}

}  // namespace trireme
