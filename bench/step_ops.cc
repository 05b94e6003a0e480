// trireme_step_ops RUN.toml [--set key=value ...]: where the time of whole training steps goes, op by op.
//
// Runs real steps (forward, backward, norm, update) of the run file's model on random tokens, without data
// files, checkpoints or evaluation, and takes the time between one op's end and the next one's: what an op
// costs *inside* the step, caches as the step leaves them. One JSON object on stdout:
//   peaks    f32 and bf16 FLOP/s and memory bytes/s on the same threads: best of the bursts before and after
//   step_s   seconds of every timed step; flops_per_step: 3 x forward, causal attention at half
//   peak_beside  of each of them: FLOP/s of the compute type, mean of short bursts right before and behind it
//   ops      by op and shape of its output: launches a step, FLOPs, bytes, median and least seconds of a step
//   memory   bytes by bucket: what the booking on meta says and what the last step's ledger says
//   graphs   what came of train.graphs (docs/device.md), where the device keeps launches
//   startup_s  seconds from main to the end of the first step, with device and memory
//   kernels  launches that each kernel took, for ops that have several (attention, products)
//
// --op-events runs further steps with events around every op (device/op_times.h), on any device, and writes
// their table to stderr, as JSON lines to --op-events-out, and its sums as op_events of the object.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "base/timed.h"
#include "base/topology.h"
#include "catalog/cluster_data.h"
#include "cost/flops.h"
#include "device/cpu/peak.h"
#include "device/op_times.h"
#include "random_batch.h"
#include "runtime/booking.h"
#include "spec/found_topology.h"

namespace trireme {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of each kind of launch, per step. Kind: op, shape of its first output, FLOPs and bytes of one
// launch.
class Stopwatch : public OpObserver {
 public:
  struct Kind {
    std::string op, out;
    double flops;
    int64_t bytes;
    auto operator<=>(const Kind&) const = default;
  };
  struct Times {
    int64_t launches = 0;
    std::vector<double> seconds;  // one a step
  };
  void start() {
    steps_++;
    last_ = now();
  }
  void after(std::string_view op, const Cost& c, const Outputs& o) override {
    double t = now();
    Times& k = kinds_[{std::string(op), to_string(o.t[0].shape), c.flops, c.bytes_read + c.bytes_written}];
    k.seconds.resize(steps_);
    k.seconds.back() += t - last_;
    k.launches++;
    last_ = now();
  }
  void clear() { kinds_.clear(), steps_ = 0; }
  nlohmann::ordered_json table() const {
    auto rows = nlohmann::ordered_json::array();
    for (const auto& [kind, t] : kinds_) {
      double launches = double(t.launches) / double(steps_);
      rows.push_back({{"op", kind.op},
                      {"out", kind.out},
                      {"launches", launches},
                      {"flops", kind.flops * launches},
                      {"bytes", double(kind.bytes) * launches},
                      {"s", median(t.seconds)},
                      {"s_min", *std::min_element(t.seconds.begin(), t.seconds.end())}});
    }
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a["s"] > b["s"]; });
    return rows;
  }

 private:
  std::map<Kind, Times> kinds_;
  size_t steps_ = 0;
  double last_ = 0;
};

struct Peaks {
  double f32 = 0, bf16 = 0, memory = 0;
  void measure(int threads) {
    f32 = std::max(f32, cpu::f32_peak(threads, 0.15));
    bf16 = std::max(bf16, cpu::bf16_peak(threads, 0.15));
    memory = std::max(memory, cpu::memory_rates(threads, 0.3).triad);
  }
};

// The peak of this moment: a clock that moves, or a neighbour on the other half of a core, takes from it what
// it takes from the steps beside it.
double peak_now(const RunSpec& run, int threads) {
  constexpr double kSeconds = 0.02;
  return run.precision.compute == "bf16" ? cpu::bf16_peak(threads, kSeconds)
                                         : cpu::f32_peak(threads, kSeconds);
}

nlohmann::ordered_json memory_table(const Booking& booked, const Ledger& ledger) {
  nlohmann::ordered_json j;
  for (size_t i = 0; i < kBuckets; i++)
    j[std::string(kBucketNames[i])] = {{"booked", booked.peak[i]}, {"met", ledger.peak(Bucket(i))}};
  j["total"] = {{"booked", booked.peak_total}, {"met", ledger.peak_total()}};
  return j;
}

struct Options {
  std::string run, device = "cpu";
  std::vector<std::string> sets;
  int steps = 10, warmup = 3;
  bool op_events = false;
  int op_event_steps = 3;
  std::string op_events_out;
  std::vector<double> peaks;  // FLOP/s of the compute type, bytes/s
};

// Given, measured (CPU), or of the vendor's file for this GPU.
OpPeaks op_peaks(const Options& o, const RunSpec& run, const Peaks& measured, Device& device) {
  if (!o.peaks.empty()) return {.flops = o.peaks[0], .bytes_per_s = o.peaks[1], .source = "--peaks"};
  const bool bf16 = run.precision.compute == "bf16";
  if (o.device == "cpu")
    return {.flops = bf16 ? measured.bf16 : measured.f32,
            .bytes_per_s = measured.memory,
            .source = "measured here"};
  Topology found = read_topology();
  if (!ask_nvml(found)) return {};
  const ClusterSpec* c = shipped_cluster(vendor_file_of(keep_alike(found, device.pci())));
  if (!c) return {};
  return {.flops = c->peak_flops(run.precision.compute),
          .fp8_flops = c->peak_flops("fp8"),
          .bytes_per_s = c->memory_bandwidth,
          .source = c->name};
}

