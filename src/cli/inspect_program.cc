#include "cli/inspect_program.h"

#include <map>

#include "cli/describe.h"
#include "runtime/composed_booking.h"
#include "spec/run_schedule.h"

namespace trireme::cli {
namespace {

Description json_of(const Program& p, const Op& op) {
  Description d = {{"kind", name_of(op.kind)}};
  if (op.mb >= 0) d["microbatch"] = op.mb;
  if (op.stage >= 0) d["stage"] = op.stage;
  if (op.layer >= 0) d["layer"] = p.layers[size_t(op.layer)];
  if (op.unit >= 0) d["unit"] = p.units[size_t(op.unit)];
  if (op.last > op.unit + 1) d["last_unit"] = p.units[size_t(op.last) - 1];
  if (op.peer >= 0) {
    d["peer"] = op.peer;
    d["gradient"] = op.back;
  }
  if (op.kind == OpKind::retire) d["adds"] = op.adds;
  if (op.after >= 0) d["after"] = op.after;
  return d;
}

// listed: empty if the run's memory does not compose.
Description json_of(const Program& p, int rank, const PlacedCalls& listed) {
  Description d = {{"pipeline_rank", rank}, {"operations", Description::array()}};
  for (size_t i = 0; i < p.ops.size(); i++) {
    Description op = json_of(p, p.ops[i]);
    if (i + 1 < listed.booked.size()) op["bytes_after"] = listed.booked[i + 1];
    d["operations"].push_back(std::move(op));
  }
  Description& actions = d["actions"] = Description::array();
  for (const ActionOps& a : p.actions)
    actions.push_back({{"action", to_text(a.action)}, {"begin", a.begin}, {"end", a.end}});
  return d;
}

// How many operations of each kind, by pipeline rank.
std::string counts_text(const std::vector<Program>& all) {
  std::string s = fmt::format("{:<12}", "operations");
  for (size_t r = 0; r < all.size(); r++) s += fmt::format(" {:>8}", fmt::format("rank {}", r));
  for (size_t k = 0; k < kOpKinds; k++) {
    std::vector<int64_t> counts;
    for (const Program& p : all)
      counts.push_back(
          std::count_if(p.ops.begin(), p.ops.end(), [&](const Op& op) { return op.kind == OpKind(k); }));
    if (std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n == 0; })) continue;
    s += fmt::format("\n{:<12}", name_of(OpKind(k)));
    for (const int64_t n : counts) s += fmt::format(" {:>8}", n);
  }
  return s + "\n";
}

}  // namespace

void print_programs(const RunRequest& request) {
  // A program is a value: a GPU run's needs no GPU here.
  const RunSpec asked = request.as_asked();
  const RunSpec run =
      asked.train.device == "cuda" ? resolve(asked, {.native_bf16 = true}) : resolved_here(asked);
  const Schedule schedule = schedule_of(run);
  const std::vector<Program> all = programs_of(run, schedule);
  std::vector<PlacedCalls> listed(all.size());
  if (composes(run)) {
    LayerTapes tapes;
    const ComposedRun composed(run, schedule, int(std::max<int64_t>(1, run.train.threads)), {}, tapes);
    for (size_t r = 0; r < all.size(); r++) listed[r] = composed.listed(int(r));
  }
  if (request.json) {
    Description d = {{"kind", "program of a step"}, {"path", request.file}, {"ranks", Description::array()}};
    for (size_t r = 0; r < all.size(); r++) d["ranks"].push_back(json_of(all[r], int(r), listed[r]));
    return print_text("{}\n", d.dump());
  }
  print_text("{}", counts_text(all));
  for (size_t r = 0; r < all.size(); r++) print_text("\npipeline rank {}\n{}", r, to_text(all[r], listed[r]));
}

}  // namespace trireme::cli
