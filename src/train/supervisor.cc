#include "train/supervisor.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "checkpoint/store.h"
#include "train/checkpointing.h"

namespace trireme {
namespace {

constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr size_t kSignals = std::size(kPassedOn);

// The child that signals go to. Zero, or a process that we forked and have not reaped: never a number that
// the system may have given away again, and never one that means several (kill(-1) is everybody).
std::atomic<pid_t> g_child{0};
std::atomic<bool> g_launcher{false};
std::atomic<int> g_signals{0};  // that came
static_assert(std::atomic<pid_t>::is_always_lock_free, "a signal handler may touch only lock-free atomics");

void send(pid_t child, int number) {
  if (child <= 1) return;
  // Marked as passed on: the child may have had the same signal itself, from the terminal or a scheduler that
  // sends it to all, and two of them would make it leave at once (base/interrupt.h).
  sigval none{};
  ::sigqueue(child, number, none);
}

void pass_on(int number) {
  const int before = errno;
  const bool first = g_signals.fetch_add(1) == 0;
  // mpirun hands SIGUSR1 to its processes; at SIGTERM it gives them a second.
  send(g_child.load(), g_launcher.load() ? (first ? SIGUSR1 : SIGTERM) : number);
  errno = before;
}

// Signals go to the child while it lives. They are blocked while it is made. SIGHUP stays ignored under
// nohup.
class PassOn {
 public:
  explicit PassOn(bool launcher) {
    g_launcher = launcher, g_signals = 0;
    sigemptyset(&ours_);
    struct sigaction action {};
    action.sa_handler = pass_on;
    for (size_t i = 0; i < kSignals; i++) {
      sigaddset(&ours_, kPassedOn[i]);
      if (::sigaction(kPassedOn[i], nullptr, &before_[i]) != 0 ||
          (!ignored(i) && ::sigaction(kPassedOn[i], &action, nullptr) != 0))
        run_failed("cannot handle signal {}", kPassedOn[i]);
    }
  }
  PassOn(const PassOn&) = delete;
  ~PassOn() {
    for (size_t i = 0; i < kSignals; i++) ::sigaction(kPassedOn[i], &before_[i], nullptr);
  }
  void block(bool b) const { ::sigprocmask(b ? SIG_BLOCK : SIG_UNBLOCK, &ours_, nullptr); }
  // In the child: the dispositions that a program expects at its start.
  void reset() const {
    for (size_t i = 0; i < kSignals; i++)
      if (!ignored(i)) ::signal(kPassedOn[i], SIG_DFL);
    for (int s : {SIGPIPE, SIGXFSZ}) ::signal(s, SIG_DFL);
    block(false);
  }

 private:
  bool ignored(size_t i) const { return kPassedOn[i] == SIGHUP && before_[i].sa_handler == SIG_IGN; }