nlohmann::ordered_json kernels_table(Kernels& kernels) {
  auto rows = nlohmann::ordered_json::array();
  for (const KernelCount& c : kernels.kernels_taken())
    rows.push_back({{"op", c.op}, {"kernel", c.kernel}, {"launches", c.launches}});
  return rows;
}

void measure(const Options& o, double begin) {
  RunSpec run = load_run(o.run, o.sets);
  run.train.device = o.device;
  auto device = make_device(o.device, {.threads = int(run.train.threads),
                                       .deterministic = run.train.deterministic,
                                       .require_fp8 = run.precision.fp8_kernels == "required",
                                       .sm90_attention = run.train.attention == "sm90",
                                       .graphs = run.train.graphs == "on"});
  run = resolve(run, {.native_bf16 = device->native(DType::bf16)});
  refuse_unsupported(run);
  const bool here = o.device == "cpu";  // else peaks are the vendor's, and ops run behind their launches
  int threads = run.train.threads > 0 ? int(run.train.threads) : int(std::thread::hardware_concurrency());
  Schedule schedule = add_step(make_schedule(run.layout.schedule, 1, 1, int(run.microbatches())));
  Booking booked = book_training(run, schedule, threads);
  StageRunner runner(run, RunMode::train, *device, booked.arena_bytes);
  runner.init_weights();
  FillBatch fill = random_batch(run);
  Stopwatch watch;
  if (here) device->kernels().observe(&watch);
  std::vector<double> seconds, beside;
  double startup = 0, loss = 0;
  Peaks peaks;
  for (int s = 1; s <= o.warmup + o.steps; s++) {
    if (here && s == o.warmup + 1) peaks.measure(threads);
    if (s == o.warmup + 1) watch.clear();
    const double before = here && s > o.warmup ? peak_now(run, threads) : 0;
    watch.start();
    runner.arena().ledger().restart_peaks();
    StepResult r = runner.step(schedule.ranks.at(0), s, run.tokens_per_step(), fill);
    if (s == 1) startup = now() - begin;
    if (s > o.warmup) {
      seconds.push_back(r.seconds - r.data_s);  // drawing tokens is none of a step; peers have theirs at hand
      if (here) beside.push_back((before + peak_now(run, threads)) / 2);
    }
    loss = r.loss;
  }
  device->kernels().observe(nullptr);
  if (here) peaks.measure(threads);
  nlohmann::ordered_json op_events;
  if (o.op_events) {
    OpTimes times(device->kernels(), device->stamps());
    device->kernels().observe(&times);
    for (int s = o.warmup + o.steps + 1; s <= o.warmup + o.steps + o.op_event_steps; s++) {
      times.begin_step();
      const StepResult r = runner.step(schedule.ranks.at(0), s, run.tokens_per_step(), fill);
      times.end_step(r.seconds - r.data_s);
    }
    device->kernels().observe(nullptr);
    const OpTable table = times.table();
    const OpPeaks of = op_peaks(o, run, peaks, *device);
    const std::string lines = to_json_lines(table, of, o.device, run.train.attention);
    if (!o.op_events_out.empty()) write_text_atomic(o.op_events_out, lines);
    fmt::print(stderr, "{}", to_text(table, of));
    op_events = nlohmann::ordered_json::parse(lines.substr(0, lines.find('\n')));
  }
  double tokens = double(run.tokens_per_step());
  const std::optional<ReplayCounts> replayed = device->replayed();
  if (replayed && !replayed->refused.empty()) run_failed("{}", graphs_refused(*replayed));
  nlohmann::ordered_json j = {{"threads", threads},
                              {"compute", run.precision.compute},
                              {"tokens", tokens},
                              {"flops_per_step", tokens * train_flops_per_token(run.model, run.data.seq_len)},
                              {"peaks", {{"f32", peaks.f32}, {"bf16", peaks.bf16}, {"memory", peaks.memory}}},
                              {"startup_s", startup},
                              {"step_s", seconds},
                              {"peak_beside", beside},
                              {"loss", loss},
                              {"memory", memory_table(booked, runner.arena().ledger())},
                              {"graphs", replayed ? replay_text(*replayed) : ""},
                              {"kernels", kernels_table(device->kernels())},
                              {"ops", watch.table()}};
  if (o.op_events) j["op_events"] = op_events;
  fmt::print("{}\n", j.dump());
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  double begin = now();
  CLI::App app("where the time of whole training steps goes, op by op (bench/README.md)");
  Options o;
  app.add_option("run", o.run, "run file")->required();
  app.add_option("--set", o.sets, "section.key=value in place of the run file's");
  app.add_option("--device", o.device,
                 "cpu, or cuda: whole steps alone, without peaks, and times of ops by --op-events");
  app.add_option("--steps", o.steps, "timed steps")->check(CLI::Range(1, 10000));
  app.add_option("--warmup", o.warmup, "steps before them")->check(CLI::Range(1, 1000));
  app.add_flag("--op-events", o.op_events,
               "further steps with events around every op; the table goes to stderr");
  app.add_option("--op-event-steps", o.op_event_steps, "how many (default: 3)")->check(CLI::Range(1, 1000));
  app.add_option("--op-events-out", o.op_events_out, "file for the table as JSON lines");
  app.add_option("--peaks", o.peaks,
                 "the device's FLOP/s of the compute type and bytes/s (default: the vendor's)")
      ->expected(2)
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    measure(o, begin);
  } catch (const Error& e) {
    fmt::print(stderr, "trireme_step_ops: {}\n", e.what());
    return e.fault == Fault::request ? 2 : 1;
  }
  return 0;
}
