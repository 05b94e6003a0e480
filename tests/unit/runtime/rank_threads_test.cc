#include "runtime/rank_threads.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "cores.h"

namespace trireme {
namespace {

using test::cores_now;

// As many ranks of one thread as there are cores: bound each has its own, and so have its streams' threads;
// else, and afterwards, the system places them.
TEST(RankThreads, KeepToTheirCoresWhereTheyAreBound) {
  const std::vector<int> all = cores_now();
  const int world = int(std::min<size_t>(all.size(), 16));
  for (const bool bind : {true, false}) {
    std::vector<std::vector<int>> ranks(static_cast<size_t>(world));
    run_rank_threads(world, "cpu", {.threads = 1, .bind = bind}, [&](Device&, CommFactory& factory) {
      std::vector<int>& mine = ranks[size_t(factory.rank())];
      std::thread([&] { mine = cores_now(); }).join();
    });
    std::set<int> taken;
    for (const std::vector<int>& mine : ranks) {
      if (!bind || size_t(world) < all.size()) {
        EXPECT_EQ(mine, all);
        continue;
      }
      ASSERT_EQ(mine.size(), 1u);
      EXPECT_TRUE(taken.insert(mine[0]).second) << "core " << mine[0] << " twice";
    }
    EXPECT_EQ(cores_now(), all);
  }
}

}  // namespace
}  // namespace trireme
