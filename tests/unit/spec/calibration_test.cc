#include "spec/calibration.h"

#include <fmt/format.h>

#include <cmath>

#include "base/rng.h"
#include "spec/cluster_spec.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;

TEST(Calibration, ReadsBackWhatItSaved) {
  ClusterSpec c;
  c.together = {.ranks = 2, .threads = 1, .f32 = 1.7e11, .memory_bandwidth = 1.3e10, .between_s = 3e-7};
  c.together.ops = Texts::of({"matmul bf16 1024x384x900000000=21e-4 512x64x1048576=15e-6",
                              "rmsnorm f32 1x1x65536=1e-12 1x1x65537=7e5"});
  c.together.calls = "all_reduce ordered 2 1x1x1024=3e-6";
  c.together.step_dp = 1.0625, c.together.step_tp = 0.9, c.together.step_cp = 1, c.together.step_pp = 1e-3;
  c.together.beside_s = 3.2e-5, c.together.beside_s_per_byte = 8e-12;
  const std::string text = save_cluster(c);
  EXPECT_TRUE(parse_cluster(text, "c.toml") == c) << text;
  EXPECT_EQ(text.find("alone."), std::string::npos) << "what was not measured is not in the file";
  EXPECT_EQ(text.find("step_ep"), std::string::npos) << text;
  for (const std::string& line : c.together.ops) {
    std::string wrong;
    EXPECT_EQ(speed_table_text(speed_table_of(line, wrong)), line);
    EXPECT_EQ(wrong, "");
  }
}

// As many points as a whole bench has are no more dots than a file may have, and read back to four digits.
TEST(Calibration, ManyPointsAreKept) {
  const uint64_t key = rng_key(5, 0, "many points");
  SpeedTable t{.of = "matmul bf16", .points = {}};
  for (uint64_t i = 0; i < 4500; i++)
    t.points.push_back({.rows = 1 + double(below(key, 3 * i, 100000)),
                        .cols = 1 + double(below(key, 3 * i + 1, 5000)),
                        .work = 1e6 + double(i),
                        .seconds = std::pow(10.0, 18 * uniform(key, 3 * i + 2) - 12)});  // 1e-12 to 1e6
  ClusterSpec c;
  c.alone = {.ranks = 1, .threads = 2};
  c.alone.ops = speed_table_text(t);
  const ClusterSpec read = parse_cluster(save_cluster(c), "c.toml");
  std::string wrong;
  const SpeedTable back = speed_table_of(read.alone.ops.list.at(0), wrong);
  EXPECT_EQ(wrong, "");
  ASSERT_EQ(back.points.size(), t.points.size());
  for (size_t i = 0; i < t.points.size(); i++) {
    const SpeedPoint &want = t.points[i], &got = back.points[i];
    ASSERT_TRUE(got.rows == want.rows && got.cols == want.cols && got.work == want.work) << i;
    ASSERT_NEAR(got.seconds, want.seconds, 5.0001e-4 * want.seconds) << i;
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
  for (const char* key : {"step_dp", "step_tp", "step_cp", "step_ep", "step_pp"})
    for (const char* value : {"-0.5", "101.0", "nan", "inf", "\"1\""})
      EXPECT_HAS(error_of([&] { parse_cluster(fmt::format("together.{} = {}\n", key, value), "c.toml"); }),
                 key)
          << value;
  for (const char* line :
       {"together.beside_s = -1e-6\n", "together.beside_s = 2.0\n", "together.beside_s_per_byte = 1.0\n"})
    EXPECT_HAS(error_of([&] { parse_cluster(line, "c.toml"); }), "beside_s") << line;
  EXPECT_HAS(error_of([] { parse_cluster("alone.ranks = 1e9\n", "c.toml"); }), "65536");
}

}  // namespace
}  // namespace trireme
