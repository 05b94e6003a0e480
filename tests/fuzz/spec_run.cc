// A run file: what is accepted is saved and read back the same. A layout that this version does not run has a
// nearest one that it runs, or none; the schedule of one that it runs is valid. Small ones alone: a schedule
// of many stages and microbatches is millions of actions.
#include "fuzz.h"
#include "schedule/schedule.h"
#include "spec/nearest.h"
#include "spec/run_schedule.h"
#include "spec/run_spec.h"
#include "spec/supported.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const LoadOptions alone{.read_from = false};
  RunSpec run;
  if (!fuzz::accepts([&] { run = parse_run(fuzz::text_of(data, size), "fuzz.toml", {}, alone); })) return 0;
  const std::string saved = save_run(run);
  const RunSpec again = parse_run(saved, "saved.toml", {}, alone);
  fuzz::expect(save_run(again) == saved, "a saved run reads differently");
  fuzz::expect(hash(again) == hash(run) && diff(run, again).empty(), "a saved run is another run");
  const LayoutSpec& l = run.layout;
  if (run.world() > 16 || l.pp * l.chunks > 16 || run.microbatches() > 64 || has_own_schedule(l)) return 0;
  if (fuzz::accepts([&] { refuse_unsupported(run); })) {
    fuzz::accepts([&] { validate(schedule_of(run)); });
    return 0;
  }
  const auto nearest = nearest_layout(run);
  fuzz::expect(!nearest || (problems_of(*nearest).empty() && unsupported_of(*nearest).empty()),
               "a nearest layout that does not work");
  return 0;
}
