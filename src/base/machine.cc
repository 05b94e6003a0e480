#include "base/machine.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

namespace trireme {
namespace {

// Files of /proc and /sys have no size, so they are read as streams; a megabyte is more than any has.
std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(1 << 20, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(std::max<std::streamsize>(0, in.gcount())));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t n = 0;
  auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

// The value of the first line "name : value".
std::string field(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string key = line.substr(0, colon);
    key.erase(key.find_last_not_of(" \t") + 1);
    if (key != name) continue;
    size_t at = line.find_first_not_of(" \t", colon + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

int64_t kib(const std::string& meminfo, std::string_view name) {
  std::string value = field(meminfo, name);
  int64_t n = number(value.substr(0, value.find(' '))).value_or(0);
  return n > 0 && n < int64_t(1) << 50 ? n * 1024 : 0;
}

// Folders of this process's control group from the innermost out: each may limit it. /proc/self/cgroup has
// "0::/a/b" (version 2) or "4:memory:/a/b" (version 1, one hierarchy a controller).
std::vector<fs::path> groups(const fs::path& root, const std::string& controller) {
  std::istringstream lines(slurp(root / "proc/self/cgroup"));
  std::vector<fs::path> all;
  for (std::string line; std::getline(lines, line);) {
    size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    std::string names = "," + line.substr(a + 1, b - a - 1) + ",", path = line.substr(b + 1);
    bool unified = names == ",,";
    if (!unified && names.find("," + controller + ",") == std::string::npos) continue;
    fs::path base = root / "sys/fs/cgroup" / (unified ? "" : controller);
    for (fs::path p = fs::path(path).relative_path(); !p.empty(); p = p.parent_path())
      all.push_back(base / p);
    all.push_back(base);
  }
  return all;
}

double cpu_quota(const fs::path& root) {
  double least = 0;
  auto limit = [&](std::optional<int64_t> quota, std::optional<int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    double cores = double(*quota) / double(*period);
    if (least == 0 || cores < least) least = cores;
  };
  for (const fs::path& g : groups(root, "cpu")) {
    std::string max = slurp(g / "cpu.max");  // "200000 100000" or "max 100000"
    size_t space = max.find(' ');
    if (space != std::string::npos) limit(number(max.substr(0, space)), number(max.substr(space + 1)));
    limit(number(slurp(g / "cpu.cfs_quota_us")), number(slurp(g / "cpu.cfs_period_us")));
  }
  return least;
}

int64_t memory_limit(const fs::path& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const fs::path& g : groups(root, "memory"))
    for (const char* name : {"memory.max", "memory.limit_in_bytes"})
      if (auto n = number(slurp(g / name)); n && *n > 0) least = std::min(least, *n);
  return least < int64_t(1) << 60 ? least : 0;  // version 1 says "none" by a number near 2^63
}

int numa_nodes(const fs::path& root) {
  int n = 0;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(root / "sys/devices/system/node", ec)) {
    std::string name = e.path().filename().string();
    n += name.starts_with("node") && number(name.substr(4)).has_value();
  }
  return std::max(1, n);
}

struct CpuTime {
  double busy = 0, all = 0;  // seconds, of all cores together
};

// The first line of /proc/stat: "cpu" and ticks of user, nice, system, idle, iowait, irq, softirq, steal;
// what follows is part of user and nice.
CpuTime cpu_time(const fs::path& root) {
  std::istringstream in(slurp(root / "proc/stat"));
  std::string name;
  in >> name;
  CpuTime t;
  const double tick = 1 / double(std::max(1L, sysconf(_SC_CLK_TCK)));
  int64_t n = 0;
  for (int i = 0; name == "cpu" && i < 8 && in >> n; i++) {
    t.all += double(n) * tick;
    if (i != 3 && i != 4) t.busy += double(n) * tick;
  }
  return t;
}

double own_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

}  // namespace

OthersCpu::OthersCpu(fs::path root) : root_(std::move(root)), own_(own_cpu_seconds()) {
  const CpuTime t = cpu_time(root_);
  busy_ = t.busy, all_ = t.all;
}

double OthersCpu::share() const {
  const CpuTime t = cpu_time(root_);
  const double others = t.busy - busy_ - (own_cpu_seconds() - own_), all = t.all - all_;
  return all > 0 ? std::clamp(others / all, 0.0, 1.0) : 0;
}

std::string chosen_word(std::string_view text) {
  size_t open = text.find('['), close = text.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return "";
  return std::string(text.substr(open + 1, close - open - 1));
}

Machine read_machine(const fs::path& root) {
  Machine m;
  const std::string cpuinfo = slurp(root / "proc/cpuinfo"), meminfo = slurp(root / "proc/meminfo");
  m.cpu = field(cpuinfo, "model name");
  std::istringstream flags(field(cpuinfo, "flags"));
  for (std::string f; flags >> f;) m.flags.insert(f);
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) m.cores += line.starts_with("processor");
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) m.allowed = CPU_COUNT(&set);
  m.quota = cpu_quota(root);
  m.memory = kib(meminfo, "MemTotal"), m.available = kib(meminfo, "MemAvailable");
  m.memory_limit = memory_limit(root);
  m.huge_pages = chosen_word(slurp(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  m.numa_nodes = numa_nodes(root);
  m.governor = slurp(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  std::istringstream(slurp(root / "proc/loadavg")) >> m.load;
  return m;
}

}  // namespace trireme
