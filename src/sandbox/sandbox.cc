#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "sandbox/isolate.h"
#include "sandbox/system_calls.h"
#include "sandbox/watched_tree.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// Runs the program with separate globals and writes the word to fd 3 after its last statement. The word is
// not in sys.argv while the program runs.
constexpr const char* kRunner = R"py(
import os, sys
def run():
    word, first = sys.argv.pop().encode(), os.getpid()
    sys.path[:] = [p for p in sys.path if p]
    try:
        with open("/tmp/program.py", "rb") as f:
            code = compile(f.read(), "program.py", "exec")
        exec(code, {})
    except BaseException:
        import traceback
        try:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(1)
    try:
        sys.stdout.flush()
    except OSError:
        pass
    if os.getpid() == first:  # not in a child that the program forked
        os.write(3, word)
    os._exit(0)
run()
)py";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// A file descriptor that is closed at the end.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Fd read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) system_failed_in_run(errno, "sandbox: pipe: {}", std::strerror(errno));
    read = Fd(ends[0]);
    write = Fd(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

std::string random_word() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes))
    system_failed_in_run(errno, "sandbox: getrandom: {}", std::strerror(errno));
  std::string word;
  for (unsigned char b : bytes) word += fmt::format("{:02x}", b);
  return word;
}

bool write_file(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  const int error = errno;
  ::close(fd);
  errno = error;
  return ok;
}

constexpr unsigned kInnerId = 1000;  // in a user namespace

// Without a user namespace: an id that no user of the system has, and no other sandbox (the kernel counts the
// processes of a user).
unsigned own_id() {
  static std::atomic<unsigned> next{0};
  return 2000000000u + unsigned(::getpid()) * 512u + next++ % 512u;
}

// A program of root runs as user 65534, the program of another caller as the caller.
void map_ids(pid_t pid, bool other_user) {
  const std::string proc = fmt::format("/proc/{}/", pid);
  auto lines = [&](unsigned own) {
    return other_user ? fmt::format("0 {} 1\n{} 65534 1\n", own, kInnerId)
                      : fmt::format("{} {} 1\n", kInnerId, own);
  };
  bool ok = other_user || write_file(proc + "setgroups", "deny");
  ok = ok && write_file(proc + "gid_map", lines(::getegid())) &&
       write_file(proc + "uid_map", lines(::geteuid()));
  if (!ok) environment_failed("sandbox: user ids cannot be mapped: {}", std::strerror(errno));
}

