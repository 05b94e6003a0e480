// What this machine is measured for before a run: ended by a signal, short of time, and kept while busy.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "process.h"
#include "sanitized.h"
#include "spec/cluster_spec.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

constexpr const char* kMeasures = "measuring kernels";

// Two ranks on this machine, of which nothing is known.
std::vector<std::string> unmeasured(const char* verb, const fs::path& file,
                                    std::vector<std::string> more = {}) {
  std::vector<std::string> args = {verb,    file.string(), "--set", "cluster.file=\"\"",
                                   "--set", "layout.dp=2", "--set", "batch.micro=3"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

bool measures(const Ran& r) {
  return r.err.find(kMeasures) != std::string::npos;
}

// Other processes that have the processors.
class Load {
 public:
  Load() {
    for (std::thread& t : threads_)
      t = std::thread([this] {
        while (!over_) {
        }
      });
  }
  Load(const Load&) = delete;
  ~Load() {
    over_ = true;
    for (std::thread& t : threads_) t.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::array<std::thread, 2> threads_;
};

TEST(Measuring, ASignalBeforeKernelsEndsItToo) {
  TempFolder tmp;
  Process p(trireme_args(unmeasured("train", tiny_run_file(tmp.path(), 10))), tmp.path());
  ASSERT_TRUE(p.wait_for_err("measuring peaks"));
  p.send(SIGINT);
  const Ran r = p.wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("interrupted while this machine was measured"), std::string::npos) << r.err;
  EXPECT_FALSE(measures(r)) << r.err;
}

TEST(Measuring, ASignalEndsIt) {
  TempFolder tmp;
  Process p(trireme_args(unmeasured("train", tiny_run_file(tmp.path(), 10))), tmp.path());
  ASSERT_TRUE(p.wait_for_err(kMeasures));
  p.send(SIGINT);
  const Ran r = p.wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("interrupted while this machine was measured"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(tmp / "cache" / "trireme"));  // half a measurement is none
}

TEST(Measuring, LeavesMostOfAShortTimeToTraining) {
  TempFolder tmp;
  const Ran r =
      trireme(tmp.path(), unmeasured("train", tiny_run_file(tmp.path(), 1'000'000), {"--stop-after", "8s"}));
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("kernels are not measured, for there is no time"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(tmp / "cache" / "trireme"));
  EXPECT_GT(outcome_of(tmp / "run").step, 0) << r.err;
}

TEST(Measuring, AnExplanationDoesWithoutKernels) {
  TempFolder tmp;
  const Ran r = trireme(tmp.path(), unmeasured("plan", tiny_run_file(tmp.path(), 10), {"--explain"}));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_FALSE(measures(r)) << r.err;
  EXPECT_NE(r.out.find("at the roof"), std::string::npos) << r.out;
  EXPECT_FALSE(fs::exists(tmp / "cache" / "trireme"));  // or nothing would measure kernels later
}

TEST(Measuring, WhatABusyMachineGaveIsKeptForAnHourAsSuch) {
  if (kSanitized) GTEST_SKIP() << "measures this machine twice beside a load: minutes under a sanitizer";
  TempFolder tmp;
  const Load load;
  const fs::path kept = tmp / "cache" / "trireme" / "this-machine-busy.toml";
  const std::vector<std::string> plan = unmeasured("plan", tiny_run_file(tmp.path(), 10));
  const Ran first = trireme(tmp.path(), plan);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(measures(first)) << first.err;
  ASSERT_TRUE(fs::exists(kept)) << first.err;
  EXPECT_FALSE(fs::exists(tmp / "cache" / "trireme" / "this-machine.toml"));
  EXPECT_GT(load_cluster(kept).others, 0.1);
  const Ran again = trireme(tmp.path(), plan);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_FALSE(measures(again)) << again.err;
  EXPECT_NE(again.err.find("while other processes had"), std::string::npos) << again.err;
  fs::last_write_time(kept, fs::file_time_type::clock::now() - std::chrono::minutes(61));
  EXPECT_TRUE(measures(trireme(tmp.path(), plan)));
}

}  // namespace
}  // namespace trireme::test
