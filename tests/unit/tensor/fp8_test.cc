// 8-bit floats against torch: all codes, all bf16 values, seeded f32 around ties; saturation; scales.
#include "tensor/fp8.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>

#include "source_dir.h"

namespace trireme {
namespace {

struct TorchFp8 {
  std::array<uint32_t, 256> value{};
  std::map<uint32_t, uint8_t> from;  // bf16 -> code of it and those above, up to the next
  std::vector<std::pair<uint32_t, uint8_t>> f32;
};

TorchFp8 torchs(const std::string& format) {
  std::ifstream in(test::source_dir() / "tests/unit/tensor/golden/fp8.txt");
  TorchFp8 t;
  int values = 0;
  for (std::string kind, name, code, bits; in >> kind >> name >> code >> bits;) {
    if (name != format) continue;
    const auto c = uint8_t(std::stoul(code, nullptr, 16));
    const auto b = uint32_t(std::stoul(bits, nullptr, 16));
    if (kind == "value") t.value[c] = b, values++;
    if (kind == "from") t.from[b] = c;
    if (kind == "f32") t.f32.emplace_back(b, c);
  }
  EXPECT_EQ(values, 256);
  EXPECT_EQ(t.f32.size(), 300u);
  return t;
}

class Fp8Floats : public testing::TestWithParam<const char*> {
 protected:
  Fp8Format format() const { return GetParam() == std::string("e4m3") ? Fp8Format::e4m3 : Fp8Format::e5m2; }
};

TEST_P(Fp8Floats, EveryCodeIsTorchs) {
  const TorchFp8 torch = torchs(GetParam());
  for (int c = 0; c < 256; c++) {
    const float want = std::bit_cast<float>(torch.value[size_t(c)]), got = from_fp8(format(), uint8_t(c));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << c;
      EXPECT_TRUE(std::isnan(from_fp8(format(), to_fp8(format(), got)))) << c;
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(got), torch.value[size_t(c)]) << c;
    EXPECT_EQ(to_fp8(format(), got), c);  // there and back
  }
}

TEST_P(Fp8Floats, EveryBf16IsTorchs) {
  const TorchFp8 torch = torchs(GetParam());
  uint8_t code = 0;
  for (uint32_t b = 0; b < 0x7f80; b++) {
    if (auto it = torch.from.find(b); it != torch.from.end()) code = it->second;
    const float f = std::bit_cast<float>(b << 16);
    ASSERT_EQ(to_fp8(format(), f), code) << f;
    ASSERT_EQ(to_fp8(format(), -f), code | 0x80) << f;
  }
}

TEST_P(Fp8Floats, SeededF32IsTorchs) {
  for (const auto& [bits, code] : torchs(GetParam()).f32)
    EXPECT_EQ(to_fp8(format(), std::bit_cast<float>(bits)), code) << std::bit_cast<float>(bits);
}

// What is finite stays finite, what is not does not become it.
TEST_P(Fp8Floats, Saturates) {
  const bool e4m3 = format() == Fp8Format::e4m3;
  const float largest = e4m3 ? 448.0f : 57344.0f;
  for (float f : {largest, largest * 1.03f, largest * 1.2f, 3e38f}) {
    EXPECT_EQ(from_fp8(format(), to_fp8(format(), f)), largest) << f;
    EXPECT_EQ(from_fp8(format(), to_fp8(format(), -f)), -largest) << f;
  }
  for (float f : {HUGE_VALF, -HUGE_VALF, std::nanf(""), -std::nanf("")})
    EXPECT_FALSE(std::isfinite(from_fp8(format(), to_fp8(format(), f)))) << f;
  EXPECT_EQ(std::isinf(from_fp8(format(), to_fp8(format(), -HUGE_VALF))), !e4m3);
}

// The smallest power of two by which the largest number is in range.
TEST_P(Fp8Floats, ScalesAreTheSmallestThatFit) {
  const double largest = format() == Fp8Format::e4m3 ? 448 : 57344;
  for (float amax :
       {1e-37f, 3e-5f, 0.99f, 1.0f, 1.7499999f, 1.75f, 1.7500001f, 448.0f, 449.0f, 57344.0f, 7e36f})
    for (int margin : {0, 1, 5}) {
      const double scale = fp8_scale(format(), amax, margin), room = std::ldexp(1.0, margin);
      int e;
      EXPECT_EQ(std::frexp(scale, &e), 0.5) << amax;
      if (scale == 0x1p-126) continue;
      EXPECT_LE(amax, scale / room * largest) << amax;
      EXPECT_GT(amax, scale / room * largest / 2) << amax;
    }
  for (float none : {0.0f, std::nanf("")}) EXPECT_EQ(fp8_scale(format(), none), 1);
  EXPECT_EQ(fp8_scale(format(), 1e-45f), 0x1p-126f);
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Floats, testing::Values("e4m3", "e5m2"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace trireme
