#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/error_lines.h"
#include "base/machine.h"
#include "base/say.h"
#include "catalog/cluster_device.h"
#include "cli/cli.h"
#include "cli/disk_room.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/peak.h"
#include "device/device.h"
#include "measure/speeds.h"
#include "spec/complaint.h"
#include "spec/nearest.h"
#include "spec/notes.h"
#include "spec/run_schedule.h"

namespace trireme::cli {

void RunRequest::add_to(CLI::App& verb, bool with_json) {
  verb.add_option("RUN", file, "run file (TOML); `trireme config` prints every key")->required();
  verb.add_option("--set", sets, "overrides a key: --set batch.micro=4 (may be repeated)")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  if (with_json) verb.add_flag("--json", json, "prints JSON");
}

void refuse(const RunSpec& run) {
  try {
    refuse_unsupported(run);
    if (!has_own_schedule(run.layout)) schedules_of(run);
  } catch (const ErrorLines& e) {
    std::vector<std::string> lines = e.lines;
    lines.back() += nearest_layout_text(run);
    throw ErrorLines(std::move(lines), e.fault);
  } catch (const Error& e) {
    throw Error(e.what() + nearest_layout_text(run), e.fault);
  }
}

RunSpec RunRequest::as_asked() const {
  RunSpec run = load_runnable(file, sets);
  refuse(run);
  return run;
}

void tell_notes(const RunSpec& run, const std::string& file, bool on_this_disk) {
  std::vector<std::string> notes = notes_of(run);
  if (std::string disk = on_this_disk ? disk_note(run) : ""; !disk.empty()) notes.push_back(std::move(disk));
  for (const std::string& note : notes) say("note: {}: {}\n", visible(file), visible(note));
}

RunSpec RunRequest::load() const {
  return resolved_here(as_asked());
}

RunSpec resolved_here(const RunSpec& run) {
  auto device = make_device(run.train.device);
  return resolve(run, {.native_bf16 = device->native(DType::bf16)});
}

int threads_of(const RunSpec& run) {
  return run.train.threads > 0 ? int(run.train.threads) : cpu::usable_cores();
}

int rank_threads_of(const RunSpec& run) {
  const int each = run.train.threads > 0 ? threads_of(run) : threads_of(run) / int(run.world());
  return std::clamp(each, 1, cpu::most_threads());
}

fs::path measured_cluster_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path base = cache && *cache ? fs::path(cache) : fs::path(home && *home ? home : "/tmp") / ".cache";
  return base / "trireme" / "this-machine.toml";
}

void keep_links(ClusterSpec& c, const fs::path& file) {
  if (!fs::exists(file)) return;
  try {
    const ClusterSpec before = load_cluster(file);
    if (before.name != c.name) return;
    take_links(c, before);
  } catch (const Error&) {
    // A file that does not read holds nothing to keep.
  }
}

namespace {

// A kept measurement of this machine, where it says what this run's ranks reach.
std::optional<ClusterSpec> kept_cluster(const RunSpec& run, int threads, const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    const ClusterSpec c = as_met(run, load_cluster(file));
    if (c.threads == threads) return c;
  } catch (const Error& e) {  // only a cache
    const std::string why = e.what();
    say("note: what is kept of this machine's measurement is not used, for it does not read: {}\n",
        why.substr(0, why.find('\n')));
  }
  return std::nullopt;
}

// What would displace what is known of other ranks or threads has a file of its own.
fs::path other_cluster_path(int64_t ranks, int threads) {
  return measured_cluster_path().replace_filename(
      fmt::format("this-machine-{}-ranks-of-{}-threads.toml", ranks, threads));
}

// What was measured while other processes had a good part of the processors never displaces what was not, and
// serves for an hour: then they may have gone.
constexpr double kBusyServes = 3600;
fs::path busy_cluster_path() {
  return measured_cluster_path().replace_filename("this-machine-busy.toml");
}
double age_s(const fs::path& file) {
  std::error_code ec;
  const auto written = fs::last_write_time(file, ec);
  if (ec) return kBusyServes;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}
std::optional<ClusterSpec> kept_while_busy(const RunSpec& run, int threads) {
  const double age = age_s(busy_cluster_path());
  if (age >= kBusyServes) return std::nullopt;
  std::optional<ClusterSpec> c = kept_cluster(run, threads, busy_cluster_path());
  if (c)
    say("note: this machine is taken as it was measured {} ago, while other processes had {:.0f} % of "
        "its processors; `trireme bench` measures it when it is quiet\n",
        human_seconds(std::max(0.0, age)), 100 * c->others);
  return c;
}

// What was measured before of the same machine and is not measured now stays known: what one rank reaches
// beside what several do, and the disk. False: `now` may not be kept, since what is known of as many ranks,
// measured with other ranks or threads and perhaps by a whole `bench`, would be lost.
bool keep_calibrations(ClusterSpec& now, const fs::path& file) {
  if (!fs::exists(file)) return true;
  try {
    const ClusterSpec before = load_cluster(file);
    if (before.name != now.name) return true;
    if (displaces(now, before)) return false;
    if (!now.alone.known()) now.alone = before.alone;
    if (!now.together.known()) now.together = before.together;
    if (now.disk_bandwidth == 0) now.disk_bandwidth = before.disk_bandwidth;
    if (now.host_bandwidth == 0) now.host_bandwidth = before.host_bandwidth;
  } catch (const Error&) {
    // A file that does not read holds nothing to keep.
  }
  return true;
}

