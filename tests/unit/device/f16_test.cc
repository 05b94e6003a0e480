// f16 on CPUs: vector conversions against tensor/dtype.h, and the adapter that runs f32 kernels.
#include "device/cpu/f16.h"

#include <cmath>

#include "device/device.h"
#include "kernels_testing.h"

namespace trireme::testing {
namespace {

f16 code(uint32_t bits) {
  f16 h;
  h.bits = uint16_t(bits);
  return h;
}

TEST(F16Kernels, WidenEveryCodeOnEveryTarget) {
  Array<f16> src({65536});
  for (uint32_t bits = 0; bits < 65536; bits++) src.v[bits] = code(bits);
  for_each_target([&] {
    Array<float> dst({65536});
    run(CastArgs{.src = src.t, .dst = dst.t}, 2);
    for (uint32_t bits = 0; bits < 65536; bits++)
      ASSERT_EQ(std::bit_cast<uint32_t>(dst.v[bits]), std::bit_cast<uint32_t>(float(code(bits))))
          << "f16 bits " << bits;
  });
}

// Every f16, the ties between neighbours, and their own neighbours in f32: subnormals, infinities, NaN and
// what lies around 65520, where rounding becomes infinity, are among them. Then f32's own corners.
TEST(F16Kernels, RoundLikeDtypeHAroundEveryCodeOnEveryTarget) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    float here = float(code(bits)), next = float(code(bits + 1));
    float tie = std::isfinite(here) && std::isfinite(next) ? 0.5f * here + 0.5f * next : here;
    for (float center : {here, tie})
      for (int step : {-1, 0, 1})
        values.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(center) + uint32_t(step)));
  }
  for (float f : {65519.99f, 65520.f, 65535.f, 1e38f, 0x1p-25f, 0x1.000002p-25f, 0x1p-26f, 1e-45f, 0.f})
    values.push_back(f), values.push_back(-f);
  values.push_back(std::bit_cast<float>(0x7f800001u)), values.push_back(std::bit_cast<float>(0xffffffffu));
  Array<float> src({int64_t(values.size())});
  src.v = values;
  src.t.data = reinterpret_cast<std::byte*>(src.v.data());
  for_each_target([&] {
    Array<f16> dst({int64_t(values.size())});
    run(CastArgs{.src = src.t, .dst = dst.t}, 2);
    for (size_t i = 0; i < values.size(); i++)
      ASSERT_EQ(dst.v[i].bits, f16(values[i]).bits) << std::hexfloat << values[i];
  });
  EXPECT_EQ(float(f16(65519.99f)), 65504);
  EXPECT_EQ(float(f16(65520.f)), HUGE_VALF);
}

TEST(F16Kernels, TouchNothingBesideStridedRows) {
  for (int threads : {1, 2})
    for (int64_t cols : {1, 7, 16, 33}) {
      const int64_t rows = 700, stride = cols + 5;
      Array<f16> half({rows, stride}, -5);
      Tensor view = half.t.narrow(1, 2, cols);
      Array<float> dense({rows, cols});
      dense.normal("x");
      const cpu::Context ctx{.threads = threads};
      cpu::round_to_f16(view, dense.t, ctx);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < stride; c++) {
          bool inside = c >= 2 && c < 2 + cols;
          ASSERT_EQ(float(half[r * stride + c]), inside ? float(f16(dense[r * cols + c - 2])) : -5.0f);
        }
      Array<float> back({rows, cols});
      cpu::widen(back.t, view, ctx);
      for (int64_t i = 0; i < rows * cols; i++) ASSERT_EQ(back[i], float(f16(dense[i])));
    }
}

struct OnDevice {
  std::unique_ptr<Device> device = make_device("cpu", {.threads = 1});
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  Arena arena{memory.data(), int64_t(memory.size())};
  OnDevice() { device->kernels().attach(&arena); }
  template <class A>
  void run(const A& args) {
    device->kernels().run(args);
  }
};

// One rounding of the f32 sum at the store; a product beyond 65520 becomes infinity, and below it does not.
TEST(F16Kernels, AProductOverflowsToInfinity) {
  OnDevice on;
  Array<f16> a({2, 2}), b({2, 1}), c({2, 1});
  a[0] = f16(256), a[1] = f16(15.99f), a[2] = f16(256), a[3] = f16(16);  // 65536 less 16 less a bit; less 16
  b[0] = f16(256), b[1] = f16(-1);
  on.run(MatmulArgs{.a = a.t, .b = b.t, .c = c.t});
  EXPECT_EQ(float(c[0]), HUGE_VALF);  // 65520.01
  a[1] = f16(17);
  on.run(MatmulArgs{.a = a.t, .b = b.t, .c = c.t});
  EXPECT_EQ(float(c[0]), 65504);      // 65519
  EXPECT_EQ(float(c[1]), HUGE_VALF);  // 65520: a tie, and 65536 is the even one
}

// x twice as an operand is one copy: y = x + x in place, dx = dy.
TEST(F16Kernels, OperandsOfOneAddressStayOne) {
  OnDevice on;
  Array<f16> x({37});
  x.normal("x");
  std::vector<f16> before = x.v;
  on.run(AddArgs{.a = x.t, .b = x.t, .y = x.t});
  for (size_t i = 0; i < before.size(); i++) EXPECT_EQ(float(x.v[i]), 2 * float(before[i]));
  EXPECT_EQ(on.arena.ledger().peak(Bucket::scratch), 37 * 4 + (64 - 37 * 4 % 64));
}

TEST(F16Kernels, NothingToDoIsDone) {
  OnDevice on;
  Array<f16> w({5, 3}), dy({0, 5}), dx({0, 3});
  float at = 0;  // an address for what has no elements
  dy.t.data = dx.t.data = reinterpret_cast<std::byte*>(&at);
  on.run(MatmulArgs{.a = dy.t, .b = w.t, .c = dx.t});
  EXPECT_EQ(at, 0);
}

// Gradients are f32 or bf16: with loss scaling they would gain nothing in f16 but overflow.
TEST(F16Kernels, AdamWRefusesF16Gradients) {
  Array<float> s({4});
  Array<f16> g({4});
  EXPECT_NE(error_of([&] { run(AdamWArgs{s.t, s.t, s.t, g.t, {}}); }).find("grad"), std::string::npos);
}

}  // namespace
}  // namespace trireme::testing
