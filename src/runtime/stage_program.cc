// The rank's programs, lowered from the runner's layers and sharing.
#include <algorithm>

#include "runtime/microbatch.h"
#include "runtime/post_validation.h"
#include "spec/run_schedule.h"

namespace trireme {

// Layers and their units are listed already (find_units).
void StageRunner::lower_programs() {
  if (sync_) shape_.units = sync_->shapes();
  shape_.units.resize(params_.units.size());
  for (size_t u = 0; u < params_.units.size(); u++) {
    const Unit& unit = params_.units[u];
    shape_.units[u].name = shape_.layers[unit.layer].name +
                           (unit.experts  ? ".experts"
                            : unit.shared ? ".tied"
                                          : "") +
                           (unit.frozen ? ".frozen" : "");
  }
  for (size_t l = 0; l < shape_.layers.size(); l++) shape_.layers[l].recomputes = recompute_[l].any();
  for (const Chunk& c : chunks_) shape_.stages.push_back({c.stage, c.first, c.last, c.embedding, c.head});
  shape_.tied = run_.model.tied;
  policy_ = {.zero = sharing_.zero,
             .prefetch = run_.layout.prefetch * (params_.trained < params_.numel ? 2 : 1),
             .reshard_last = run_.layout.reshard_last,
             .experts_in_weight = sharing_.layers.ep != nullptr,
             .casts = sync_ && comms_ && dtype_from_name(run_.precision.reduce) != grad_dtype_,
             .bucket_bytes = int64_t(run_.layout.bucket_mb * 1e6),
             .offloads_inputs = mode_ == RunMode::train && run_.layout.offloads_inputs(),
             .interleaves = run_.layout.interleave && (sharing_.layers.tp || sharing_.layers.ep)};
  std::vector<int> stages;
  for (const Chunk& c : chunks_)
    if (passes(c, 0)) stages.push_back(c.stage);
  const Holders* holders = pipeline_ ? &pipeline_->holders() : nullptr;
  forward_ = lower_forward(stages, holders, sharing_.pp.rank, shape_, policy_);
  if (mode_ != RunMode::train) return;
  for (const Schedule& s : schedules_) {
    const auto rank = size_t(sharing_.pp.rank);
    programs_.push_back(std::make_unique<const Program>(lower_step(s.ranks.at(rank), send_ends(s).at(rank))));
    const auto has_pairs = [](const ActionOps& a) { return a.interleaved > 0; };
    const std::vector<ActionOps>& all = programs_.back()->actions;
    if (sharing_.layers.tp && std::any_of(all.begin(), all.end(), has_pairs))
      sharing_.layers.tp_stream = device_.stream("tp");
  }
}

Program StageRunner::lower_step(std::span<const Action> actions, std::span<const int> send_ends) const {
  LowerInput in{.actions = actions, .send_ends = send_ends};
  if (pipeline_) in.holders = &pipeline_->holders();
  if (post_) in.settle_at = size_t(post_->point.action);
  Program p = lower(in, shape_, policy_);
  check_program(p, shape_);
  return p;
}

const Program& StageRunner::program_of(std::span<const Action> actions) {
  const auto same = [](const Action& a, const ActionOps& b) { return a == b.action; };
  for (const auto& known : programs_)
    if (std::equal(actions.begin(), actions.end(), known->actions.begin(), known->actions.end(), same))
      return *known;
  // Other actions of a pipeline send the same messages in the same places.
  std::vector<int> ends;
  const auto rank = size_t(sharing_.pp.rank);
  for (const Schedule& s : schedules_)
    if (pipeline_ && s.ranks.at(rank).size() == actions.size()) ends = send_ends(s).at(rank);
  require(!pipeline_ || !ends.empty(), "the actions of another schedule than the layout's");
  programs_.push_back(std::make_unique<const Program>(lower_step(actions, ends)));
  return *programs_.back();
}

}  // namespace trireme