void keep_while_busy(ClusterSpec& c) {
  const fs::path file = busy_cluster_path();
  if (age_s(file) < kBusyServes) keep_calibrations(c, file);
  make_folders(file.parent_path());
  save_cluster(c, file);
  say("note: other processes had {:.0f} % of the processors while this machine was measured: what it "
      "gave is kept for an hour; `trireme bench` measures it when it is quiet\n",
      100 * c.others);
}

void keep(ClusterSpec& c, int64_t ranks, int threads) {
  if (c.disturbed()) return keep_while_busy(c);
  fs::path file = measured_cluster_path();
  if (!keep_calibrations(c, file)) {
    file = other_cluster_path(ranks, threads);
    say("note: what {} rank{} of {} thread{} reach is kept as {}: {} says it of other ranks or threads, "
        "and stays\n",
        ranks, ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s", file.string(),
        measured_cluster_path().string());
  }
  make_folders(file.parent_path());
  save_cluster(c, file);
}

void refuse_interrupted() {
  if (interrupt_requested())
    throw Error(
        "interrupted while this machine was measured, before the first step; the same command starts over",
        Fault::interrupted);
}

ClusterSpec measure_and_keep(const RunSpec& run, int threads, const Measuring& how) {
  const OthersCpu others;
  ClusterSpec c = measure_this_machine(threads, how.until);
  refuse_interrupted();
  keep_links(c, measured_cluster_path());
  const int64_t ranks = run.world();
  if (run.train.comm == "thread" && ranks <= threads_of(RunSpec())) {
    if (!how.kernels) return c;
    Calibration& kernels = ranks == 1 ? c.alone : c.together;
    kernels = calibrate_this_machine(int(ranks), threads, true, how.until);
    refuse_interrupted();
    if (!kernels.known()) {  // nor is it kept, or nothing would measure them
      say("note: kernels are not measured, for there is no time: no expected time is forecast\n");
      return c;
    }
  }
  if (how.until.passed()) return c;  // rougher than what is kept
  c.others = std::max(c.others, others.share());
  try {
    keep(c, ranks, threads);
  } catch (const Error& e) {
    say("note: the measured peaks are not kept: {}\n", visible(e.what()));
  }
  return c;
}

// Measured once in the life of a process, also where it may not be kept: who chooses a layout asks, and who
// then starts it.
ClusterSpec this_machine(const RunSpec& run, const Measuring& how) {
  const int threads = rank_threads_of(run);
  for (const fs::path& file : {measured_cluster_path(), other_cluster_path(run.world(), threads)})
    if (std::optional<ClusterSpec> kept = kept_cluster(run, threads, file)) return *kept;
  static std::map<std::tuple<int64_t, int, std::string, bool>, ClusterSpec> measured;
  const auto key = std::tuple(run.world(), threads, run.train.comm, how.kernels);
  if (const auto before = measured.find(key); before != measured.end()) return before->second;
  if (std::optional<ClusterSpec> kept = kept_while_busy(run, threads)) return *kept;
  return measured[key] = measure_and_keep(run, threads, how);
}

// Of GPUs no measurement is kept, for one machine may have several kinds.
ClusterSpec found_gpus(const RunSpec& run) {
  try {
    return gpu_of_this_machine(run.train.device, false);
  } catch (const Error& e) {
    bad_request(
        "cluster.file is not given, and the GPUs of train.device = \"{}\" are not here ({}): name their "
        "cluster file, "
        "such as configs/cluster/h100-sxm-8.toml (`trireme bench --device cuda --out FILE` writes a "
        "machine's own)",
        run.train.device, e.what());
  }
}
}  // namespace

std::optional<ClusterSpec> known_cluster_of(const RunSpec& run) {
  if (!run.cluster.file.empty()) return as_met(run, cluster_called(run.cluster.file, run.world()));
  if (run.train.device == "cuda") return std::nullopt;
  const int threads = rank_threads_of(run);
  for (const fs::path& file :
       {measured_cluster_path(), other_cluster_path(run.world(), threads), busy_cluster_path()})
    if (const std::optional<ClusterSpec> kept = kept_cluster(run, threads, file))
      return run.train.comm == "thread" ? part_of(*kept, run.world(), threads, threads_of(RunSpec())) : *kept;
  return std::nullopt;
}

// Threads of one process share the processors that it may use; of several, each may have some of its own.
ClusterSpec cluster_of(const RunSpec& run, const Measuring& how) {
  if (!run.cluster.file.empty()) return as_met(run, cluster_called(run.cluster.file, run.world()));
  if (run.train.device == "cuda") return found_gpus(run);
  const ClusterSpec c = this_machine(run, how);
  return run.train.comm == "thread" ? part_of(c, run.world(), rank_threads_of(run), threads_of(RunSpec()))
                                    : c;
}

}  // namespace trireme::cli
