// rank_child DIR STEPS RANK PORT VICTIM AFTER: rank RANK of three trains DIR/run to STEPS. Rank VICTIM kills
// itself, once in the folder's life, when AFTER steps are done. Exit codes are trireme's.
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "three_ranks.h"

namespace trireme::test {
namespace {

void kill_when(const fs::path& folder, size_t after) {
  const fs::path metrics = folder / "run" / "metrics.jsonl", killed = folder / "killed";
  if (fs::exists(killed)) return;
  std::thread([=] {
    while (!fs::exists(metrics) || lines_of(read_text(metrics)).size() < after) ::usleep(1000);
    std::ofstream(killed) << "once";
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

}  // namespace
}  // namespace trireme::test

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 7) {
    fmt::print(stderr, "rank_child DIR STEPS RANK PORT VICTIM AFTER\n");
    return 2;
  }
  const int rank = std::atoi(argv[3]);
  if (rank == std::atoi(argv[5])) test::kill_when(argv[1], size_t(std::atoll(argv[6])));
  const RunSpec run = test::three_ranks(argv[1], std::atoll(argv[2]), 2);
  const std::string e = test::train_as(run, rank, std::atoi(argv[4]), {});
  if (e.empty()) return 0;
  fmt::print(stderr, "rank_child: rank {}: {}\n", rank, e);
  return e[0] - '0';
}
