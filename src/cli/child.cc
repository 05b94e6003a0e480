#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"

extern char** environ;

namespace trireme::cli {

pid_t start_self(std::vector<std::string> words, const ChildFiles& files) {
  words.insert(words.begin(), fs::read_symlink("/proc/self/exe").string());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (files.out.empty())
    ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  else
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, files.out.c_str(),
                                       O_WRONLY | O_CREAT | (files.append ? O_APPEND : O_TRUNC), 0666);
  if (files.errors) ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) system_failed_in_run(error, "{}: {}", argv[0], std::system_category().message(error));
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