// Kills the first process of the sandbox, and with it all others, and waits until all are gone.
class Killer {
 public:
  explicit Killer(pid_t pid) : pid_(pid) {}
  Killer(const Killer&) = delete;
  ~Killer() { end(); }
  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

void add_folders_above(const std::string& path, std::set<std::string>& folders) {
  for (fs::path p = fs::path(path).parent_path(); p != "/" && !p.empty(); p = p.parent_path())
    folders.insert("/new" + p.string());
}

Isolation prepare(const Interpreter& python, const SandboxLimits& limits) {
  Isolation i;
  std::set<std::string> folders = {"/new/tmp", "/new/dev"};
  for (const std::string& path : python.visible) {
    const bool folder = fs::is_directory(path);
    i.binds.push_back({"/old" + path, "/new" + path, folder});
    add_folders_above(path, folders);
    if (folder) folders.insert("/new" + path);
  }
  for (const char* lib : {"/lib", "/lib64"})
    if (fs::is_symlink(lib)) i.links.push_back({fs::read_symlink(lib).string(), std::string("/new") + lib});
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
    if (fs::exists(device)) i.devices.push_back({std::string("/old") + device, std::string("/new") + device});
  i.folders.assign(folders.begin(), folders.end());  // a prefix sorts before what it begins
  i.scratch_options = fmt::format("size={},nr_inodes=1024,mode=1777", limits.files);
  i.filter = system_call_filter();
  i.limits = limits;
  i.other_user = ::geteuid() == 0;
  return i;
}

struct Pipes {
  Pipe go, report, output, done;
};

// Starts the first process. Root does without a user namespace where the kernel makes none, as in a chroot.
pid_t start(Isolation& i, Pipes& p, bool& user_namespace) {
  i.go = p.go.read.get();
  i.report = p.report.write.get();
  i.output = p.output.write.get();
  i.done = p.done.write.get();
  ::fcntl(i.go, F_SETFL, 0);
  const int go = p.go.write.get();
  const unsigned long namespaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
  pid_t pid = -1;
  for (const bool own : {true, false}) {
    user_namespace = own;
    i.user = own ? kInnerId : own_id();
    pid = pid_t(::syscall(SYS_clone, namespaces | (own ? CLONE_NEWUSER : 0ul) | SIGCHLD, 0, 0, 0, 0));
    if (pid >= 0 || !i.other_user) break;
  }
  if (pid == 0) {
    ::close(go);
    run_isolated(i);
  }
  if (pid < 0)
    environment_failed(
        "sandbox: the kernel creates no namespaces for this user: {}; check user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone, and the seccomp profile of a container; in a chroot only root may",
        std::strerror(errno));
  return pid;
}

// One program that runs: reads what it writes, and ends it at a limit.
class Watch {
 public:
  Watch(pid_t pid, Pipes& pipes, const SandboxLimits& limits)
      : pid_(pid), pipes_(pipes), limits_(limits), begin_(Clock::now()) {}

  // True: the report has arrived. False: a limit was reached; result.end names it.
  bool wait() {
    for (int pause_ms = 2;; pause_ms = std::min(20, pause_ms * 2)) {
      pollfd fds[] = {{pipes_.output.read.get(), POLLIN, 0}, {pipes_.report.read.get(), POLLIN, 0}};
      if (output_ended_) fds[0].fd = -1;
      const auto left_ms = int((limits_.wall_s - seconds_since(begin_)) * 1e3) + 1;
      ::poll(fds, 2, std::max(0, std::min(pause_ms, left_ms)));
      drain();
      if (int64_t(result.output.size()) > limits_.output) return reached(SandboxEnd::output);
      if (fds[1].revents != 0) return read_report();
      if (seconds_since(begin_) >= limits_.wall_s) return reached(SandboxEnd::wall_time);
      const TreeUse use = tree_use(pid_);
      if (use.memory > limits_.memory) return reached(SandboxEnd::memory);
      if (use.tasks > limits_.processes + 2) return reached(SandboxEnd::processes);
    }
  }

  // Reads all that the pipe has now.
  void drain() {
    char buffer[16384];
    while (int64_t(result.output.size()) <= limits_.output) {
      const ssize_t n = ::read(pipes_.output.read.get(), buffer, sizeof buffer);
      if (n == 0) output_ended_ = true;
      if (n <= 0) return;
      result.output.append(buffer, size_t(n));
    }
  }

  SandboxResult result;
  SandboxReport report;

 private:
  bool reached(SandboxEnd end) {
    result.end = end;
    return false;
  }
  // The pipe's end without a report: the first process was killed, by the kernel for want of memory.
  bool read_report() {
    if (::read(pipes_.report.read.get(), &report, sizeof report) != ssize_t(sizeof report))
      return reached(SandboxEnd::memory);
    return true;
  }

  pid_t pid_;
  Pipes& pipes_;
  const SandboxLimits& limits_;
  Clock::time_point begin_;
  bool output_ended_ = false;
};

void judge(SandboxResult& r, const SandboxReport& report, bool completed, const SandboxLimits& limits) {
  r.cpu_s = double(report.cpu_us) * 1e-6;
  if (WIFSIGNALED(report.status)) {
    r.code = WTERMSIG(report.status);
    const bool cpu = r.code == SIGXCPU || (r.code == SIGKILL && r.cpu_s >= double(limits.cpu_s));
    r.end = cpu ? SandboxEnd::cpu_time : SandboxEnd::crashed;
    return;
  }
  r.code = WEXITSTATUS(report.status);
  r.end = completed && r.code == 0 ? SandboxEnd::completed : SandboxEnd::failed;
}

}  // namespace

