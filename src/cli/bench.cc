// trireme bench: what this machine reaches at best; the denominators of MFU and of every roofline.
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/machine.h"
#include "cli/cli.h"
#include "comm/measure.h"
#include "comm/thread/thread_world.h"
#include "device/cpu/peak.h"

namespace trireme::cli {
namespace {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t at = text.find("model name");
  size_t colon = at == std::string::npos ? at : text.find(": ", at);
  if (colon == std::string::npos) return "cpu";
  return text.substr(colon + 2, text.find('\n', colon) - colon - 2);
}

void show(const ClusterSpec& c) {
  fmt::print("{}, {} thread(s)\n", c.name, c.threads);
  fmt::print("  f32 peak      {:>9.1f} GFLOP/s\n", c.peak.f32 / 1e9);
  if (c.peak.bf16 > 0)
    fmt::print("  bf16 peak     {:>9.1f} GFLOP/s\n", c.peak.bf16 / 1e9);
  else
    fmt::print("  bf16 peak             none: this processor has no bf16 dot products\n");
  fmt::print("  memory        {:>9.1f} GB/s, {}\n", c.memory_bandwidth / 1e9, human_bytes(c.memory_bytes));
  fmt::print("  rank threads  {:>9.1f} GB/s each way between two, {:.1f} us a short message\n",
             c.intra_node.bandwidth / 1e9, c.intra_node.latency * 1e6);
}

// Messages between two rank threads.
LinkSpec measure_rank_threads() {
  ThreadWorld world(2);
  LinkCost link;
  std::array<std::exception_ptr, 2> errors;
  auto rank = [&](int r) {
    auto factory = world.factory(r, nullptr);
    try {
      LinkCost mine = measure_link(*factory->split(std::vector{0, 1}, "bench"));
      if (r == 0) link = mine;
    } catch (...) {
      errors[size_t(r)] = std::current_exception();
      factory->fail("the measurement broke off");
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
  return {.latency = link.alpha, .bandwidth = link.beta > 0 ? 1 / link.beta : 0};
}

}  // namespace

MeasuredMachine measure_this_machine(int threads) {
  MeasuredMachine m;
  ClusterSpec& c = m.cluster;
  const OthersCpu others;
  c.name = processor_name();
  c.threads = threads;
  c.peak.f32 = cpu::f32_peak(threads);
  c.peak.bf16 = cpu::bf16_peak(threads);
  c.memory_bandwidth = cpu::memory_rates(threads).triad;
  c.intra_node = measure_rank_threads();
  m.others = others.share();
  c.memory_bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
  c.source = "measured by trireme bench: FMA and bf16 dot peaks, memory triad, rank threads";
  c.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  return m;
}

void add_bench(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "bench",
      "measures this machine (peaks of arithmetic and memory, messages between rank "
      "threads) and keeps the result as its cluster file\nexample: trireme bench --out this.toml");
  auto out = std::make_shared<std::string>();
  auto threads = std::make_shared<int>(0);
  verb->add_option("--out", *out,
                   "cluster file to write; default: the one that other verbs read for this machine");
  verb->add_option("--threads", *threads, "threads to measure with; default: the cores this process may use")
      ->check(CLI::Range(1, 65536));
  verb->callback([out, threads] {
    const MeasuredMachine m = measure_this_machine(*threads > 0 ? *threads : threads_of(RunSpec()));
    const ClusterSpec& c = m.cluster;
    if (m.disturbed())
      fmt::print(stderr,
                 "note: other processes had {:.0f} % of the processors meanwhile: the peaks are too low; "
                 "measure again when the machine is quiet\n",
                 100 * m.others);
    fs::path path = out->empty() ? measured_cluster_path() : fs::path(*out);
    if (path.has_parent_path()) make_folders(path.parent_path());
    save_cluster(c, path);
    show(c);
    fmt::print("written to {}\n", path.string());
  });
}

}  // namespace trireme::cli
