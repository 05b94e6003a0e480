#include "base/own_cores.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "cores.h"

namespace trireme {
namespace {

using test::cores_now;

// Each of as many parts as there are cores has one that is nobody else's, threads that it starts too, and
// all are as they were afterwards.
TEST(OwnCores, EachPartHasItsOwn) {
  const std::vector<int> all = cores_now();
  std::set<int> taken;
  for (int part = 0; part < int(all.size()); part++) {
    {
      OwnCores own(part, int(all.size()), 1);
      const std::vector<int> mine = cores_now();
      ASSERT_EQ(mine.size(), 1u);
      EXPECT_TRUE(taken.insert(mine[0]).second) << "core " << mine[0] << " twice";
      std::vector<int> child;
      std::thread([&] { child = cores_now(); }).join();
      EXPECT_EQ(child, mine);
    }
    EXPECT_EQ(cores_now(), all);
  }
  OwnCores whole(0, 1, int(all.size()));
  EXPECT_EQ(cores_now(), all);
}

// Fewer or more threads than cores: the system places them.
TEST(OwnCores, OnlyWhereAllCoresAreTaken) {
  const std::vector<int> all = cores_now();
  OwnCores more(0, int(all.size()) + 1, 1);
  EXPECT_EQ(cores_now(), all);
  OwnCores many(0, 2, int(all.size()));
  EXPECT_EQ(cores_now(), all);
  if (all.size() > 1) {
    OwnCores fewer(0, int(all.size()) - 1, 1);
    EXPECT_EQ(cores_now(), all);
  }
}

}  // namespace
}  // namespace trireme