  sigset_t ours_;
  struct sigaction before_[kSignals];
};

// report: closed if execvp succeeds; otherwise gets its errno.
[[noreturn]] void become(const std::vector<char*>& argv, const PassOn& signals, pid_t parent, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(int(Fault::interrupted));  // it is gone already
  signals.reset();
  ::execvp(argv[0], argv.data());
  const int why = errno;
  [[maybe_unused]] const ssize_t told = ::write(report, &why, sizeof why);
  ::_exit(127);
}

// How a launch ended.
struct Ended {
  bool launched = true;  // false: this process was asked to leave before
  int error = 0;         // errno: no process, or the command could not be executed
  int status = 0;        // as of waitpid
};

// Waits for the child. Its number is not released before no signal can be sent to it.
int status_of(pid_t child) {
  siginfo_t info;
  while (::waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  g_child = 0;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Ended launch(const SuperviseOptions& o, const PassOn& signals) {
  std::vector<std::string> words = o.command;
  if (o.deadline_at >= 0) {
    const double left = std::max(0.0, o.deadline.seconds_left());
    words.at(size_t(o.deadline_at)) = fmt::format("{:.3f}s", left);
  }
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return {.error = errno};
  const pid_t parent = ::getpid();
  signals.block(true);
  if (g_signals > 0) {
    signals.block(false);
    ::close(report[0]), ::close(report[1]);
    return {.launched = false};
  }
  const pid_t child = ::fork();
  const int why = errno;
  if (child == 0) become(argv, signals, parent, report[1]);
  if (child > 1) g_child = child;
  signals.block(false);
  ::close(report[1]);
  Ended e;
  if (child > 1) {
    ssize_t n = 0;
    while ((n = ::read(report[0], &e.error, sizeof e.error)) < 0 && errno == EINTR) {
    }
    if (n != ssize_t(sizeof e.error)) e.error = 0;
    e.status = status_of(child);
  } else {
    e.error = why;
  }
  ::close(report[0]);
  return e;
}

// Of the last whole line; whoever was killed may have left half of one behind it.
int64_t last_step_of(const fs::path& metrics) {
  if (!fs::exists(metrics)) return 0;
  const std::string text = read_text(metrics);
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return 0;
  const size_t before = text.rfind('\n', end - 1), begin = before == std::string::npos ? 0 : before + 1;
  const auto j = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
  return j.is_object() && j.contains("step") && j["step"].is_number_integer() ? j["step"].get<int64_t>() : 0;
}

// A launcher's processes may outlive it for a moment, and hold the run folder.
void wait_for_folder(const fs::path& run_dir) {
  constexpr int kTries = 300;
  const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
  const int fd = ::open((run_dir / "lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  for (int i = 0; i < kTries && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && g_signals == 0; i++)
    ::nanosleep(&pause, nullptr);
  ::close(fd);
}

// What shells and mpirun make of a signal: 128 + its number.
int signal_of(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  const int code = WEXITSTATUS(status);
  return code > 128 && code < 128 + SIGRTMIN ? code - 128 : 0;
}

bool is_crash(int number) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
  return std::find(std::begin(kCrashes), std::end(kCrashes), number) != std::end(kCrashes);
}

// Changes when a run locks the folder.
std::optional<timespec> lock_time(const fs::path& run_dir) {
  struct stat st;
  if (::stat((run_dir / "lock").c_str(), &st) != 0) return {};
  return st.st_mtim;
}

bool same(const std::optional<timespec>& a, const std::optional<timespec>& b) {
  if (!a || !b) return !a && !b;
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

// One end of the command, classified.
struct Outcome {
  bool final = false;
  int exit_code = 0;  // the supervisor's, if no launch follows
  RunFailure failure;
  std::string reason;
};

// started: a run has locked its folder since the launch.
Outcome outcome_of(const Ended& e, const SuperviseOptions& o, bool started) {
  Outcome out;
  if (e.error != 0) {
    out.exit_code = int(Fault::environment);
    out.reason = fmt::format("{} could not be started ({})", o.command[0], ::strerror(e.error));
    return out;
  }
  if (const int number = signal_of(e.status); number != 0) {
    out.failure = {.by_itself = is_crash(number), .code = -number};
    out.exit_code = int(out.failure.by_itself ? Fault::run : Fault::environment);
    out.reason = fmt::format("it was killed by signal {} ({})", number, ::strsignal(number));
    return out;
  }
  const int code = WEXITSTATUS(e.status);
  out.final = code == 0 || code == int(Fault::request) || code == int(Fault::interrupted);
  out.failure = {.by_itself = code != int(Fault::environment) && (started || !o.launcher), .code = code};
  out.exit_code = out.final ? code : int(out.failure.by_itself ? Fault::run : Fault::environment);
  out.reason = o.launcher && !started ? fmt::format("its launcher failed with exit code {}", code)
                                      : fmt::format("it failed with exit code {}", code);
  return out;
}

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ends early on a signal and at the deadline.
void pause(double seconds, const Deadline& deadline) {
  const double end = steady_s() + seconds;
  while (g_signals == 0 && !deadline.passed()) {
    const double left = std::min(end - steady_s(), 0.05);
    if (left <= 0) return;
    const timespec slice{.tv_sec = 0, .tv_nsec = long(left * 1e9)};
    ::nanosleep(&slice, nullptr);
  }
}

}  // namespace

RunProgress progress_of(const fs::path& run_dir) {
  RunProgress p;
  const Found found = find_newest(checkpoint_root(run_dir), Verify::sizes);
  if (found.newest) p.saved = found.newest->manifest().step;
  p.step = last_step_of(run_dir / "metrics.jsonl");
  return p;
}

int supervise(const SuperviseOptions& o) {
  require(!o.command.empty(), "a command to supervise");
  const PassOn signals(o.launcher);
  RestartPolicy policy(o.restarts);
  RunProgress now;
  for (bool first = true;; first = false) {
    const std::optional<timespec> lock_before = lock_time(o.run_dir);
    const Ended ended = launch(o, signals);
    if (!ended.launched) return int(Fault::interrupted);
    const bool missing = ended.error == ENOENT || ended.error == EACCES || ended.error == ENOEXEC;
    if (first && missing)
      bad_request("supervise: {} could not be started: is it installed, and in PATH?", o.command[0]);
    const Outcome out = outcome_of(ended, o, !same(lock_before, lock_time(o.run_dir)));
    // Asked to leave, it may have been gone before it could say so: nothing is lost but steps.
    if (g_signals > 0)
      return ended.error != 0 || out.failure.code < 0 ? int(Fault::interrupted) : WEXITSTATUS(ended.status);
    if (out.final) return out.exit_code;
    try {
      now = progress_of(o.run_dir);
    } catch (const Error&) {  // the disk fails: what was known before is known still
    }
    RestartDecision next = policy.failed(out.failure, now, steady_s());
    if (o.deadline.passed()) next = {.why_not = "its time is over (--stop-after)"};
    if (!next.again) {
      o.say(fmt::format("supervise: {}, and is not launched again: {}", out.reason, next.why_not));
      return out.exit_code;
    }
    o.say(fmt::format("supervise: relaunch {} of {}: {} after step {}; it resumes from {} in {}",
                      next.within_hour, o.restarts.per_hour, out.reason, now.step,
                      now.saved > 0 ? fmt::format("step {}", now.saved) : "the start",
                      human_seconds(next.pause_s)));
    pause(next.pause_s, o.deadline);
    if (o.launcher) wait_for_folder(o.run_dir);
  }
}

}  // namespace trireme
