#pragma once
#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace trireme::test {

// That the calling thread may run on.
inline std::vector<int> cores_now() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int c = 0; c < CPU_SETSIZE; c++)
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  return cores;
}

}  // namespace trireme::test
