// Facts of a machine, from a tree of made-up system files.
#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace trireme {
namespace {

class MachineTest : public ::testing::Test {
 protected:
  MachineTest() : root_(fs::path(testing::TempDir()) / ("trireme_machine_" + std::to_string(::getpid()))) {}
  ~MachineTest() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  fs::path root_;
};

TEST_F(MachineTest, ReadsWhatIsThere) {
  put("proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\n");
  put("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n");
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/a/b/memory.max", "1048576\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("sys/devices/system/node/node0/x", "");
  put("sys/devices/system/node/node1/x", "");
  put("sys/devices/system/node/possible/x", "");
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  put("proc/loadavg", "1.50 0.7 0.3 2/100 7\n");
  Machine m = read_machine(root_);
  EXPECT_EQ(m.cpu, "Some CPU @ 2 GHz");
  EXPECT_EQ(m.cores, 2);
  EXPECT_EQ(m.flags.count("avx512_bf16"), 1u);
  EXPECT_EQ(m.flags.size(), 3u);
  EXPECT_EQ(m.quota, 1.5);
  EXPECT_EQ(m.memory, 16 << 20);
  EXPECT_EQ(m.available, 8 << 20);
  EXPECT_EQ(m.memory_limit, 1 << 20);
  EXPECT_EQ(m.huge_pages, "madvise");
  EXPECT_EQ(m.numa_nodes, 2);
  EXPECT_EQ(m.governor, "powersave");
  EXPECT_EQ(m.load, 1.5);
}

TEST_F(MachineTest, ControlGroupsOfTheFirstVersion) {
  put("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Machine m = read_machine(root_);
  EXPECT_EQ(m.quota, 0.5);
  EXPECT_EQ(m.memory_limit, 0) << "near 2^63 is none";
}

// Ticks are hundredths of a second on every Linux that there is. This test's own time is far below a tenth of
// what the others are made to use.
TEST_F(MachineTest, OthersShareOfTheProcessors) {
  put("proc/stat", "cpu  1000 0 500 4000 100 7 3 20 999 9\ncpu0 1 2 3 4\n");
  OthersCpu others(root_);
  EXPECT_EQ(others.share(), 0) << "no time has passed";
  // 20,000 ticks more: 3,000 of user, 1,000 each of nice, system, irq, softirq and steal, and 12,000 idle or
  // waiting.
  put("proc/stat", "cpu  4000 1000 1500 14000 2100 1007 1003 1020 99999 9\n");
  EXPECT_NEAR(others.share(), 0.4, 0.02);
  put("proc/stat", "cpu  1000 0 500 24000 100 7 3 20 999 9\n");
  EXPECT_EQ(others.share(), 0) << "only this process ran";
  for (const char* nonsense : {"", "cpu", "cpu x", "intr 5 5 5 5 5 5 5 5", "cpu  -1 -1 -1 -1\n"}) {
    put("proc/stat", nonsense);
    EXPECT_EQ(others.share(), 0) << nonsense;
  }
  EXPECT_EQ(OthersCpu(root_ / "none").share(), 0);
}

TEST_F(MachineTest, NothingOrNonsenseIsNotKnown) {
  for (int nonsense = 0; nonsense < 2; nonsense++) {
    Machine m = read_machine(root_);
    EXPECT_EQ(m.cpu, "");
    EXPECT_EQ(m.quota, 0);
    EXPECT_EQ(m.memory, 0);
    EXPECT_EQ(m.memory_limit, 0);
    EXPECT_EQ(m.huge_pages, "");
    EXPECT_EQ(m.numa_nodes, 1);
    for (const char* f : {"proc/cpuinfo", "proc/meminfo", "proc/self/cgroup", "proc/loadavg",
                          "sys/kernel/mm/transparent_hugepage/enabled", "sys/fs/cgroup/cpu.max"})
      put(f, ": :\n]x[\n0::/../..\nMemTotal: -5 kB\n");
  }
  EXPECT_EQ(chosen_word("a [b"), "");
  EXPECT_EQ(chosen_word("]["), "");
  EXPECT_EQ(chosen_word("[b] c"), "b");
}

}  // namespace
}  // namespace trireme
