// Threads of one rank's team wait for each other by looking, unless OpenMP is told otherwise, and it is told
// when it is loaded.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "cli/cli.h"
#include "cli/training.h"

namespace trireme::cli {

std::vector<std::string> own_command_line() {
  std::vector<std::string> words;
  std::ifstream in("/proc/self/cmdline");
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

namespace {

constexpr char kPolicy[] = "OMP_WAIT_POLICY", kSpins[] = "GOMP_SPINCOUNT";
// A tenth of a millisecond. By libgomp's own count, a hundred times that, threads on cores that other
// programs use spin through the time that the one they wait for would need: steps over 14 times as long
// beside two busy loops on two cores. This costs nothing where nobody else computes (docs/device.md).
constexpr char kFewSpins[] = "3000";

void start_again_with(const char* name, const char* value) {
  std::vector<std::string> words = own_command_line();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  if (words.empty()) return;
  ::setenv(name, value, 1);
  ::execv("/proc/self/exe", argv.data());
  ::unsetenv(name);  // it cannot: spinning costs speed, no more
}

}  // namespace

void wait_without_spinning(int64_t ranks) {
  if (ranks == 1 || ranks < threads_of(RunSpec()) || std::getenv(kPolicy)) return;
  const char* spins = std::getenv(kSpins);
  if (spins && std::string_view(spins) == kFewSpins) ::unsetenv(kSpins);  // it would be obeyed instead
  start_again_with(kPolicy, "passive");
}

void spin_briefly(std::string_view verb) {
  constexpr std::string_view kComputing[] = {"demo",     "train", "tune",  "distill", "eval",
                                             "generate", "chat",  "bench", "plan",    "estimate"};
  if (std::find(std::begin(kComputing), std::end(kComputing), verb) == std::end(kComputing)) return;
  if (std::getenv(kPolicy) || std::getenv(kSpins)) return;
  start_again_with(kSpins, kFewSpins);
}

}  // namespace trireme::cli
