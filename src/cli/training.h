// What the verbs `train` and `demo` share.
#pragma once
#include <memory>

#include "cli/cli.h"
#include "plan/forecast.h"
#include "spec/run_schedule.h"
#include "train/launch.h"

namespace trireme::cli {

struct TrainingSetup {
  ClusterSpec cluster;
  Schedule schedule;
  Forecast forecast;
  DeviceOptions device;
  TrainOptions options;
};

// With as many rank threads as cores, or more, looking takes time from other ranks: the program starts itself
// again, once, with OMP_WAIT_POLICY=passive. Returns where that is not so, or the variable is set.
void wait_without_spinning(const RunSpec&);

std::vector<std::string> own_command_line();  // as this process was started

// `train --supervise N`: this command line without what is the parent's, launched, and again up to N times
// (train/supervisor.h); by `launcher`, or, empty, by what train.comm needs. Does not return.
[[noreturn]] void supervise_and_exit(const RunRequest&, int64_t relaunches, const std::string& launcher,
                                     const Deadline&);

// Forecasts the run; refuses what cannot fit. Writes nothing: the folder is not locked yet.
TrainingSetup prepare_training(const RunSpec&);

// Trains with a live progress line, notes and interrupt handlers; quiet: none of the lines.
TrainSummary train_with_progress(const RunSpec&, TrainingSetup&, bool quiet);

}  // namespace trireme::cli
