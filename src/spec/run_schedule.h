// The actions of one step of a run, from its layout.
#pragma once
#include "mesh/context.h"
#include "schedule/schedule.h"
#include "spec/run_spec.h"

namespace trireme {

// Ranks that have the same weights and other tokens: those of dp and cp.
int64_t replicas_of(const LayoutSpec&);
// Which tokens context ranks hold: layout.cp_placement, of Ulysses contiguous.
ContextPlacement placement_of(const LayoutSpec&);

// The ZeRO stage that has an effect: 0 where a shard group has one rank, which has nobody to share with.
int effective_zero(const LayoutSpec&);

// Has the run a schedule that no generator makes: layout.schedule "file" or "auto"?
bool has_own_schedule(const LayoutSpec&);
// Is each stage on several ranks (dualpipe, or a file that says so)?
bool has_copies(const RunSpec&);
// Sets the run's own_schedule. Errors (request): what is not compute, other numbers of ranks, stages or
// microbatches than the run's, and what validate() finds with messages added; `from` names the schedule.
void set_own_schedule(RunSpec&, const Schedule& compute, std::string_view from);
// The text of layout.schedule_file, if layout.schedule says so.
void read_own_schedule(RunSpec&);

// Passes that a run's layout adds to the compute of a schedule.
struct StepPasses {
  bool recomputes = false, replicas = false;
  int zero = 0;
  bool reshard_after_forward = true;
  bool exchanges = false;  // ep > 1
};
Schedule with_passes(Schedule compute, const StepPasses&);

// The generator that layout.schedule names, or the run's own, with its steps, and for several replicas with
// what they say to each other.
Schedule schedule_of(const RunSpec&);
// By stage_at() (batch_ramp.h): schedule_of() the run with the batch of each stage. The last is schedule_of()
// this run. An error names the stage.
std::vector<Schedule> schedules_of(const RunSpec&);

}  // namespace trireme
