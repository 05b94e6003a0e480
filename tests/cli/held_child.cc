// held_child DIR STEPS EVENT: trains DIR/run to STEPS on three ranks, and holds rank 0 up for ever at the
// EVENT-th backward pass (0: never), with limits of a watchdog that are a fraction of a second. Exit codes
// are trireme's.
// held_child fails 1|2: rank 2 of three fails, for that Fault, while rank 1 hangs in no collective.
#include <fmt/core.h>

#include <cstdlib>

#include "base/gate.h"
#include "tiny_run.h"
#include "train/launch.h"

namespace trireme {
namespace {

int train_held(const char* dir, int64_t steps, int64_t event) {
  int64_t backward = 0;
  Gate gate;
  TrainHooks hooks;
  hooks.phase = [&](std::string_view phase) {
    if (phase == "B" && ++backward == event) gate.wait(1, [] { return false; });
  };
  RunSpec run = test::tiny_run(dir, steps);
  run.layout.dp = 3, run.layout.zero = 1, run.train.timeout = 2;
  TrainOptions options;
  options.watch = {.beat_s = 0.02, .slow_s = 0.3};
  return test::train_here(run, hooks, options).ending == Ending::interrupted ? 3 : 0;
}

void fail_beside_a_held_rank(Fault fault) {
  RunSpec run;
  run.layout.dp = 3;
  TrainOptions options;
  options.watch = {.beat_s = 0.02, .slow_s = 30, .leave_s = 0.5};
  Gate gate;
  run_watched_threads(run, {.threads = 1}, options, {}, [&](Device&, CommFactory& ranks, Pulse* pulse) {
    pulse->step(5), pulse->action("B", 1), pulse->layer("blocks.2");
    agree_max(ranks.control(), 0);
    if (ranks.rank() == 1) gate.wait(1, [] { return false; });
    if (ranks.rank() == 2) throw Error("its memory has holes", fault);
    agree_max(ranks.control(), 0);
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  const bool fails = argc == 3 && argv[1] == std::string("fails");
  if (argc != 4 && !fails) {
    fmt::print(stderr, "held_child DIR STEPS EVENT, or: held_child fails FAULT\n");
    return 2;
  }
  try {
    if (!fails) return train_held(argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
    fail_beside_a_held_rank(Fault(std::atoi(argv[2])));
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "held_child: {}\n", e.what());
    return int(e.fault);
  }
}
