#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support.h"

namespace trireme {
namespace {

TEST(Convert, BetweenFloatsAndNothingElse) {
  // Unaligned on both sides.
  std::vector<char> src(64), dst(64);
  const float f[3] = {1.0f, 1.00390625f /* between bf16s: a tie */, -3.5f};
  std::memcpy(src.data() + 1, f, 12);
  convert_elements("x", DType::bf16, dst.data() + 3, DType::f32, src.data() + 1, 3);
  uint16_t b[3];
  std::memcpy(b, dst.data() + 3, 6);
  EXPECT_EQ((std::vector<uint16_t>(b, b + 3)), (std::vector<uint16_t>{0x3f80, 0x3f80, 0xc060}));
  convert_elements("x", DType::f16, dst.data() + 1, DType::bf16, b, 3);
  convert_elements("x", DType::f32, src.data() + 2, DType::f16, dst.data() + 1, 3);
  float back[3];
  std::memcpy(back, src.data() + 2, 12);
  EXPECT_EQ((std::vector<float>(back, back + 3)), (std::vector<float>{1, 1, -3.5f}));
  float large = 70000, infinite = INFINITY;
  uint16_t h;
  expect_refused([&] { convert_elements("w", DType::f16, &h, DType::f32, &large, 1); },
                 {"w: holds 70000", "65504"});
  convert_elements("w", DType::f16, &h, DType::f32, &infinite, 1);
  EXPECT_EQ(h, 0x7c00);
  int32_t i;
  expect_refused([&] { convert_elements("w", DType::i32, &i, DType::f32, &large, 1); },
                 {"stored as f32, wanted as i32"});
  convert_elements("w", DType::f32, nullptr, DType::f32, nullptr, 0);
}

TEST(Convert, TransposesOddSizes) {
  std::mt19937_64 rng(14);
  for (int64_t item : {1, 2, 4, 8})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {1, 40}, {33, 1}, {37, 65}, {64, 32}}) {
      const int64_t ss = cols + 3, ds = rows + 2;
      std::vector<uint8_t> src(size_t(rows * ss * item)), dst(size_t(cols * ds * item), 7), want = dst;
      for (uint8_t& x : src) x = uint8_t(rng());
      for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
          for (int64_t k = 0; k < item; k++)
            want[size_t((c * ds + r) * item + k)] = src[size_t((r * ss + c) * item + k)];
      transpose_elements(item, dst.data(), ds, src.data(), ss, rows, cols);
      EXPECT_EQ(dst, want);
    }
}

}  // namespace
}  // namespace trireme
