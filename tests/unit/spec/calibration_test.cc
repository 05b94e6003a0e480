#include "spec/calibration.h"

#include "spec/cluster_spec.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;

TEST(Calibration, ReadsBackWhatItSaved) {
  ClusterSpec c;
  c.together = {.ranks = 2, .threads = 1, .f32 = 1.7e11, .memory_bandwidth = 1.3e10, .between_s = 3e-7};
  c.together.ops = Texts::of(
      {"matmul bf16 1024x384x900000000=0.0021 512x64x1048576=1.5e-05", "rmsnorm f32 1x1x65536=1.2e-05"});
  c.together.calls = "all_reduce ordered 2 1x1x1024=3e-06";
  const std::string text = save_cluster(c);
  EXPECT_TRUE(parse_cluster(text, "c.toml") == c) << text;
  EXPECT_EQ(text.find("alone."), std::string::npos) << "what was not measured is not in the file";
  for (const std::string& line : c.together.ops) {
    std::string wrong;
    EXPECT_EQ(speed_table_text(speed_table_of(line, wrong)), line);
    EXPECT_EQ(wrong, "");
  }
}

// Each is refused with the key, the word and what would be right; none ends the program or reads as a number.
TEST(Calibration, HostileTablesAreRefused) {
  for (const char* line :
       {"matmul bf16", "1x1x1=1", "matmul bf16 1x1=1", "matmul bf16 1x1x1=", "matmul bf16 1x1x1=0",
        "matmul bf16 1x1x1=-1", "matmul bf16 1x1x1=nan", "matmul bf16 1x1x1=inf", "matmul bf16 0x1x1=1",
        "matmul bf16 1x1x-5=1", "matmul bf16 1x1x1e300=1", "matmul bf16 1x1x1=1e9", "matmul bf16 1x1x1=1 x",
        "matmul bf16 1x1x1=1x1x1=1", "matmul bf16 99999999999999999999x1x1=1", "matmul \x01\x7f=", "= = ="}) {
    std::string wrong;
    speed_table_of(line, wrong);
    EXPECT_NE(wrong, "") << line;
    ClusterSpec c;
    c.alone = {.ranks = 1, .threads = 1};
    c.alone.ops = Texts::of({"add f32 1x1x5=1e-6", line});
    EXPECT_HAS(error_of([&] { parse_cluster(save_cluster(c), "c.toml"); }), "alone.ops") << line;
  }
  std::string wrong, many = "add f32";
  for (int i = 0; i < 10001; i++) many += " 1x1x1=1";
  speed_table_of(many, wrong);
  EXPECT_NE(wrong, "");
  EXPECT_HAS(error_of([] { parse_cluster("alone.ranks = 1e9\n", "c.toml"); }), "65536");
}

}  // namespace
}  // namespace trireme
