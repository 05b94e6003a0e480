// AdamW with bf16 moments (AdamWArgs::key): the rounding, its random bits, and the update.
#include <bit>
#include <cmath>

#include "kernels_testing.h"

namespace trireme::testing {
namespace {

// Operands of n elements in one row, with f32 gradients.
struct Small {
  Array<float> master, grad;
  Array<bf16> m, v;
  AdamWArgs args;
  explicit Small(int64_t n, uint64_t key = 1) : master({n}), grad({n}), m({n}), v({n}) {
    args = {.master = master.t, .exp_avg = m.t, .exp_avg_sq = v.t, .grad = grad.t, .lr = 1e-2f};
    args.key = key;
    args.row = n;
  }
  Small& normal() {
    master.normal("master");
    grad.normal("grad");
    m.normal("m");
    v.normal("v");
    for (bf16& x : v.v) x = bf16(std::abs(float(x)));
    return *this;
  }
  // The new moments are the rounded gradient and the rounded square of it.
  Small& of_gradient() {
    args.beta1 = 0;
    args.beta2 = 0;
    return *this;
  }
};

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

// A value of bf16 keeps its bits, infinities included. Any other becomes one of its two neighbours,
// and a finite value stays finite. NaN stays NaN, also where bf16 has none of its payload.
TEST(Bf16Moments, RoundToANeighbourAndKeepWhatBf16Has) {
  for_each_target([] {
    for (const uint32_t low : {0u, 1u, 0x8000u, 0xffffu}) {
      Small s(65536, low);
      s.of_gradient();
      for (uint32_t high = 0; high < 65536; high++) s.grad.v[high] = std::bit_cast<float>(high << 16 | low);
      run(s.args, 2);
      int64_t wrong = 0;
      for (uint32_t high = 0; high < 65536; high++) {
        const float x = s.grad.v[high];
        const uint32_t got = s.m.v[high].bits;
        const bool next = got == high + 1 && low != 0 && std::isfinite(float(s.m.v[high]));
        const bool good = std::isnan(x) ? std::isnan(float(s.m.v[high]))
                          : x == 0      ? float(s.m.v[high]) == 0
                                        : got == high || next;
        if (!good && wrong++ < 5) ADD_FAILURE() << std::hex << bits_of(x) << " became " << got;
        if (std::isfinite(x) && std::isfinite(x * x)) wrong += !std::isfinite(float(s.v.v[high]));
        if (std::isnan(x)) wrong += !std::isnan(float(s.v.v[high]));
      }
      EXPECT_EQ(wrong, 0) << low;
    }
  });
}

// The mean of n roundings of one value is within 5 standard deviations of the value. Both moments of an
// element are rounded by independent bits.
TEST(Bf16Moments, RoundWithoutBias) {
  constexpr int64_t n = 1 << 16;
  for_each_target([] {
    for (const float x : {1.0f + 0x1p-23f, 1.0009f, 1.0039f, -1.0055f, 3.75e-13f, -1e19f, 1.0078124f}) {
      SCOPED_TRACE(x);
      Small s(n, bits_of(x));
      s.of_gradient();
      std::fill(s.grad.v.begin(), s.grad.v.end(), x);
      run(s.args);
      double up_m = 0, up_v = 0, both = 0;
      const float square = x * x;
      for (int64_t i = 0; i < n; i++) {
        const bool m = s.m.v[size_t(i)].bits != bits_of(x) >> 16;
        const bool v = s.v.v[size_t(i)].bits != bits_of(square) >> 16;
        up_m += double(m) / n;
        up_v += double(v) / n;
        both += double(m && v) / n;
      }
      const double want_m = (bits_of(x) & 0xffff) / 65536.0;
      const double want_v = (bits_of(square) & 0xffff) / 65536.0;
      const double sd = 5 * 0.5 / std::sqrt(double(n));
      EXPECT_NEAR(up_m, want_m, std::min(sd, 5 * std::sqrt(want_m / n) + 1e-4));
      EXPECT_NEAR(up_v, want_v, sd);
      EXPECT_NEAR(both, want_m * want_v, sd);
    }
  });
}

// A moment that loses a thousandth of itself per step, less than half a step of bf16, decays as in exact
// arithmetic. Rounded to nearest it would not move at all.
TEST(Bf16Moments, DecayOnAverageBelowTheRoundingStep) {
  constexpr int64_t n = 8192;
  for_each_target([] {
    Small s(n);
    s.args.beta1 = s.args.beta2 = 0.999f;
    std::fill(s.m.v.begin(), s.m.v.end(), bf16(1.0f));
    std::fill(s.v.v.begin(), s.v.v.end(), bf16(1.0f));
    for (uint64_t step = 0; step < 500; step++) {
      s.args.key = step;
      run(s.args, 2);
    }
    double m = 0, v = 0;
    for (int64_t i = 0; i < n; i++) {
      m += s.m.at(i) / n;
      v += s.v.at(i) / n;
    }
    // Each step adds a variance of at most 2^-18: 500 of them, over 8,192 elements, are 4.8e-4 in 1.
    const double want = std::pow(double(0.999f), 500);
    EXPECT_NEAR(m, want, 5 * 4.8e-4);
    EXPECT_NEAR(v, want, 5 * 4.8e-4);
  });
}

// The weights move by the moments before they are rounded: one step has the bits of one with f32 moments.
TEST(Bf16Moments, AStepHasTheWeightsOfF32Moments) {
  constexpr int64_t n = 5003;
  for_each_target([] {
    Small s(n);
    s.normal();
    Array<float> master({n}), m({n}), v({n});
    for (int64_t i = 0; i < n; i++) {
      master[i] = s.master[i];
      m[i] = float(s.m[i]);
      v[i] = float(s.v[i]);
    }
    AdamWArgs wide = s.args;
    wide.master = master.t;
    wide.exp_avg = m.t;
    wide.exp_avg_sq = v.t;
    run(s.args, 2);
    run(wide);
    EXPECT_TRUE(s.master.same_bits(master));
    for (int64_t i = 0; i < n; i++) {
      EXPECT_LT(std::abs(s.m.at(i) - m.at(i)), std::abs(m.at(i)) * 0x1p-7);
      EXPECT_LT(std::abs(s.v.at(i) - v.at(i)), std::abs(v.at(i)) * 0x1p-7);
    }
  });
}

// 100 steps against the definition in double. In units of the learning rate a weight goes some 20 (root mean
// square); roundings of the moments move it by less than 0.15.
TEST(Bf16Moments, StayNearTheDefinitionInDouble) {
  constexpr int64_t n = 4096;
  constexpr double b1 = 0.9, b2 = 0.95;
  for_each_target([] {
    Small s(n);
    s.args.lr = 1e-3f;
    std::vector<double> w(n), m(n), v(n);
    double moved = 0, stray = 0;
    for (int step = 1; step <= 100; step++) {
      s.args.key = rng_key(3, uint64_t(step), "w");
      s.args.bias1 = float(1 - std::pow(b1, step));
      s.args.bias2 = float(1 - std::pow(b2, step));
      for (int64_t i = 0; i < n; i++) {
        const double g = s.grad[i] = float(0.3 + trireme::normal(5, uint64_t(step) * n + uint64_t(i)));
        m[size_t(i)] = b1 * m[size_t(i)] + (1 - b1) * g;
        v[size_t(i)] = b2 * v[size_t(i)] + (1 - b2) * g * g;
        w[size_t(i)] -= m[size_t(i)] / (1 - std::pow(b1, step)) /
                        (std::sqrt(v[size_t(i)] / (1 - std::pow(b2, step))) + 1e-8);
      }
      run(s.args);
    }
    for (int64_t i = 0; i < n; i++) {
      moved += w[size_t(i)] * w[size_t(i)] / n;
      stray += std::pow(s.master.at(i) / 1e-3 - w[size_t(i)], 2) / n;
    }
    EXPECT_GT(std::sqrt(moved), 15);
    EXPECT_LT(std::sqrt(stray), 0.15);
    EXPECT_GT(std::sqrt(stray), 0.01);
  });
}

// An element's bits are a function of the key and its place in the whole tensor. Neither the cut of the range
// nor the number of threads nor the columns of a rank change them.
TEST(Bf16Moments, AreRoundedByElementOfTheTensor) {
  constexpr int64_t rows = 41, columns = 130, n = rows * columns;
  for_each_target([] {
    Small whole(n), cut(n);
    whole.normal();
    cut.normal();
    whole.args.corner = cut.args.corner = 3;
    run(whole.args, 3);
    int64_t at = 0;
    for (const int64_t piece : {int64_t(1), int64_t(17), int64_t(3001), n}) {
      const int64_t size = std::min(piece, n - at);
      AdamWArgs a = cut.args;
      a.first = at;
      for (auto t : {&AdamWArgs::master, &AdamWArgs::exp_avg, &AdamWArgs::exp_avg_sq, &AdamWArgs::grad})
        a.*t = (a.*t).narrow(0, at, size);
      run(a);
      at += size;
    }
    EXPECT_TRUE(cut.m.same_bits(whole.m) && cut.v.same_bits(whole.v) && cut.master.same_bits(whole.master));

    constexpr int64_t first = 37, some = 61;  // columns of a rank
    Small box(rows * some);
    Small start(n);
    start.normal();
    const auto from = [](int64_t i) { return i / some * columns + first + i % some; };
    for (int64_t i = 0; i < rows * some; i++) {
      box.master[i] = start.master[from(i)];
      box.grad[i] = start.grad[from(i)];
      box.m[i] = start.m[from(i)];
      box.v[i] = start.v[from(i)];
    }
    box.args.row = some;
    box.args.stride = columns;
    box.args.corner = 3 + first;
    run(box.args, 2);
    for (int64_t i = 0; i < rows * some; i++) {
      ASSERT_EQ(box.m[i].bits, whole.m[from(i)].bits) << i;
      ASSERT_EQ(box.v[i].bits, whole.v[from(i)].bits) << i;
    }
  });
}

}  // namespace
}  // namespace trireme::testing
