// Explanations in words and as JSON.
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

std::string bytes_of_state(const Explanation& e) {
  std::string s;
  for (const Bucket b : {Bucket::weights, Bucket::grads, Bucket::optimizer})
    s += fmt::format("{}{} {}", s.empty() ? "" : ", ", kBucketNames[size_t(b)],
                     human_bytes(e.state[size_t(b)]));
  return s;
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
  if (!e.replayed) return s + "  not known: the tapes of all ranks are too large to replay\n";
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
