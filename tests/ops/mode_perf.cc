#include <algorithm>
#include <chrono>

#include "instance.h"
#include "modes.h"

namespace trireme::harness {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median seconds of a launch: at least 5 launches and half a second, after two to warm up.
double median_seconds(Instance& run) {
  constexpr size_t kLeast = 5;
  constexpr double kLong = 0.5;
  run.launch(), run.launch();
  std::vector<double> times;
  for (double begin = now(); times.size() < kLeast || now() - begin < kLong;) {
    double t = now();
    run.launch();
    times.push_back(now() - t);
  }
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace

int run_perf(const Options& options) {
  for (int threads : options.threads) {
    auto device = make_device(options.device, {.threads = threads});
    fmt::print("{} threads\n{:>10} {:>10} {:>9}  problem\n", threads, "ms", "GFLOP/s", "GB/s");
    for_each_problem(options, "perf", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
      Instance run(entry, p, *device, int64_t(1) << 30);
      run.reset();
      double s = median_seconds(run);
      Cost c = run.the_case().expense();
      double bytes = double(c.bytes_read + c.bytes_written);
      fmt::print("{:10.3f} {:10.1f} {:9.1f}  {}\n", s * 1e3, c.flops / s * 1e-9, bytes / s * 1e-9, p.line);
    });
  }
  return 0;
}

}  // namespace trireme::harness
