#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"

namespace trireme::cli {
namespace {

// A file of the parent that its child takes as a stream.
class OpenFile {
 public:
  OpenFile(const char* path, int flags) : fd_(::open(path, flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) system_failed_in_run(errno, "{}: {}", path, std::system_category().message(errno));
  }
  OpenFile(const OpenFile&) = delete;
  ~OpenFile() { ::close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// In the child of a fork, where only calls that are safe in a signal handler are allowed.
[[noreturn]] void become(char* const* argv, int in, int out, int errors, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

pid_t start_self(std::vector<std::string> words, const ChildFiles& files) {
  words.insert(words.begin(), fs::read_symlink("/proc/self/exe").string());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  const OpenFile in("/dev/null", O_RDONLY);
  std::optional<OpenFile> out;
  if (!files.out.empty())
    out.emplace(files.out.c_str(), O_WRONLY | O_CREAT | (files.append ? O_APPEND : O_TRUNC));
  const int out_fd = out ? out->fd() : STDERR_FILENO, parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), in.fd(), out_fd, files.errors ? out_fd : STDERR_FILENO, parent);
  if (pid < 0) system_failed_in_run(errno, "{}: {}", argv[0], std::system_category().message(errno));
  return pid;
}

void pass_interrupt_on(pid_t child) {
  ::sigqueue(child, SIGTERM, {});
}

// Interrupt handlers let waitpid continue, so it is asked now and then.
int wait_for_child(pid_t child) {
  bool passed = false;
  for (int status = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    const pid_t got = ::waitpid(child, &status, WNOHANG);
    if (got == child) return status;
    if (got < 0 && errno != EINTR)
      system_failed_in_run(errno, "waitpid: {}", std::system_category().message(errno));
    if (interrupt_requested() && !passed) {
      passed = true;
      pass_interrupt_on(child);
    }
  }
}

}  // namespace trireme::cli
