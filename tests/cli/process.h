// Another process: started, listened to, signalled, waited for.
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trireme::test {

struct Ran {
  int code = -1;   // exit code; -1 = ended by a signal
  int signal = 0;  // that signal
  std::string out, err;
};

class Process {
 public:
  // argv[0] is a path. Standard input is empty; HOME and XDG_CACHE_HOME are `home`, so that nothing of this
  // user's machine is read or written; all else of the environment is handed on.
  Process(const std::vector<std::string>& argv, const fs::path& home);
  Process(const Process&) = delete;
  ~Process();  // kills what still runs

  // Reads until standard error has `text`: did it come before the process closed its output?
  bool wait_for_err(std::string_view text);
  // Reads for so long: does it still run then?
  bool runs_after(double seconds);
  void send(int signal);
  pid_t pid() const { return pid_; }
  Ran wait();

 private:
  bool read_some(int milliseconds);  // false: both pipes are closed

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Ran ran_;
};

// The whole life of one.
Ran run(const std::vector<std::string>& argv, const fs::path& home);

// Paths of the program, of crash_child.cc's and of held_child.cc's.
std::string program();
std::string crash_child();
std::string held_child();

// `trireme ARGS...`
std::vector<std::string> trireme_args(std::vector<std::string> args);
Ran trireme(const fs::path& home, std::vector<std::string> args);

}  // namespace trireme::test
