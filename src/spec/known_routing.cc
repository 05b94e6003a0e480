#include "spec/known_routing.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/printable.h"

namespace trireme {

RoutingShape routing_shape_of(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  return {.dp = l.dp,
          .tp = l.tp,
          .pp = l.pp,
          .cp = l.cp,
          .ep = l.ep,
          .layers = run.model.layers,
          .experts = run.model.experts,
          .choices = run.model.experts_per_token,
          .micro = run.batch.micro,
          .global = run.batch.global,
          .seq_len = run.data.seq_len,
          .order = l.order};
}

void set_known_routing(RunSpec& run, const RecordedRows& recorded, int64_t step, std::string_view from) {
  if (run.layout.ep == 1)
    bad_request(
        "{}: with layout.ep = 1 no rows travel and nothing follows from what routers choose; leave it out",
        from);
  const RoutingShape wanted = routing_shape_of(run);
  for (const RoutingShape::Key& k : RoutingShape::keys())
    if (recorded.shape.*k.value != wanted.*k.value)
      bad_request("{} was recorded with {} = {}, and the run has {}: rows of another layout are others", from,
                  k.name, recorded.shape.*k.value, wanted.*k.value);
  if (recorded.shape.order != wanted.order)
    bad_request(
        "{} was recorded with order = \"{}\", and the run has \"{}\": rows of another layout are others",
        from, printable(recorded.shape.order), wanted.order);
  if (recorded.steps.empty()) bad_request("{} holds no step", from);
  const auto it = step == 0 ? std::prev(recorded.steps.end()) : recorded.steps.find(step);
  if (it == recorded.steps.end())
    bad_request("{} has no step {}; it has {} of steps {} to {}", from, step, recorded.steps.size(),
                recorded.steps.begin()->first, recorded.steps.rbegin()->first);
  run.known_routing = {.rows = it->second, .step = it->first};
}

double known_load(const RunSpec& run) {
  if (!run.known_routing.rows) return 1;
  const Mesh mesh = mesh_of(run.layout);
  std::set<std::vector<int>> groups;
  for (int r = 0; r < mesh.world(); r++) groups.insert(mesh.group(r, std::array{Axis::ep}));
  const std::vector<std::vector<int>> all(groups.begin(), groups.end());
  return run.known_routing.rows->fullest(all);
}

}  // namespace trireme
