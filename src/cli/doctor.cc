// trireme doctor: what of this machine's hardware and libraries trireme can use, a line each, with advice.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>

#include "base/json.h"
#include "base/machine.h"
#include "base/topology.h"
#include "cli/cli.h"
#include "cli/disk_room.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/libraries.h"
#include "device/device.h"
#include "spec/supported.h"

namespace trireme::cli {
namespace {

// "note" is worth knowing, "warning" costs speed or safety, "bad" makes trireme unusable here.
struct Finding {
  std::string topic, level, text, advice;
};
using Findings = std::vector<Finding>;

void processor(const Machine& m, Findings& out) {
  double cores = m.allowed > 0 ? m.allowed : m.cores;
  std::string text = fmt::format("{}; {} of {} cores may be used", m.cpu.empty() ? "of unknown name" : m.cpu,
                                 m.allowed > 0 ? m.allowed : m.cores, m.cores);
  if (m.quota > 0) text += fmt::format(", for {:.3g} cores' worth of time (control group)", m.quota);
  bool throttled = m.quota > 0 && m.quota < cores;
  out.push_back({"cores", throttled ? "warning" : "ok", text,
                 throttled
                     ? fmt::format("set train.threads = {}: more threads than the quota are stopped in turn",
                                   std::max(1, int(m.quota)))
                     : ""});
  if (cpu::most_threads() < cores)
    out.push_back({"threads", "warning",
                   fmt::format("OMP_THREAD_LIMIT lets a rank have {} at most", cpu::most_threads()),
                   "unset OMP_THREAD_LIMIT: train.threads says how many a rank has"});
  if (m.load > 0.25 * cores)
    out.push_back({"load", "warning",
                   fmt::format("{:.1f} processes wanted to run in the last minute", m.load),
                   "timings will be poor: measure on an idle machine"});
  if (!m.governor.empty())
    out.push_back({"clock", m.governor == "powersave" ? "warning" : "ok", "governor " + m.governor,
                   m.governor == "powersave" ? "as root: cpupower frequency-set -g performance" : ""});
}

void kernels(const Machine& m, Findings& out) {
  std::string sets;
  for (const char* f : {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "sve"})
    if (m.flags.count(f)) sets += std::string(sets.empty() ? "" : ", ") + f;
  out.push_back({"instructions", sets.empty() ? "note" : "ok",
                 sets.empty() ? "none of AVX2, AVX-512, AMX" : sets,
                 sets.empty() ? "everything works, slowly" : ""});
  out.push_back({"kernels", "ok",
                 fmt::format("{} of Highway; matrix products by oneDNN {} with {}", cpu::simd_kernels(),
                             cpu::onednn_version(), cpu::onednn_instructions()),
                 ""});
  bool bf16 = make_device("cpu")->native(DType::bf16);
  out.push_back({"bf16", bf16 ? "ok" : "note",
                 bf16 ? "native: precision.compute = \"auto\" takes bf16" : "not native: \"auto\" takes f32",
                 ""});
}

void memory(const Machine& m, Findings& out) {
  std::string text = fmt::format("{}, {} available", human_bytes(m.memory), human_bytes(m.available));
  if (m.memory_limit > 0 && m.memory_limit < m.memory)
    text += fmt::format("; the control group allows {}", human_bytes(m.memory_limit));
  bool little = m.available > 0 && m.available < int64_t(1) << 30;
  out.push_back(
      {"memory", little ? "warning" : "ok", text,
       little ? "`trireme plan RUN.toml` says what a run needs; make batch.micro or data.seq_len smaller"
              : ""});
  bool huge = m.huge_pages == "always" || m.huge_pages == "madvise";
  out.push_back(
      {"huge pages", huge ? "ok" : "warning",
       m.huge_pages.empty() ? "the system does not say" : "transparent: " + m.huge_pages,
       huge ? ""
            : "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (up to 17 % of a step)"});
  if (m.numa_nodes > 1)
    out.push_back({"NUMA", "note", fmt::format("{} nodes", m.numa_nodes),
                   "a run of one rank is best kept on one: numactl -N 0 -m 0 trireme train ..."});
}

// As their makers write them: CUDA 12040 is 12.4; NCCL 22809 is 2.28.9, and was 2708 for 2.7.8 before 2.9.
std::string cuda_version(int v) {
  return fmt::format("{}.{}", v / 1000, v % 1000 / 10);
}
std::string nccl_version(int v) {
  if (v < 10000) return fmt::format("{}.{}.{}", v / 1000, v % 1000 / 100, v % 100);
  return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

// Does this version run `key` = `value`, as limits_of_version() has it?
bool runs(const std::string& key, std::string_view value) {
  const auto limits = limits_of_version();
  auto it = limits.find(key);
  return it == limits.end() || it->second.find(value) != std::string::npos;
}

// Is a shared library there, and does a value of a key use it, as this program was built?
void library(std::string_view topic, std::initializer_list<const char*> names,
             std::string_view version_symbol, std::string (*version_text)(int), const std::string& key,
             std::string_view value, bool built, std::string_view install, std::string_view rebuild,
             Findings& out) {
  const bool used = runs(key, value);
  for (const char* name : names) {
    void* lib = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (!lib) continue;
    std::string version;
    auto get = reinterpret_cast<int (*)(int*)>(::dlsym(lib, std::string(version_symbol).c_str()));
    int v = 0;
    if (get && get(&v) == 0) version = ", version " + version_text(v);
    ::dlclose(lib);
    out.push_back(
        {std::string(topic), "note",
         fmt::format(
             "{} is there{}; {}", name, version,
             !used   ? "this version does not use it"
             : built ? fmt::format("{} = \"{}\" uses it", key, value)
                     : fmt::format("{} = \"{}\" would, and this trireme was built without it", key, value)),
         used && !built ? std::string(rebuild) : ""});
    return;
  }
  out.push_back({std::string(topic), "note",
                 used ? fmt::format("absent; {} = \"{}\" needs it{}", key, value,
                                    built ? "" : ", and this trireme was built without it")
                      : "absent; this version does not need it",
                 std::string(install)});
}

void measured(Findings& out) {
  fs::path path = measured_cluster_path();
  if (!fs::exists(path)) {
    out.push_back({"peak", "note", "not measured yet",
                   "`trireme bench` does it in a minute; other verbs when they need it, less of it"});
    return;
  }
  try {
    ClusterSpec c = load_cluster(path);
    const int cores = threads_of(RunSpec());
    out.push_back(
        {"peak", c.disturbed() ? "warning" : "ok",
         fmt::format(
             "f32 {:.0f} GFLOP/s, bf16 {}, memory {:.1f} GB/s, with {} thread{} on {}{}", c.peak.f32 / 1e9,
             c.peak.bf16 > 0 ? fmt::format("{:.0f} GFLOP/s", c.peak.bf16 / 1e9) : "none",
             c.memory_bandwidth / 1e9, c.threads, c.threads == 1 ? "" : "s", c.date,
             c.disturbed()
                 ? fmt::format(", while other processes had {:.0f} % of the processors", 100 * c.others)
                 : ""),
         c.disturbed() ? "`trireme bench` on a quiet machine measures it again"
         : c.threads == cores
             ? ""
             : fmt::format("of the {} cores that may be used: the run that measured it had so many; "
                           "`trireme bench` measures all",
                           cores)});
  } catch (const Error& e) {
    out.push_back({"peak", "warning", e.what(), "`trireme bench` writes it again"});
  }
}

// Seconds of writing and flushing 4 KiB; below 0 = it cannot be done.
double flush_time(const fs::path& folder) {
  std::string name = (folder / ".trireme-doctor-XXXXXX").string(), page(4096, 'x');
  int fd = ::mkstemp(name.data());
  if (fd < 0) return -1;
  auto begin = std::chrono::steady_clock::now();
  bool ok = ::write(fd, page.data(), page.size()) == ssize_t(page.size()) && ::fsync(fd) == 0;
  double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ::close(fd), ::unlink(name.c_str());
  return ok ? s : -1;
}

void disk(const std::string& dir, Findings& out) {
  fs::path at = fs::absolute(dir).lexically_normal();
  while (!fs::is_directory(at) && at.has_relative_path()) {
    if (fs::exists(at)) {
      out.push_back({"disk", "bad", fmt::format("{} for {}: {} is no folder", at.string(), dir, at.string()),
                     "give another train.dir"});
      return;
    }
    at = at.parent_path();
  }
  const int64_t free = free_bytes(at);
  double seconds = flush_time(at);
  std::string text = fmt::format("{} for {}: {} free", at.string(), dir, free < 0 ? "?" : human_bytes(free));
  if (seconds < 0) {
    out.push_back({"disk", "bad", text + "; it cannot be written to", "give another train.dir"});
    return;
  }
  bool little = free >= 0 && free<int64_t(1) << 30, slow = seconds> 0.1;
  out.push_back({"disk", little || slow ? "warning" : "ok",
                 text + ", a flush takes " + human_seconds(seconds),
                 little ? "a checkpoint takes 12 bytes a parameter, train.keep + 1 of them at once"
                 : slow ? "checkpoints will wait for it: make train.checkpoint_every larger"
                        : ""});
}

// What joins GPUs, where there are any: for a cluster file.
void topology(Findings& out) {
  Topology t = read_topology();
  const bool nvml = ask_nvml(t);
  if (t.gpus.empty()) return;
  const GpuFound& g = t.gpus[0];
  out.push_back(
      {"GPUs", nvml ? "ok" : "warning",
       fmt::format("{} of {}; PCIe {:.1f} GB/s each way, {} NVLinks of {:.0f} GB/s together", t.gpus.size(),
                   g.name.empty() ? "NVIDIA's" : g.name, g.pcie / 1e9, g.nvlinks, g.nvlink / 1e9),
       nvml ? "" : "libnvidia-ml.so.1 does not answer: is NVIDIA's driver there?"});
  for (const NicFound& n : t.nics)
    out.push_back({"network", n.bandwidth > 0 ? "ok" : "warning",
                   fmt::format("{} ({}), {:.0f} Gbit/s", n.name, n.link_layer, n.bandwidth * 8e-9),
                   n.bandwidth > 0 ? "" : "no port of it is up"});
  std::string lines = cluster_lines(t);
  for (char& c : lines)
    if (c == '\n') c = ';';
  out.push_back({"cluster file", "note", "what was found, for cluster.file: " + lines, ""});
}

int doctor(const std::string& dir, bool json) {
  Findings all;
  const Machine m = read_machine();
  processor(m, all);
  kernels(m, all);
  memory(m, all);
  measured(all);
  disk(dir, all);
  constexpr std::string_view kNvcc = "build it where nvcc is (NVIDIA's CUDA toolkit)";
  library("MPI", {"libmpi.so.40", "libmpi.so.12", "libmpi.so"}, "", nullptr, "train.comm", "mpi",
          TRIREME_HAS_MPI, "apt install libopenmpi-dev openmpi-bin, for several machines",
          "apt install libopenmpi-dev openmpi-bin, then cmake --preset release && make", all);
  library("CUDA", {"libcuda.so.1"}, "cuDriverGetVersion", cuda_version, "train.device", "cuda",
          TRIREME_HAS_CUDA, "NVIDIA's driver, for GPUs", kNvcc, all);
  library("NCCL", {"libnccl.so.2"}, "ncclGetVersion", nccl_version, "train.comm", "nccl", TRIREME_HAS_CUDA,
          "NVIDIA's libnccl2, for several GPUs", kNvcc, all);
  topology(all);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  int bad = 0;
  for (const Finding& f : all) {
    bad += f.level == "bad";
    list.push_back({{"topic", f.topic}, {"level", f.level}, {"text", f.text}, {"advice", f.advice}});
    if (!json)
      print_text("{:<8} {:<13} {}{}\n", f.level, f.topic, f.text, f.advice.empty() ? "" : " -> " + f.advice);
  }
  if (json) print_text("{}\n", nlohmann::ordered_json{{"usable", bad == 0}, {"findings", list}}.dump(2));
  return bad;
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("doctor",
                         "what of this machine's hardware and libraries trireme can use, and what to "
                         "do about the rest\nexample: trireme doctor --dir runs");
  auto dir = std::make_shared<std::string>(RunSpec().train.dir);
  auto json = std::make_shared<bool>(false);
  verb->add_option("--dir", *dir, "where runs will write")->capture_default_str();
  verb->add_flag("--json", *json, "prints JSON");
  verb->callback([dir, json] {
    if (doctor(*dir, *json) > 0) run_failed("trireme cannot work here: see the findings marked bad");
  });
}

}  // namespace trireme::cli
