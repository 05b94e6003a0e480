#include "spec/run_schedule.h"

namespace trireme {

int64_t replicas_of(const LayoutSpec& l) {
  return l.dp * l.cp;
}
ContextPlacement placement_of(const LayoutSpec& l) {
  return l.cp_method == "ulysses" ? ContextPlacement::contiguous : context_placement(l.cp_placement);
}

int effective_zero(const LayoutSpec& l) {
  return replicas_of(l) == 1 || l.shard_group == 1 ? 0 : int(l.zero);
}

Schedule schedule_of(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  Schedule s = make_schedule(l.schedule, int(l.pp), int(l.chunks), int(run.microbatches()));
  if (l.recompute != "none") s = add_recompute(std::move(s), {}, true);
  s = add_step(add_transfers(std::move(s)));
  return replicas_of(l) > 1 ? add_zero(std::move(s), effective_zero(l), l.reshard_after_forward) : s;
}

}  // namespace trireme
