// What the verbs `train` and `demo` share.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "cli/cli.h"
#include "cli/launched.h"
#include "comm/mpi/mpi_world.h"
#include "forecast/forecast.h"
#include "forecast/own_schedule.h"
#include "forecast/recompute.h"
#include "spec/run_schedule.h"
#include "train/launch.h"
#include "train/restart_policy.h"

namespace trireme::cli {

struct TrainingSetup {
  ClusterSpec cluster;
  Schedule schedule;
  Forecast forecast;
  DeviceOptions device;
  TrainOptions options;
  bool says_time = true;  // before the first step; false: the caller knows better
  // Text that stays above the progress line: before the first step, and after a step ("" = none).
  std::string head;
  std::function<std::string(const StepMetrics&)> row;
};

// With as many ranks on this machine as cores, or more, looking takes time from other ranks: the program
// starts itself again, once, with OMP_WAIT_POLICY=passive. Returns where that is not so, or the variable is
// set.
void wait_without_spinning(int64_t ranks);

std::vector<std::string> own_command_line();  // as this process was started

// `train --supervise N`: this command line without what is the parent's, launched, and again within the
// limits (train/supervisor.h); by `launcher`, or, empty, by what train.comm needs. started: as what others
// started this process; a rank that the environment places is launched as it is. Does not return.
[[noreturn]] void supervise_and_exit(const RunRequest&, const RestartLimits&, const std::string& launcher,
                                     const Deadline&, const std::optional<Launched>& started);

// Forecasts the run; refuses what cannot fit, with the cheapest remedies. Writes nothing: the folder is not
// locked yet. asked: as the request has it, for those. ranks_here: those that share this process's cores.
TrainingSetup prepare_training(const RunSpec&, const PrecisionSpec& asked, const ClusterSpec&,
                               int64_t ranks_here);

// Trains with a live progress line, notes and interrupt handlers; quiet: none of the lines. world: the run's
// ranks, where they are processes; null = threads of this one.
TrainSummary train_with_progress(const RunSpec&, TrainingSetup&, bool quiet, ProcessWorld* world = nullptr);

// Trains with rank threads of this process, chosen and planned here, and prints the result. An interrupt, and
// the deadline, end it with Fault::interrupted.
void train_here(const RunRequest&, const Deadline&);

// What one process of several, started by mpirun or srun, does instead of all that. What is wrong with the
// request is said by one of them. Returns null where there is but one, and its ranks are threads.
struct TrainingJob {
  std::unique_ptr<ProcessWorld> world;
  RunSpec run;
  PrecisionSpec asked;
  TrainingSetup setup;
};
std::unique_ptr<TrainingJob> join_training(const RunRequest&, const Launched&);

}  // namespace trireme::cli
