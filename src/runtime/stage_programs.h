// The rank's programs, lowered from the shape of its layers and how replicas share them.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "program/lower.h"
#include "runtime/sharing.h"

namespace trireme {

class StagePrograms {
 public:
  // shape: layers and stages, with `units` of the set of parameters. schedules: those of the run, lowered
  // here; empty: programs are lowered as step lists come. holders: null if the rank has all stages.
  // settle_at: LowerInput's. Holders and sharing outlive this.
  StagePrograms(const RunSpec&, bool trains, const Sharing&, std::span<const Schedule> schedules,
                const Holders* holders, RankShape shape, std::vector<UnitShape> units, const ParamSet&,
                std::optional<size_t> settle_at);

  // The program of a step with these actions. A pipeline has those of its schedules alone.
  const Program& of(std::span<const Action>);
  // Likewise, of a part of a pipeline's microbatches. send_ends: LowerInput's.
  const Program& of_part(std::span<const Action>, std::span<const int> send_ends);
  const Program& forward() const { return forward_; }  // evaluation and generation
  const RankShape& shape() const { return shape_; }
  const ShardPolicy& policy() const { return policy_; }
  std::span<const std::unique_ptr<const Program>> all() const { return steps_; }

 private:
  const Program* known(std::span<const Action>) const;  // null: none
  Program lower_step(std::span<const Action>, std::span<const int> send_ends) const;

  const Holders* holders_;
  size_t rank_;  // in the pipeline
  std::span<const Schedule> schedules_;
  std::optional<size_t> settle_at_;
  RankShape shape_;
  ShardPolicy policy_;
  // One per schedule; then, without a pipeline, one per other list of actions.
  std::vector<std::unique_ptr<const Program>> steps_;
  Program forward_;
};

}  // namespace trireme
