// What the verbs share: the request as the command line gives it.
#pragma once
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/visible.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme::cli {

// One function a verb, in the file of its name: adds the subcommand, whose callback does the work and throws
// Error.
void add_demo(CLI::App&);
void add_tokenize(CLI::App&);
void add_plan(CLI::App&);
void add_search(CLI::App&);
void add_estimate(CLI::App&);
void add_simulate(CLI::App&);
void add_train(CLI::App&);
void add_tune(CLI::App&);
void add_eval(CLI::App&);
void add_generate(CLI::App&);
void add_chat(CLI::App&);
void add_bench(CLI::App&);
void add_convert(CLI::App&);
void add_distill(CLI::App&);
void add_scale(CLI::App&);
void add_score(CLI::App&);
void add_report(CLI::App&);
void add_inspect(CLI::App&);
void add_config(CLI::App&);
void add_doctor(CLI::App&);
void add_completion(CLI::App&);

// RUN.toml and --set key=value, as most verbs take them.
struct RunRequest {
  std::string file;
  std::vector<std::string> sets;
  bool json = false;
  void add_to(CLI::App& verb, bool with_json = true);
  // Loaded, refused where this version cannot run it, with its "auto"s; and resolved for this machine.
  RunSpec as_asked() const;
  RunSpec load() const;
};

// On stderr, a line each: what the run file says and its writer seldom means (spec/notes.h).
void tell_notes(const RunSpec&, const std::string& file, bool on_this_disk = true);

// resolve() by what this machine's device has.
RunSpec resolved_here(const RunSpec&);

// refuse_unsupported(), with the nearest layout that works.
void refuse(const RunSpec&);

// How long this machine may be measured where nothing is kept of it.
struct Measuring {
  bool kernels = true;  // false: peaks alone, a second or two; forecasts are then at the roof
  Deadline until;       // kernels that were not measured by then are not
};
// The machine: run.cluster.file, or what `bench` measured of this one (measured now, briefly, when it was
// not; what a busy machine gave is kept for an hour, in a file of its own); of a run on GPUs those that are
// here, as their vendor states. Errors: there are none; a signal came meanwhile (interrupted).
ClusterSpec cluster_of(const RunSpec&, const Measuring& = {});
// The same without measuring anything: none where the machine was not measured before.
std::optional<ClusterSpec> known_cluster_of(const RunSpec&);
fs::path measured_cluster_path();  // in the user's cache folder
std::string processor_name();
// Without kernels. A signal or the deadline ends it, with rougher numbers.
ClusterSpec measure_this_machine(int threads, const Deadline& until = {});
// A GPU's cluster file: what the vendor states of it, what kernel and NVML say of how it is joined, and,
// where it is `measured` or no vendor's figures are known, memory's rate and that of the way to the host.
// Error: no such device.
ClusterSpec gpu_of_this_machine(const std::string& device, bool measured);
// What kernels reach inside steps, with so many ranks at once (measure/calibrate.h); quick: in seconds, fewer
// sizes. Shows its progress. A signal or the deadline ends it: then it is not known().
Calibration calibrate_this_machine(int ranks, int threads, bool quick, const Deadline& until = {});
// What `bench` under mpirun measured of the same machine's processes, and wrote to this file, is still so.
void keep_links(ClusterSpec&, const fs::path&);

int threads_of(const RunSpec&);       // of one rank alone: train.threads, or the cores this process may use
int rank_threads_of(const RunSpec&);  // of each rank of the run: train.threads, or its share of the cores

// Of the verbs that compute: the program starts itself again, once, with a GOMP_SPINCOUNT that leaves cores
// to others soon; not where that or OMP_WAIT_POLICY is set.
void spin_briefly(std::string_view verb);

}  // namespace trireme::cli
