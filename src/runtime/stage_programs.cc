#include "runtime/stage_programs.h"

#include <algorithm>

#include "schedule/holders.h"

namespace trireme {

StagePrograms::StagePrograms(const RunSpec& run, bool trains, const Sharing& sharing,
                             std::span<const Schedule> schedules, const Holders* holders, RankShape shape,
                             std::vector<UnitShape> units, const ParamSet& params,
                             std::optional<size_t> settle_at)
    : holders_(holders),
      rank_(size_t(sharing.pp.rank)),
      schedules_(schedules),
      settle_at_(settle_at),
      shape_(std::move(shape)) {
  shape_.units = std::move(units);
  shape_.units.resize(params.units.size());
  for (size_t u = 0; u < params.units.size(); u++) {
    const Unit& unit = params.units[u];
    shape_.units[u].name = shape_.layers[unit.layer].name +
                           (unit.experts  ? ".experts"
                            : unit.shared ? ".tied"
                                          : "") +
                           (unit.frozen ? ".frozen" : "");
  }
  policy_ = {.zero = sharing.zero,
             .prefetch = run.layout.prefetch * (params.trained < params.numel ? 2 : 1),
             .reshard_last = run.layout.reshard_last,
             .experts_in_weight = sharing.layers.ep != nullptr,
             .casts = trains && sharing.world > 1 && run.precision.reduce != run.precision.grads,
             .bucket_bytes = int64_t(run.layout.bucket_mb * 1e6),
             .offloads_inputs = trains && run.layout.offloads_inputs(),
             .interleaves = run.layout.interleave && (sharing.tp.group || sharing.layers.ep)};
  std::vector<int> stages;
  for (const StageShape& s : shape_.stages)
    if (!holders || holders->rank_of(s.stage, 0) == sharing.pp.rank) stages.push_back(s.stage);
  forward_ = lower_forward(stages, holders, sharing.pp.rank, shape_, policy_);
  for (const Schedule& s : trains ? schedules : std::span<const Schedule>())
    steps_.push_back(std::make_unique<const Program>(lower_step(s.ranks.at(rank_), send_ends(s).at(rank_))));
}

Program StagePrograms::lower_step(std::span<const Action> actions, std::span<const int> send_ends) const {
  Program p =
      lower({.actions = actions, .holders = holders_, .send_ends = send_ends, .settle_at = settle_at_},
            shape_, policy_);
  check_program(p, shape_);
  return p;
}

const Program* StagePrograms::known(std::span<const Action> actions) const {
  const auto same = [](const Action& a, const ActionOps& b) { return a == b.action; };
  for (const auto& p : steps_)
    if (std::equal(actions.begin(), actions.end(), p->actions.begin(), p->actions.end(), same))
      return p.get();
  return nullptr;
}

const Program& StagePrograms::of_part(std::span<const Action> actions, std::span<const int> send_ends) {
  if (const Program* p = known(actions)) return *p;
  steps_.push_back(std::make_unique<const Program>(lower_step(actions, send_ends)));
  return *steps_.back();
}

const Program& StagePrograms::of(std::span<const Action> actions) {
  if (const Program* p = known(actions)) return *p;
  // Other actions of a pipeline send the same messages in the same places.
  std::vector<int> ends;
  for (const Schedule& s : schedules_)
    if (holders_ && s.ranks.at(rank_).size() == actions.size()) ends = send_ends(s).at(rank_);
  require(!holders_ || !ends.empty(), "the actions of another schedule than the layout's");
  steps_.push_back(std::make_unique<const Program>(lower_step(actions, ends)));
  return *steps_.back();
}

}  // namespace trireme
