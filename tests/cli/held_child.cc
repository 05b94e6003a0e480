// held_child DIR STEPS EVENT: trains DIR/run to STEPS on three ranks, and holds rank 0 up for ever at the
// EVENT-th backward pass (0: never), with limits of a watchdog that are a fraction of a second. Exit codes
// are trireme's.
#include <fmt/core.h>

#include <cstdlib>

#include "base/gate.h"
#include "tiny_run.h"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 4) {
    fmt::print(stderr, "held_child DIR STEPS EVENT\n");
    return 2;
  }
  const int64_t event = std::atoll(argv[3]);
  int64_t backward = 0;
  Gate gate;
  TrainHooks hooks;
  hooks.phase = [&](std::string_view phase) {
    if (phase == "B" && ++backward == event) gate.wait(1, [] { return false; });
  };
  try {
    RunSpec run = test::tiny_run(argv[1], std::atoll(argv[2]));
    run.layout.dp = 3, run.layout.zero = 1, run.train.timeout = 2;
    TrainOptions options;
    options.watch = {.beat_s = 0.02, .slow_s = 0.3};
    return test::train_here(run, hooks, options).ending == Ending::interrupted ? 3 : 0;
  } catch (const Error& e) {
    fmt::print(stderr, "held_child: {}\n", e.what());
    return int(e.fault);
  }
}
