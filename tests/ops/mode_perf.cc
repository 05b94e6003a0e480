#include <algorithm>
#include <chrono>

#include "device/cpu/peak.h"
#include "instance.h"
#include "modes.h"

namespace trireme::harness {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Seconds {
  double median, best;
};

// Of a launch: at least 5 launches and half a second, after two to warm up.
Seconds time_launches(Instance& run) {
  constexpr size_t kLeast = 5;
  constexpr double kLong = 0.5;
  run.launch(), run.launch();
  std::vector<double> times;
  for (double begin = now(); times.size() < kLeast || now() - begin < kLong;) {
    double t = now();
    run.launch();
    times.push_back(now() - t);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

// What the machine can do at best, measured in the same minute (clocks and neighbours move by the hour).
struct Ceiling {
  explicit Ceiling(int threads)
      : f32(cpu::f32_peak(threads)),
        bf16(cpu::bf16_peak(threads)),
        memory(cpu::memory_rates(threads).triad) {}
  // The roofline's time: arithmetic at the type's peak or each operand moved once, whichever takes longer.
  // Only matrix products and attention have bf16 arithmetic; other ops compute in f32.
  double seconds(std::string_view op, DType type, const Cost& c) const {
    bool dots = op == "matmul" || op.starts_with("attention");
    double peak = dots && type == DType::bf16 && bf16 > 0 ? bf16 : type == DType::f64 ? f32 / 2 : f32;
    return std::max(c.flops / peak, double(c.bytes_read + c.bytes_written) / memory);
  }
  double f32, bf16, memory;  // FLOP/s, FLOP/s, bytes/s
};

}  // namespace

int run_perf(const Options& options) {
  if (options.device != "cpu")
    bad_request("perf knows the ceilings of device cpu only, not of '{}'", options.device);
  for (int threads : options.threads) {
    auto device = make_device(options.device, {.threads = threads});
    Ceiling ceiling(threads);
    fmt::print("{} threads; ceilings: f32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s, memory {:.1f} GB/s\n", threads,
               ceiling.f32 * 1e-9, ceiling.bf16 * 1e-9, ceiling.memory * 1e-9);
    fmt::print("{:>10} {:>10} {:>10} {:>9} {:>7}  problem\n", "median ms", "best ms", "GFLOP/s", "GB/s",
               "roof %");
    for_each_problem(options, "perf", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
      Instance run(entry, p, *device, planned_scratch(entry, p, options.device, threads));
      run.reset();
      auto [s, best] = time_launches(run);
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
