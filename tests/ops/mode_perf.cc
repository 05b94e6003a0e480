#include <algorithm>
#include <cmath>

#include "base/timed.h"
#include "device/cpu/peak.h"
#include "instance.h"
#include "modes.h"

namespace trireme::harness {
namespace {

struct Seconds {
  double median, best;
};

// Seconds per launch. Launches twice to warm up, then at least 5 times and `shortest` seconds. Waits once for
// `together` launches, for on a GPU a wait would cost more than a launch.
Seconds time_launches(Instance& run, int together, double shortest) {
  constexpr size_t kLeast = 5;
  run.launch(), run.launch(), run.finish();
  std::vector<double> times;
  for (double begin = now_s(); times.size() < kLeast || now_s() - begin < shortest;) {
    double t = now_s();
    for (int i = 0; i < together; i++) run.launch();
    run.finish();
    times.push_back((now_s() - t) / together);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

// Ops bound by arithmetic; all others are bound by memory.
bool has_products(std::string_view op) {
  return op.find("matmul") != op.npos || op.starts_with("attention");
}

// Bytes per second that a copy between two buffers reads and writes, best of five: what memory-bound ops
// are compared with.
double copy_rate(Device& device, int64_t bytes) {
  constexpr int kTogether = 4;
  std::byte* memory = device.reserve(2 * bytes);
  const Tensor from(memory, {bytes}, DType::u8), to(memory + bytes, {bytes}, DType::u8);
  const std::vector<std::byte> zeros(size_t(std::min<int64_t>(bytes, 1 << 20)));
  for (int64_t at = 0; at < bytes; at += int64_t(zeros.size()))
    device.upload(from.narrow(0, at, std::min(bytes - at, int64_t(zeros.size()))), zeros.data());
  double best = HUGE_VAL;
  for (int i = 0; i < 6; i++) {  // one to warm up
    const double begin = now_s();
    for (int k = 0; k < kTogether; k++) device.copy(to, from, {});
    device.sync({});
    if (i > 0) best = std::min(best, (now_s() - begin) / kTogether);
  }
  device.release(memory, 2 * bytes);
  return 2 * double(bytes) / best;
}

// What the machine can do at best, measured in the same minute (clocks and neighbours move by the hour).
struct Ceiling {
  explicit Ceiling(int threads)
      : f32(cpu::f32_peak(threads)),
        bf16(cpu::bf16_peak(threads)),
        memory(cpu::memory_rates(threads).triad) {}
  // The roofline's time: arithmetic at the type's peak or each operand moved once, whichever takes longer.
  // Only matrix products, of codes in any type, and attention have bf16 arithmetic; others compute in f32.
  double seconds(std::string_view op, DType type, const Cost& c) const {
    const bool of_bf16 = has_products(op) && (type == DType::bf16 || op == "fp8_matmul");
    double peak = of_bf16 && bf16 > 0 ? bf16 : type == DType::f64 ? f32 / 2 : f32;
    return std::max(c.flops / peak, double(c.bytes_read + c.bytes_written) / memory);
  }
  double f32, bf16, memory;  // FLOP/s, FLOP/s, bytes/s
};

// Lines that take turns, launch by launch: where clocks and neighbours move, what one says of another still
// holds. Ratios are of GFLOP/s in the same round, to the first line's; their median.
void perf_in_turn(const Options& options, int threads) {
  struct Line {
    Problem problem;
    std::unique_ptr<Instance> run;
    std::vector<double> times, of_first;
  };
  constexpr double kLong = 2;  // seconds a line
  auto device = make_device(options.device, {.threads = threads});
  std::vector<std::unique_ptr<Line>> lines;
  for_each_problem(options, "perf", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
    auto& line = *lines.emplace_back(std::make_unique<Line>(Line{p, nullptr, {}, {}}));
    const int64_t scratch = planned_scratch(entry, line.problem, options.device, threads);
    line.run = std::make_unique<Instance>(entry, line.problem, *device, scratch, Draws::repeated);
    line.run->reset(), line.run->launch();
  });
  const double begin = now_s();
  while (lines[0]->times.size() < 5 || now_s() - begin < kLong * double(lines.size())) {
    double first = 0;
    for (auto& line : lines) {
      const double t = now_s();
      line->run->launch();
      line->times.push_back(now_s() - t);
      const double rate = line->run->the_case().expense().flops / line->times.back();
      if (line == lines[0]) first = rate;
      line->of_first.push_back(rate / first);
    }
  }
  fmt::print("{} threads, {} rounds\n{:>10} {:>10} {:>10} {:>10}  problem\n", threads, lines[0]->times.size(),
             "median ms", "best ms", "GFLOP/s", "of first %");
  for (auto& line : lines) {
    const double s = median(line->times), best = *std::ranges::min_element(line->times);
    fmt::print("{:10.3f} {:10.3f} {:10.1f} {:10.1f}  {}\n", s * 1e3, best * 1e3,
               line->run->the_case().expense().flops / s * 1e-9, 100 * median(line->of_first),
               line->problem.line);
  }
}

// On a GPU: products in TFLOP/s, whose ceilings are the vendor's, and other ops as a share of what a copy
// moves. Returns the number of lines that another kernel took than the one requested.
int perf_on_gpu(const Options& options) {
  constexpr int kTogether = 20;
  int failures = 0;
  auto device = make_harness_device(options.device);
  const bool emulated = options.device.find("emulated") != std::string::npos;
  const double copied = copy_rate(*device, emulated ? 1 << 20 : 1 << 30);
  fmt::print("device {}; a copy moves {:.1f} GB/s\n{:>10} {:>10} {:>10} {:>9} {:>16} {:>13}  problem\n",
             device->name(), copied * 1e-9, "median ms", "best ms", "GFLOP/s", "GB/s", "", "kernel");
  for_each_problem(options, "perf", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
    Instance run(entry, p, *device, planned_scratch(entry, p, options.device, 1), Draws::repeated);
    run.reset();
    auto [s, best] = time_launches(run, kTogether, 0.2);
    const std::string_view kernel = device->kernels().last_kernel();
    Cost c = run.the_case().expense();
    const double rate = double(c.bytes_read + c.bytes_written) / s;
    const std::string main = has_products(entry.op) ? fmt::format("{:.1f} TFLOP/s", c.flops / s * 1e-12)
                                                    : fmt::format("{:.1f} % of copy", 100 * rate / copied);
    fmt::print("{:10.4f} {:10.4f} {:10.1f} {:9.1f} {:>16} {:>13}  {}\n", s * 1e3, best * 1e3,
               c.flops / s * 1e-9, rate * 1e-9, main, kernel, p.line);
    const std::string wrong = wrong_kernel(options, entry.op, p, kernel);
    if (wrong.empty()) return;
    fmt::print("FAIL {} ({}): {}\n", p.line, p.place, wrong);
    failures++;
  });
  return failures;
}

}  // namespace

int run_perf(const Options& options) {
  if (options.device == "meta") bad_request("device meta has no data to launch on; cpu and cuda have");
  if (options.device != "cpu") {
    return perf_on_gpu(options);
  }
  for (int threads : options.threads) {
    if (options.in_turn) {
      perf_in_turn(options, threads);
      continue;
    }
    auto device = make_device(options.device, {.threads = threads});
    Ceiling ceiling(threads);
    fmt::print("{} threads; ceilings: f32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s, memory {:.1f} GB/s\n", threads,
               ceiling.f32 * 1e-9, ceiling.bf16 * 1e-9, ceiling.memory * 1e-9);
    fmt::print("{:>10} {:>10} {:>10} {:>9} {:>7}  problem\n", "median ms", "best ms", "GFLOP/s", "GB/s",
               "roof %");
    for_each_problem(options, "perf", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
      Instance run(entry, p, *device, planned_scratch(entry, p, options.device, threads), Draws::repeated);
      run.reset();
      auto [s, best] = time_launches(run, 1, 0.5);
      Cost c = run.the_case().expense();
      double bytes = double(c.bytes_read + c.bytes_written);
      double roof = ceiling.seconds(entry.op, p.dtype(), c);
      fmt::print("{:10.3f} {:10.3f} {:10.1f} {:9.1f} {:7.1f}  {}\n", s * 1e3, best * 1e3, c.flops / s * 1e-9,
                 bytes / s * 1e-9, 100 * roof / s, p.line);
    });
  }
  return 0;
}

}  // namespace trireme::harness
