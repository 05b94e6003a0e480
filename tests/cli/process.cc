#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"

extern char** environ;

namespace trireme::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() { require(::pipe2(fd, O_CLOEXEC) == 0, "pipe2 failed"); }
  int fd[2];
};

std::vector<std::string> environment(const fs::path& home) {
  std::vector<std::string> env = {"HOME=" + home.string(), "XDG_CACHE_HOME=" + (home / "cache").string()};
  for (char** e = environ; *e; e++)
    if (!std::string_view(*e).starts_with("HOME=") && !std::string_view(*e).starts_with("XDG_CACHE_HOME="))
      env.push_back(*e);
  return env;
}

std::vector<char*> pointers(std::vector<std::string>& v) {
  std::vector<char*> p;
  for (std::string& s : v) p.push_back(s.data());
  p.push_back(nullptr);
  return p;
}

}  // namespace

Process::Process(const std::vector<std::string>& argv, const fs::path& home) {
  Pipe out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.fd[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err.fd[1], 2);
  std::vector<std::string> args = argv, env = environment(home);
  int failed =
      ::posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, pointers(args).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(out.fd[1]), ::close(err.fd[1]);
  out_ = out.fd[0], err_ = err.fd[0];
  if (failed) {
    pid_ = -1;
    run_failed("cannot start {}: {}", argv[0], std::strerror(failed));
  }
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

bool Process::read_some(int milliseconds) {
  pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // a negative descriptor is passed over
  if (out_ < 0 && err_ < 0) return false;
  if (::poll(fds, 2, milliseconds) <= 0) return true;
  char buffer[1 << 16];
  for (int i = 0; i < 2; i++) {
    if (!fds[i].revents) continue;
    int& fd = i == 0 ? out_ : err_;
    ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) (i == 0 ? ran_.out : ran_.err).append(buffer, size_t(n));
    if (n == 0) ::close(fd), fd = -1;
  }
  return out_ >= 0 || err_ >= 0;
}

bool Process::wait_for_err(std::string_view text) {
  while (ran_.err.find(text) == std::string::npos)
    if (!read_some(-1)) return ran_.err.find(text) != std::string::npos;
  return true;
}

bool Process::runs_after(double seconds) {
  auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    double left = std::chrono::duration<double>(until - Clock::now()).count();
    if (left <= 0) return true;
    if (!read_some(std::max(1, int(left * 1000)))) return false;
  }
}

void Process::send(int signal) {
  ::kill(pid_, signal);
}

Ran Process::wait() {
  while (read_some(-1)) {
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status)) ran_.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ran_.signal = WTERMSIG(status);
  return std::move(ran_);
}

Ran run(const std::vector<std::string>& argv, const fs::path& home) {
  return Process(argv, home).wait();
}

std::string program() {
  return TRIREME_BINARY;
}
std::string crash_child() {
  return CRASH_CHILD;
}
std::string held_child() {
  return HELD_CHILD;
}

std::vector<std::string> trireme_args(std::vector<std::string> args) {
  args.insert(args.begin(), program());
  return args;
}

Ran trireme(const fs::path& home, std::vector<std::string> args) {
  return run(trireme_args(std::move(args)), home);
}

}  // namespace trireme::test
