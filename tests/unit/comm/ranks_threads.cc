// Ranks of the tests as threads.
#include <thread>

#include "comm/thread/thread_world.h"
#include "ranks.h"

namespace trireme::testing {

std::vector<std::string> run_ranks(const World& what, const std::function<void(Rank&)>& body) {
  ThreadWorld world(what.ranks, what.options);
  std::vector<std::string> errors(static_cast<size_t>(what.ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < what.ranks; r++)
    threads.emplace_back([&, r] {
      auto device = make_device("cpu", {.threads = 1});
      errors[size_t(r)] = run_rank(what, r, *device, world.factory(r, device.get()), body);
    });
  for (auto& t : threads) t.join();
  return errors;
}

bool have_ranks(int) {
  return true;
}

void with_ranks(int n, const CommOptions& options, const std::function<void(Rank&)>& body) {
  for (const std::string& e : run_ranks({n, options}, body)) EXPECT_EQ(e, "");
}

}  // namespace trireme::testing
