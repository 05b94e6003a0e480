#include "train/supervisor.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/store.h"
#include "train/checkpointing.h"

namespace trireme {
namespace {

constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGUSR1};
constexpr int kNotStarted = 127;  // as shells say it

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

// Signals go to the child while it lives; blocked while it is made.
class PassOn {
 public:
  explicit PassOn(bool launcher) {
    g_launcher = launcher, g_signals = 0;
    sigemptyset(&ours_);
    struct sigaction action {};
    action.sa_handler = pass_on;
    for (size_t i = 0; i < 3; i++) {
      sigaddset(&ours_, kPassedOn[i]);
      if (::sigaction(kPassedOn[i], &action, &before_[i]) != 0)
        run_failed("cannot handle signal {}", kPassedOn[i]);
    }
  }
  PassOn(const PassOn&) = delete;
  ~PassOn() {
    for (size_t i = 0; i < 3; i++) ::sigaction(kPassedOn[i], &before_[i], nullptr);
  }
  void block(bool b) const { ::sigprocmask(b ? SIG_BLOCK : SIG_UNBLOCK, &ours_, nullptr); }

 private:
  sigset_t ours_;
  struct sigaction before_[3];
};

[[noreturn]] void become(const std::vector<char*>& argv, const PassOn& signals, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(int(Fault::interrupted));  // it is gone already
  for (int s : kPassedOn) ::signal(s, SIG_DFL);
  signals.block(false);
  ::execvp(argv[0], argv.data());
  ::_exit(kNotStarted);
}

// How the command ended, as waitpid says it; nothing: this process was asked to leave before.
std::optional<int> launch(const SuperviseOptions& o, const PassOn& signals) {
  std::vector<std::string> words = o.command;
  if (o.deadline_at >= 0) {
    const double left = std::max(0.0, o.deadline.seconds_left());
    words.at(size_t(o.deadline_at)) = fmt::format("{:.3f}s", left);
  }
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  signals.block(true);
  if (g_signals > 0) {
    signals.block(false);
    return {};
  }
  const pid_t child = ::fork();
  if (child == 0) become(argv, signals, parent);
  if (child > 1) g_child = child;
  signals.block(false);
  if (child <= 1) run_failed("the system gives no process for the run: {}", ::strerror(errno));
  // Not reaped before nobody can send it a signal any more.
  siginfo_t info;
  while (::waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  g_child = 0;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
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
std::optional<int> signal_of(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  const int code = WEXITSTATUS(status);
  if (code > 128 && code < 128 + SIGRTMIN) return code - 128;
  return {};
}

std::string reason(int status) {
  if (const std::optional<int> s = signal_of(status))
    return fmt::format("it was killed by signal {} ({})", *s, ::strsignal(*s));
  return fmt::format("it failed with exit code {}", WEXITSTATUS(status));
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
  std::optional<RunProgress> before;
  for (int64_t relaunched = 0;; relaunched++) {
    const std::optional<int> ended = launch(o, signals);
    if (!ended) return int(Fault::interrupted);
    const int status = *ended;
    const std::optional<int> by_signal = signal_of(status);
    const int code = by_signal ? int(Fault::run) : WEXITSTATUS(status);
    if (code == kNotStarted)
      bad_request("supervise: {} could not be started: is it installed, and in PATH?", o.command[0]);
    // Asked to leave, it may have been gone before it could say so: nothing is lost but steps.
    if (g_signals > 0) return by_signal ? int(Fault::interrupted) : code;
    if (code == 0 || code == int(Fault::request) || code == int(Fault::interrupted)) return code;
    const RunProgress now = progress_of(o.run_dir);
    auto give_up = [&](const std::string& why) {
      o.say(fmt::format("supervise: {}, and is not launched again: {}", reason(status), why));
      return int(Fault::run);
    };
    if (relaunched == o.relaunches)
      return give_up(fmt::format("that was relaunch {} of {}", relaunched, o.relaunches));
    if (before == now)
      return give_up(
          fmt::format("it has ended twice after step {} with no checkpoint newer than that of step {}",
                      now.step, now.saved));
    if (o.deadline.passed()) return give_up("its time is over (--stop-after)");
    before = now;
    if (o.launcher) wait_for_folder(o.run_dir);
    o.say(fmt::format("supervise: relaunch {} of {}: {} after step {}; it goes on from {}", relaunched + 1,
                      o.relaunches, reason(status), now.step,
                      now.saved > 0 ? fmt::format("step {}", now.saved) : "the start"));
  }
}

}  // namespace trireme
