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

std::string bytes_of_state(const Explanation& e) {
  std::string s;
  for (const Bucket b : {Bucket::weights, Bucket::grads, Bucket::optimizer})
    s += fmt::format("{}{} {}", s.empty() ? "" : ", ", kBucketNames[size_t(b)],
                     human_bytes(e.state[size_t(b)]));
  return s;
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

std::string others_text(const Explanation& e) {
  if (e.world == 1) return "";
  std::string s = fmt::format("  (of rank {}", e.rank);
  if (e.stages == 1) return s + "; the other ranks do the same)\n";
  s += fmt::format(" of pipeline rank {}, the one whose peak is the largest; calls and bytes of all: ",
                   e.stage);
  std::string list;
  for (const Explanation::OfStage& o : e.of_stages)
    list += fmt::format("{}pipeline rank {} {} and {}", list.empty() ? "" : ", ", o.stage, o.calls,
                        human_bytes(o.wire));
  return s + list + ")\n";
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
  e.expected = f.expected && !f.closed_form, e.wire_priced = f.wire_priced;
  if (f.wire_priced) e.comm_s = f.time.comm_s, e.exposed_s = f.time.exposed_s;
  return e;
}

std::string explain_text(const Explanation& e) {
  std::string s = fmt::format("where do the parameters live?\n  {}\n  of {} parameters this rank keeps {}\n",
                              e.parameters_are, human_count(double(e.parameters)), bytes_of_state(e));
  s += fmt::format(
      "where do the activations live?\n  {}\n  at their peak {}, {} of it when all is at its peak\n",
      e.activations_are, human_bytes(e.activations), human_bytes(e.at_peak));
  s += "when do ranks synchronise?\n";
  if (e.meetings.empty()) s += "  never: there is one rank\n";
  s += others_text(e);
  for (const Meeting& m : e.meetings)
    s += fmt::format("  {:<11} {:<22} of {:>5} ranks {:>7} times {:>10}  {}\n", m.action,
                     m.group + " " + m.collective, m.ranks, m.calls, human_bytes(m.wire),
                     m.beside ? "beside compute" : "compute waits");
  s += "how much is computing?\n";
  if (e.step_s == 0)
    return s + "  not known: the cluster file has no peaks (`trireme bench` measures them)\n";
  s += fmt::format("  {:.1f} % of a step's {}{}; ", 100 * e.computing(), human_seconds(e.step_s),
                   e.expected ? "" : " at the roof");
  if (!e.wire_priced) return s + "the wire takes no time in it: no alpha and beta of these links are known\n";
  const std::string wire = human_seconds(e.comm_s), waits = human_seconds(e.exposed_s);
  if (e.exposed_s > e.comm_s)  // most of it for ranks that have not come so far
    return s + fmt::format("on the wire {}; compute waits {} for it and for the ranks at its other end\n",
                           wire, waits);
  return s + fmt::format("on the wire {}, of which compute waits for {}\n", wire, waits);
}

std::string explain_json(const Explanation& e) {
  nlohmann::ordered_json j;
  j["parameters"] = {{"count", e.parameters}, {"where", e.parameters_are}};
  for (const Bucket b : {Bucket::weights, Bucket::grads, Bucket::optimizer})
    j["parameters"][std::string(kBucketNames[size_t(b)])] = e.state[size_t(b)];
  j["activations"] = {{"where", e.activations_are},
                      {"peak", e.activations},
                      {"at_peak", e.at_peak},
                      {"in_flight", e.in_flight}};
  j["rank"] = e.rank, j["pipeline_rank"] = e.stage;
  for (const Explanation::OfStage& o : e.of_stages)
    j["by_pipeline_rank"].push_back(
        {{"pipeline_rank", o.stage}, {"rank", o.rank}, {"calls", o.calls}, {"wire", o.wire}});
  j["synchronise"] = nlohmann::ordered_json::array();
  for (const Meeting& m : e.meetings)
    j["synchronise"].push_back({{"action", m.action},
                                {"group", m.group},
                                {"collective", m.collective},
                                {"ranks", m.ranks},
                                {"calls", m.calls},
                                {"wire", m.wire},
                                {"beside_compute", m.beside}});
  j["computing"] = {{"share", e.computing()},
                    {"step_s", e.step_s},
                    {"compute_s", e.compute_s},
                    {"comm_s", nullptr},
                    {"exposed_comm_s", nullptr}};
  if (e.wire_priced) j["computing"]["comm_s"] = e.comm_s, j["computing"]["exposed_comm_s"] = e.exposed_s;
  return j.dump(2);
}

}  // namespace trireme