std::string_view name_of(SandboxEnd e) {
  constexpr std::string_view kNames[] = {"completed", "failed", "crashed",   "wall_time",
                                         "cpu_time",  "memory", "processes", "output"};
  return kNames[size_t(e)];
}

std::string_view name_of(SandboxStep s) {
  constexpr std::string_view kNames[] = {"nothing",
                                         "the parent",
                                         "private mounts",
                                         "a tmpfs at /tmp",
                                         "its folders",
                                         "pivot_root",
                                         "a folder",
                                         "a bind mount",
                                         "read-only mounts (Linux 5.12 or later)",
                                         "device files",
                                         "the tmpfs of /tmp",
                                         "leaving the old root",
                                         "the program's file",
                                         "the user id",
                                         "a second process",
                                         "resource limits",
                                         "dropping capabilities",
                                         "the seccomp filter",
                                         "starting Python"};
  return kNames[size_t(s)];
}

Sandbox::Sandbox(Interpreter python) : interpreter_(std::move(python)) {
  if (system_call_filter().empty())
    bad_request("the sandbox runs on x86-64 and 64-bit ARM processors; this is another one");
  if (!lists_children())
    environment_failed("sandbox: /proc/thread-self/children: the kernel has no CONFIG_PROC_CHILDREN");
  const SandboxResult r = run("", {.wall_s = 120});  // Python's start on a busy machine
  if (r.end != SandboxEnd::completed)
    environment_failed("sandbox: an empty Python program ends with {} {}: {}", name_of(r.end), r.code,
                       r.output);
}

SandboxResult Sandbox::run(std::string_view program, const SandboxLimits& limits) const {
  Isolation i = prepare(interpreter_, limits);
  const std::string word = random_word();
  i.program = program;
  i.argv = {interpreter_.executable.c_str(), "-s", "-B", "-c", kRunner, word.c_str(), nullptr};
  i.environment = {"PATH=/usr/bin:/bin", "HOME=/tmp",        "TMPDIR=/tmp",
                   "LANG=C.UTF-8",       "PYTHONHASHSEED=0", nullptr};
  Pipes pipes;
  bool user_namespace = true;
  Killer killer(start(i, pipes, user_namespace));
  const pid_t pid = killer.pid();
  if (user_namespace) map_ids(pid, i.other_user);
  pipes.output.write.close();
  pipes.report.write.close();
  pipes.done.write.close();
  const auto begin = Clock::now();
  if (::write(pipes.go.write.get(), "g", 1) != 1)
    system_failed_in_run(errno, "sandbox: pipe: {}", std::strerror(errno));
  Watch watch(pid, pipes, limits);
  const bool ended = watch.wait();
  killer.end();
  watch.drain();
  SandboxResult& r = watch.result;
  r.wall_s = seconds_since(begin);
  if (int64_t(r.output.size()) > limits.output) r.output.resize(size_t(limits.output));
  if (!ended) return r;
  if (watch.report.step != SandboxStep::none) {
    const int place = watch.report.place;
    environment_failed(
        "sandbox: {} failed{}: {}; the kernel or a security module (AppArmor, a container) forbids it",
        name_of(watch.report.step), place < 0 ? "" : " at " + i.binds[size_t(place)].to.substr(4),
        std::strerror(watch.report.error));
  }
  char said[64];
  const ssize_t n = ::read(pipes.done.read.get(), said, sizeof said);
  judge(r, watch.report, n == ssize_t(word.size()) && std::string_view(said, size_t(n)) == word, limits);
  return r;
}

}  // namespace trireme
