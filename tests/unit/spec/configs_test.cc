// Every file in configs/ loads, and what can run here is not refused.
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "source_dir.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"
#include "testing.h"

namespace trireme {
namespace {

std::vector<fs::path> files_in(const char* folder) {
  std::vector<fs::path> files;
  for (const auto& e : fs::directory_iterator(test::source_dir() / "configs" / folder))
    if (e.path().extension() == ".toml") files.push_back(e.path());
  return files;
}

TEST(Configs, Runs) {
  auto files = files_in("run");
  EXPECT_GE(files.size(), 3u);
  for (const fs::path& f : files) {
    RunSpec run = load_run(f);
    refuse_unsupported(run);
    EXPECT_TRUE(parse_run(save_run(run), "saved") == run) << f;
  }
}

TEST(Configs, Clusters) {
  auto files = files_in("cluster");
  EXPECT_GE(files.size(), 11u);
  for (const fs::path& f : files) {
    ClusterSpec c = load_cluster(f);
    EXPECT_EQ(c.name, f.stem().string());
    EXPECT_GT(std::min(c.memory_bytes, int64_t(c.memory_bandwidth)), int64_t(1e10)) << f;
    for (const TierSpec& t : c.levels()) EXPECT_GT(std::min(t.link.bandwidth, t.link.latency), 0) << f;
    if (c.devices_per_node > 1) {
      EXPECT_GT(std::min(c.intra_node.bandwidth, c.intra_node.latency), 0) << f;
    }
    EXPECT_FALSE(c.name.empty() || c.source.empty() || c.date.empty()) << f;
    EXPECT_GT(c.peak_flops("bf16"), 0) << f;
  }
}

// Beside each number of a cluster file stands where it is from.
TEST(Configs, NumbersOfClustersHaveASource) {
  for (const fs::path& f : files_in("cluster")) {
    std::istringstream lines(read_text(f));
    for (std::string line; std::getline(lines, line);) {
      const size_t eq = line.find(" = ");
      if (line.empty() || line[0] == '#' || eq == std::string::npos || line[eq + 3] == '"') continue;
      const std::string key = line.substr(0, eq);
      if (key == "nodes" || key == "devices_per_node") continue;
      EXPECT_GE(line.size() - std::min(line.size(), line.find("# ")), 8u) << f << ": " << line;
    }
  }
}

TEST(Configs, AMissingFileIsNamed) {
  EXPECT_HAS(testing::error_of([] { load_run("/nonexistent/run.toml"); }), "/nonexistent/run.toml");
}

TEST(Configs, AHugeFileIsRefusedBeforeItIsRead) {
  fs::path file = fs::path(::testing::TempDir()) / ("trireme_huge_" + std::to_string(::getpid()) + ".toml");
  write_text_atomic(file, "");
  fs::resize_file(file, uint64_t(1) << 40);  // sparse
  EXPECT_HAS(testing::error_of([&] { load_run(file); }), "1099511627776 bytes are too many");
  fs::remove(file);
}

}  // namespace
}  // namespace trireme
