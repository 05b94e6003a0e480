// Ranks of a test as processes of their own, on this machine.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace trireme::testing {

// Runs body(rank) in `n` forks of this process, which has no other threads then; what each returned, "killed
// by signal N" where it came to that.
inline std::vector<std::string> run_forked(int n, const std::function<std::string(int)>& body) {
  struct Child {
    pid_t pid;
    int out;
  };
  std::vector<Child> children;
  for (int r = 0; r < n; r++) {
    int ends[2];
    if (::pipe(ends) != 0) return {};
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      ::alarm(120);
      std::string said;
      try {
        said = body(r);
      } catch (const std::exception& e) {
        said = e.what();
      }
      (void)!::write(ends[1], said.data(), said.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> all;
  for (const Child& c : children) {
    std::string said(4096, '\0');
    size_t at = 0;
    for (ssize_t k; (k = ::read(c.out, said.data() + at, said.size() - at)) > 0;) at += size_t(k);
    said.resize(at);
    ::close(c.out);
    int status = 0;
    ::waitpid(c.pid, &status, 0);
    all.push_back(WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status)) : said);
  }
  return all;
}

}  // namespace trireme::testing
