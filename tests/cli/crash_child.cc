// crash_child DIR STEPS EVENT [SIGNAL [TIMES [SCALE [HOW [DP ZERO]]]]]: trains DIR/run to STEPS and sends
// itself SIGNAL (SIGKILL), TIMES times (once), at the EVENT-th thing that TrainHooks::phase tells of, counted
// from 1 in this process. EVENT 0: no signal, and every event is printed. SCALE: in f16, from that loss scale
// on, which doubles after two good steps in a row; 0: as the run file says. HOW: "beside" writes checkpoints
// beside training, and of all things told only those of saves count; "in line" does not. DP ZERO: on so many
// ranks, in that stage. Exit codes are trireme's.
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "base/interrupt.h"
#include "tiny_run.h"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc < 4) {
    fmt::print(stderr, "crash_child DIR STEPS EVENT [SIGNAL [TIMES [SCALE [HOW [DP ZERO]]]]]\n");
    return 2;
  }
  const int64_t steps = std::atoll(argv[2]), event = std::atoll(argv[3]);
  const int signal = argc > 4 ? std::atoi(argv[4]) : SIGKILL, times = argc > 5 ? std::atoi(argv[5]) : 1;
  const bool beside = argc > 7 && std::string(argv[7]) == "beside";
  int64_t count = 0;
  TrainHooks hooks;
  std::mutex mutex;  // saves beside training tell from a thread of their own
  hooks.phase = [&](std::string_view phase) {
    std::lock_guard lock(mutex);
    if (beside && !phase.starts_with("save:")) return;
    count++;
    if (event == 0) fmt::print("{}\n", phase);
    for (int i = 0; count == event && i < times; i++) ::kill(::getpid(), signal);
  };
  try {
    install_interrupt_handlers();
    RunSpec run = test::tiny_run(argv[1], steps);
    run.train.async_save = beside;
    if (argc > 6 && std::atof(argv[6]) > 0) {
      run.precision.compute = "f16";
      run.precision.initial_scale = std::atof(argv[6]), run.precision.growth_interval = 2;
    }
    if (argc > 9) run.layout.dp = std::atoll(argv[8]), run.layout.zero = std::atoll(argv[9]);
    TrainSummary s = test::train_here(run, hooks);
    return s.ending == Ending::interrupted ? 3 : 0;
  } catch (const Error& e) {
    fmt::print(stderr, "crash_child: {}\n", e.what());
    return int(e.fault);
  }
}
