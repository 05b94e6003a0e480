#include "train/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "base/clock_burst.h"
#include "base/error.h"
#include "base/json_depth.h"
#include "base/machine.h"
#include "base/timed.h"
#include "comm/comm_set.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kName = "events.jsonl";
constexpr int64_t kWarm = 3;           // steps after which all cores compute at the clock that they keep
constexpr double kBetweenClocks = 60;  // s

double wall_s() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

std::string date_text(double seconds) {
  const time_t t = time_t(seconds);
  tm parts{};
  char text[32] = "";
  if (::gmtime_r(&t, &parts)) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

double rounded(double v) {
  return std::round(v * 1e6) / 1e6;
}

std::string host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

bool ends_in_half_a_line(const fs::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

// Seconds that this process has lived: field 22 of /proc/self/stat is when it started, in ticks since boot.
double process_age() {
  std::ifstream in("/proc/self/stat");
  std::string text;
  std::getline(in, text);
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos) return 0;
  std::istringstream fields(text.substr(name_end + 2));
  std::string word;
  for (int field = 3; field <= 22 && fields >> word; field++) {
  }
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const double started = std::strtod(word.c_str(), nullptr) / double(std::max(1l, ::sysconf(_SC_CLK_TCK)));
  return std::max(0.0, double(now.tv_sec) + double(now.tv_nsec) * 1e-9 - started);
}

// Adds the last step of metrics.jsonl, and the seconds of its lines after `done`. Returns that step.
int64_t add_lost(ordered_json& fields, const fs::path& metrics, int64_t done) {
  struct stat st;
  if (::stat(metrics.c_str(), &st) != 0) return 0;
  int64_t last = 0;
  double seconds = 0;
  std::ifstream in(metrics);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json j = shallow_json(line);
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) continue;
    const int64_t step = j["step"].get<int64_t>();
    last = std::max(last, step);
    if (step > done && j.contains("step_s") && j["step_s"].is_number()) seconds += j["step_s"].get<double>();
  }
  fields["had_step"] = last;
  fields["had_time"] = rounded(double(st.st_mtim.tv_sec) + double(st.st_mtim.tv_nsec) * 1e-9);
  fields["lost_s"] = rounded(seconds);
  return last;
}

}  // namespace

void append_event(const fs::path& run_dir, std::string_view event, ordered_json fields) noexcept try {
  std::error_code ec;
  if (!fs::is_directory(run_dir, ec)) return;
  const double now = wall_s();
  ordered_json line = {{"event", event}, {"time", rounded(now)}, {"date", date_text(now)}};
  for (auto& [key, value] : fields.items()) line[key] = std::move(value);
  const fs::path file = run_dir / kName;
  std::string text = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  if (ends_in_half_a_line(file)) text.insert(0, "\n");
  append_line(file, text);
} catch (const std::exception&) {
  // A report knows less; the run is the same.
}

ordered_json machine_json() {
  const Machine m = read_machine();
  ordered_json j = {{"cpu", m.cpu},
                    {"cores", m.cores},
                    {"allowed", m.allowed},
                    {"memory_bytes", m.memory},
                    {"huge_pages", m.huge_pages},
                    {"numa_nodes", m.numa_nodes},
                    {"load", m.load}};
  if (m.quota > 0) j["quota"] = m.quota;
  if (m.memory_limit > 0) j["memory_limit"] = m.memory_limit;
  if (!m.governor.empty()) j["governor"] = m.governor;
  utsname system{};
  if (::uname(&system) == 0) j["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  ordered_json env = ordered_json::object();
  for (const char* name :
       {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
        "GOMP_SPINCOUNT", "KMP_AFFINITY", "DNNL_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES", "NCCL_IB_DISABLE",
        "NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO", "MALLOC_ARENA_MAX"})
    if (const char* value = std::getenv(name)) env[name] = value;
  j["env"] = env;
  return j;
}

int64_t count_hosts(Communicator& control) {
  const std::vector<std::string> hosts = gather_texts(control, host_name());
  return int64_t(std::set(hosts.begin(), hosts.end()).size());
}

struct EventFile::Others {
  OthersCpu cpu;
};

EventFile::EventFile(fs::path run_dir) : dir_(std::move(run_dir)) {}
EventFile::~EventFile() = default;

void EventFile::start(int64_t done, const std::string& facts, int64_t nodes, int64_t world) try {
  ordered_json fields = {{"step", done},
                         {"process_s", rounded(process_age())},
                         {"pid", ::getpid()},
                         {"world", world},
                         {"nodes", nodes}};
  fields["host"] = host_name();
  const int64_t had = add_lost(fields, dir_ / "metrics.jsonl", done);
  fields["machine"] = machine_json();
  const ordered_json more = ordered_json::parse(facts, nullptr, false);
  if (more.is_object())
    for (const auto& [key, value] : more.items()) fields[key] = value;
  append_event(dir_, done > 0 || had > 0 ? "resume" : "start", std::move(fields));
  others_ = std::make_unique<Others>();
} catch (const std::exception&) {
  // As append_event.
}

void EventFile::add_clock(ordered_json& fields) {
  fields["clock"] = rounded(clock_burst());
  if (!others_) return;
  fields["others_cpu"] = rounded(others_->cpu.share());
  others_ = std::make_unique<Others>();
}

void EventFile::after_step(int64_t step) {
  if (++steps_ < kWarm || now_s() < next_clock_) return;
  next_clock_ = now_s() + kBetweenClocks;
  ordered_json fields = {{"step", step}};
  add_clock(fields);
  append_event(dir_, "clock", std::move(fields));
}

void EventFile::end(int64_t step, bool interrupted) {
  ordered_json fields = {{"step", step}};
  if (steps_ > 0) add_clock(fields);
  append_event(dir_, interrupted ? "interrupt" : "end", std::move(fields));
}

void EventFile::failed(int64_t step, std::string_view why) {
  append_event(dir_, "failure", {{"step", step}, {"text", std::string(why.substr(0, 500))}});
}

}  // namespace trireme
