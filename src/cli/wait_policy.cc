// Threads of one rank's team wait for each other by looking, unless OpenMP is told otherwise, and it is told
// when it is loaded.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cli/cli.h"
#include "cli/training.h"

namespace trireme::cli {

std::vector<std::string> own_command_line() {
  std::vector<std::string> words;
  std::ifstream in("/proc/self/cmdline");
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

void wait_without_spinning(int64_t ranks) {
  if (ranks == 1 || ranks < threads_of(RunSpec()) || std::getenv("OMP_WAIT_POLICY")) return;
  std::vector<std::string> words = own_command_line();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  if (words.empty()) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::execv("/proc/self/exe", argv.data());
  ::unsetenv("OMP_WAIT_POLICY");  // it cannot: spinning costs speed, no more
}

}  // namespace trireme::cli
