// trireme bench: what this machine reaches at best; the denominators of MFU and of every roofline.
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "base/machine.h"
#include "base/say.h"
#include "base/timed.h"
#include "base/topology.h"
#include "catalog/cluster_data.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "comm/measure.h"
#include "comm/thread/thread_world.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/peak.h"
#include "device/device.h"
#include "measure/calibrate.h"
#include "measure/device_rates.h"
#include "measure/speeds.h"
#include "spec/found_topology.h"

namespace trireme::cli {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t at = text.find("model name");
  size_t colon = at == std::string::npos ? at : text.find(": ", at);
  if (colon == std::string::npos) return "cpu";
  return text.substr(colon + 2, text.find('\n', colon) - colon - 2);
}

namespace {

std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

void show_link(std::string_view between, const LinkSpec& l) {
  if (cost_of(l).known())
    print_text("  {} {:>9.1f} GB/s each way between two, {:.1f} us a short message\n", between,
               l.bandwidth / 1e9, l.latency * 1e6);
}

void show_links(const ClusterSpec& c) {
  show_link("rank threads ", c.intra_node);
  show_link("processes    ", c.intra_node_mpi);
  show_link("machines     ", c.inter_node);
}

// The fastest product and how many sizes there are, by type.
void show_calibration(const Calibration& c) {
  if (!c.known()) return;
  print_text("  {} rank{} of {} thread{}: inside training steps", c.ranks, c.ranks == 1 ? "" : "s at once",
             c.threads, c.threads == 1 ? "" : "s");
  for (const std::string& line : c.ops) {
    std::string wrong;
    const SpeedTable t = speed_table_of(line, wrong);
    if (!t.of.starts_with("matmul ")) continue;
    double best = 0;
    for (const SpeedPoint& p : t.points) best = std::max(best, p.work / p.seconds);
    print_text(", {} products up to {:.1f} GFLOP/s ({} sizes)", t.of.substr(7), best / 1e9, t.points.size());
  }
  std::set<int64_t> groups;  // of calls' tables: "all_reduce ordered 4 ..."
  for (const std::string& line : c.calls) {
    std::istringstream words(line);
    std::string name, algorithm;
    int64_t ranks = 0;
    if (words >> name >> algorithm >> ranks) groups.insert(ranks);
  }
  print_text("; {} tables of ops, {} of collectives{}\n", c.ops.size(), c.calls.size(),
             groups.empty() ? "" : fmt::format(" (groups of {})", fmt::join(groups, ", ")));
}

void show(const ClusterSpec& c) {
  const bool processor = c.threads > 0;
  print_text("{}{}\n", c.name, processor ? fmt::format(", {} thread(s)", c.threads) : "");
  if (c.peak.f32 == 0) return show_links(c);  // processes came first
  print_text("  f32 peak      {:>9.1f} GFLOP/s\n", c.peak.f32 / 1e9);
  if (c.peak.bf16 > 0)
    print_text("  bf16 peak     {:>9.1f} GFLOP/s\n", c.peak.bf16 / 1e9);
  else if (processor)
    print_text("  bf16 peak             none: this processor has no bf16 dot products\n");
  print_text("  memory        {:>9.1f} GB/s, {}\n", c.memory_bandwidth / 1e9, human_bytes(c.memory_bytes));
  show_links(c);
  if (c.disk_bandwidth > 0) print_text("  disk          {:>9.1f} GB/s\n", c.disk_bandwidth / 1e9);
  if (c.host_bandwidth > 0) print_text("  host          {:>9.1f} GB/s\n", c.host_bandwidth / 1e9);
  show_calibration(c.alone);
  show_calibration(c.together);
}

void keep_and_show(const ClusterSpec& c, const fs::path& path) {
  if (path.has_parent_path()) make_folders(path.parent_path());
  save_cluster(c, path);
  show(c);
  print_text("written to {}\n", path.string());
}

LinkSpec spec_of(const LinkCost& link) {
  return {.latency = link.alpha, .bandwidth = link.beta > 0 ? 1 / link.beta : 0};
}

// Bytes/s of a file beside the cluster file: written and flushed, then read where the system has forgotten
// it; the slower of the two. 0 where there is no room for it.
double measure_disk(const fs::path& folder) {
  constexpr size_t kBytes = size_t(128) << 20, kPart = size_t(8) << 20;
  const std::string path = (folder / fmt::format("bench-{}.part", getpid())).string();
  std::vector<char> part(kPart, 'x');
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  ::unlink(path.c_str());  // gone with the descriptor, however this ends
  bool whole = true;
  const double begin = now_s();
  for (size_t at = 0; at < kBytes && whole; at += kPart)
    whole = ::write(file, part.data(), kPart) == ssize_t(kPart);
  whole = whole && ::fsync(file) == 0;
  const double written = now_s();
  (void)::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  for (size_t at = 0; at < kBytes && whole; at += kPart)
    whole = ::pread(file, part.data(), kPart, off_t(at)) == ssize_t(kPart);
  const double read = now_s();
  ::close(file);
  return whole ? double(kBytes) / std::max(written - begin, read - written) : 0;
}

// Messages between two rank threads.
LinkSpec measure_rank_threads(const std::function<bool()>& stop) {
  ThreadWorld world(2);
  LinkCost link;
  std::array<std::exception_ptr, 2> errors;
  auto rank = [&](int r) {
    auto factory = world.factory(r, nullptr);
    try {
      LinkCost mine = measure_link(*factory->split(std::vector{0, 1}, "bench"), 0.2, 8 << 20, stop);
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
  return spec_of(link);
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

// A message between rank 0 and another; the others pass. Collective over all of them.
LinkSpec measure_processes(CommFactory& ranks, int other) {
  LinkCost link;
  agreed(ranks, [&] {
    if (ranks.rank() == 0 || ranks.rank() == other)
      link = measure_link(*ranks.split(std::vector{0, other}, "bench"));
    return true;
  });
  return spec_of(link);  // on rank 0
}

// The machine as it was measured before, if it was.
ClusterSpec file_to_add_to(const fs::path& file) {
  constexpr std::string_view kProcesses = "links of MPI processes";
  ClusterSpec c;
  if (fs::exists(file))
    c = load_cluster(file);
  else
    c.name = processor_name(), c.date = today(), c.source = "measured by trireme bench";
  if (c.source.find(kProcesses) == std::string::npos) c.source += fmt::format("; {}", kProcesses);
  return c;
}

// What processes started by mpirun or srun measure: the links between them, which are added to the cluster
// file. Peaks and rank threads are measured without them, where all cores are one process's.
void bench_processes(const fs::path& out, bool named, int threads) {
  const std::unique_ptr<ProcessWorld> world = join_launched();
  const std::unique_ptr<CommFactory> ranks = world->factory(nullptr);
  const std::vector<std::string> hosts = gather_texts(ranks->control(), host_name());
  int here = 0, elsewhere = 0;  // the first rank on rank 0's machine, and on another
  for (int r = world->size() - 1; r > 0; r--) (hosts[size_t(r)] == hosts[0] ? here : elsewhere) = r;
  ClusterSpec c;
  agreed(*ranks, [&] {
    if (elsewhere > 0 && !named)
      bad_request(
          "these {} processes are on {} machines: give --out FILE for a cluster file of them all, and name "
          "it in "
          "cluster.file",
          world->size(), std::set(hosts.begin(), hosts.end()).size());
    if (threads > 0)
      bad_request("--threads = {}: processes measure the links between them, and no peaks; leave it out",
                  threads);
    if (world->rank() == 0) c = file_to_add_to(out);
    if (elsewhere > 0 && !c.tiers.empty())
      bad_request(
          "--out {}: its [[tier]]s say how machines are joined, and a measured inter_node would contradict "
          "them; give another file, or take the tiers out",
          out.string());
    return true;
  });
  if (here > 0) c.intra_node_mpi = measure_processes(*ranks, here);
  if (elsewhere > 0) {
    c.inter_node = measure_processes(*ranks, elsewhere);
    c.nodes = int64_t(std::set(hosts.begin(), hosts.end()).size());
  }
  agreed(*ranks, [&] {
    if (world->rank() == 0) keep_and_show(c, out);
    return true;
  });
}

void bench_gpu(const std::string& name, const fs::path& out, int threads) {
  ClusterSpec c = gpu_of_this_machine(name, true);
  Progress bar("measuring kernels inside training steps", 100);
  c.alone = calibrate({.ranks = 1, .threads = threads, .bf16 = true, .device = name},
                      [&](int64_t done, int64_t all) { bar.update(100 * done / all); });
  keep_and_show(c, out);
}

}  // namespace

ClusterSpec gpu_of_this_machine(const std::string& name, bool measured) {
  const std::unique_ptr<Device> device = make_device(name);
  Topology found = read_topology();
  const bool nvml = ask_nvml(found);
  const size_t all = found.gpus.size();
  const std::string gpu = keep_alike(found, device->pci());
  ClusterSpec c;
  const std::string_view vendor = vendor_file_of(gpu);
  std::string source;
  for (const ShippedCluster& s : kShippedClusters)
    if (!vendor.empty() && s.name == vendor) {
      c = parse_cluster(s.toml, s.name);
      source = fmt::format("peaks of configs/cluster/{}.toml ({}); ", s.name, c.source);
    }
  c.name = gpu.empty() ? "GPU" : gpu;
  c.date = today();
  std::string joined = add_topology(c, found);
  if (joined.empty())
    joined = "no GPU on the bus that may be seen";
  else if (found.gpus.size() < all)
    joined += fmt::format("; {} of another name left out", all - found.gpus.size());
  if (!measured && c.peak.bf16 > 0) {
    c.source = source + joined;
    return c;
  }
  const DeviceRates r = measure_rates(*device);
  if (c.peak.bf16 == 0) {
    c.peak = {.f32 = r.f32, .bf16 = r.bf16, .f16 = r.bf16};
    source = "peaks are what products of 8192 reach: no vendor's figures are known; ";
  }
  c.memory_bandwidth = r.memory;
  if (r.to_host > 0) c.host_bandwidth = std::min(r.to_host, r.from_host);
  c.source = fmt::format(
      "{}{}{}; measured by trireme bench: products of 8192 at {:.4g} (bf16) and {:.4g} TFLOP/s (f32), memory "
      "{:.4g} GB/s, to the host {:.4g} and from it {:.4g} GB/s",
      source, joined, nvml ? "" : "; NVML does not answer", r.bf16 / 1e12, r.f32 / 1e12, r.memory / 1e9,
      r.to_host / 1e9, r.from_host / 1e9);
  return c;
}

Calibration calibrate_this_machine(int ranks, int threads, bool quick, const Deadline& until) {
  Progress bar(fmt::format("measuring kernels, {} rank{} x {} thread{}", ranks, ranks == 1 ? "" : "s",
                           threads, threads == 1 ? "" : "s"),
               100);
  const bool bf16 = make_device("cpu")->native(DType::bf16);
  CalibrationRequest request{.ranks = ranks, .threads = threads, .bf16 = bf16, .quick = quick};
  request.stop = [&until] { return interrupt_requested() || until.passed(); };
  bar.update(0);
  Calibration c = calibrate(request, [&](int64_t done, int64_t all) { bar.update(100 * done / all); });
  if (!c.known()) return c;
  c.f32 = cpu::f32_peak(threads, cpu::kPeakSeconds, request.stop);
  c.bf16 = cpu::bf16_peak(threads, cpu::kPeakSeconds, request.stop);
  c.memory_bandwidth = cpu::memory_rates(threads, cpu::kPeakSeconds, 0, request.stop).triad;
  return request.stop() ? Calibration() : c;
}

ClusterSpec measure_this_machine(int threads, const Deadline& until) {
  ClusterSpec c;
  const OthersCpu others;
  c.name = processor_name();
  c.threads = threads;
  const auto stop = [&until] { return interrupt_requested() || until.passed(); };
  Progress bar("measuring peaks", 4);
  bar.update(0);
  c.peak.f32 = cpu::f32_peak(threads, cpu::kPeakSeconds, stop);
  bar.update(1);
  c.peak.bf16 = cpu::bf16_peak(threads, cpu::kPeakSeconds, stop);
  bar.update(2);
  c.memory_bandwidth = cpu::memory_rates(threads, cpu::kPeakSeconds, 0, stop).triad;
  bar.update(3);
  c.intra_node = measure_rank_threads(stop);
  bar.update(4);
  c.others = others.share();
  c.memory_bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
  c.source = "measured by trireme bench: FMA and bf16 dot peaks, memory triad, rank threads";
  c.date = today();
  return c;
}

namespace {

void bench_processor(const fs::path& path, int threads) {
  const OthersCpu others;
  ClusterSpec c = measure_this_machine(threads);
  const std::string busy =
      "note: other processes had {:.0f} % of the processors meanwhile: {} too slow; measure again when the "
      "machine is quiet\n";
  if (c.disturbed()) say(fmt::runtime(busy), 100 * c.others, "the peaks are");
  keep_links(c, path);
  const int cores = threads_of(RunSpec());
  c.alone = calibrate_this_machine(1, int(c.threads), false);
  if (cores > 1) c.together = calibrate_this_machine(cores, 1, false);
  raise_peaks(c, c.alone), raise_peaks(c, c.together);
  if (path.has_parent_path()) make_folders(path.parent_path());
  c.disk_bandwidth = measure_disk(path.has_parent_path() ? path.parent_path() : fs::path("."));
  c.others = std::max(c.others, others.share());
  keep_and_show(c, path);
  if (c.disturbed()) say(fmt::runtime(busy), 100 * c.others, fmt::format("what {} says is", path.string()));
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "bench",
      "measures this machine (peaks of arithmetic and memory, the disk, messages between rank "
      "threads, and what kernels reach inside training steps, with one rank and with "
      "several) in about a minute, on a busy machine in several, and keeps the result as its cluster file; "
      "under "
      "mpirun measures the links "
      "between the processes "
      "and adds them\nexample: trireme bench --out this.toml");
  auto out = std::make_shared<std::string>();
  auto threads = std::make_shared<int>(0);
  verb->add_option("--out", *out,
                   "cluster file to write; default: the one that other verbs read for this machine");
  verb->add_option("--threads", *threads, "threads to measure with; default: the cores this process may use")
      ->check(CLI::Range(1, 65536));
  auto device = std::make_shared<std::string>("cpu");
  verb->add_option(
          "--device", *device,
          "cpu, or cuda: the first GPU, into --out FILE, with the links that kernel and NVML tell of")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  verb->callback([out, threads, device] {
    const int of_a_rank = std::min(*threads > 0 ? *threads : threads_of(RunSpec()), cpu::most_threads());
    if (*device != "cpu") {
      if (out->empty())
        bad_request("--device {}: give --out FILE: this machine's own file is its processor's", *device);
      return bench_gpu(*device, *out, of_a_rank);
    }
    const fs::path path = out->empty() ? measured_cluster_path() : fs::path(*out);
    if (const std::optional<Launched> started = launched(); started && started->size != 1)
      return bench_processes(path, !out->empty(), *threads);
    bench_processor(path, of_a_rank);
  });
}

}  // namespace trireme::cli
