// A schedule file for a run that is as large as it says: it becomes the run's schedule, which is valid with
// messages, steps and reductions added, or is refused. The first byte says what else the run is, and whether
// it is another.
#include "fuzz.h"
#include "schedule/schedule.h"
#include "spec/run_schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size == 0) return 0;
  fuzz::accepts([&] {
    const Schedule s = parse_schedule(fuzz::text_of(data + 1, size - 1));
    if (int64_t(s.stages) * s.microbatches > 4096) return;
    RunSpec run;
    LayoutSpec& l = run.layout;
    l.schedule = "file", l.pp = int64_t(s.ranks.size()) + (data[0] & 1);
    l.chunks = std::max<int64_t>(1, s.stages / l.pp);
    run.batch.micro = 1, run.batch.global = s.microbatches;
    if (data[0] & 2) run.model.experts = 4, run.moe.unit = "global", run.moe.aux_loss = 0.1;
    run.model.tied = data[0] & 4;
    if (data[0] & 8) l.recompute = "full";
    if (data[0] & 16) l.dp = 2, l.zero = data[0] / 32 % 4, run.batch.global *= 2;
    set_own_schedule(run, s, "layout.schedule_file");
    validate(schedule_of(run));
  });
  return 0;
}
