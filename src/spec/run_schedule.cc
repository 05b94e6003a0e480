#include "spec/run_schedule.h"

namespace trireme {

int effective_zero(const LayoutSpec& l) {
  return l.dp == 1 || l.shard_group == 1 ? 0 : int(l.zero);
}

Schedule schedule_of(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  Schedule s = add_step(make_schedule(l.schedule, int(l.pp), int(l.chunks), int(run.microbatches())));
  return l.dp > 1 ? add_zero(std::move(s), effective_zero(l), l.reshard_after_forward) : s;
}

}  // namespace trireme
