// Every file in configs/ loads, and what can run here is not refused.
#include <unistd.h>

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
  EXPECT_GE(files.size(), 1u);
  for (const fs::path& f : files) {
    ClusterSpec c = load_cluster(f);
    EXPECT_FALSE(c.name.empty() || c.source.empty() || c.date.empty()) << f;
    EXPECT_GT(c.peak_flops("bf16"), 0) << f;
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
