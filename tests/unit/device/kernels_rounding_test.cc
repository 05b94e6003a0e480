// Conversions between f32 and bf16, and where bits must not depend on how work is cut.
#include "kernels_testing.h"

namespace trireme::testing {
namespace {

void expect_rounds_like_dtype_h(const std::vector<float>& values) {
  Array<float> src({int64_t(values.size())});
  src.v = values;
  src.t.data = reinterpret_cast<std::byte*>(src.v.data());
  Array<bf16> dst({int64_t(values.size())});
  run(CastArgs{.src = src.t, .dst = dst.t}, 2);
  int64_t wrong = 0;
  for (size_t i = 0; i < values.size(); i++) {
    const bool subnormal = values[i] != 0 && std::fabs(values[i]) < std::numeric_limits<float>::min();
    if (subnormal && float(dst.v[i]) == 0 && std::signbit(float(dst.v[i])) == std::signbit(values[i]))
      continue;
    if (dst.v[i].bits != bf16(values[i]).bits && wrong++ < 5)
      ADD_FAILURE() << std::hexfloat << values[i] << " became " << std::hex << dst.v[i].bits << ", not "
                    << bf16(values[i]).bits;
  }
  EXPECT_EQ(wrong, 0);
}

// Around every bf16 value: itself, its nearest neighbours in f32, just below, at and just above the tie.
// Subnormals, infinities and NaN of both signs are among them; AVX512-BF16 may flush subnormals to zero.
TEST(Cast, ToBf16RoundsToNearestEvenAroundEveryValue) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65536; bits++)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(bits << 16 | low));
  for_each_target([&] { expect_rounds_like_dtype_h(values); });
}

TEST(Cast, FromBf16IsExactForEveryValue) {
  Array<bf16> src({65536});
  for (uint32_t bits = 0; bits < 65536; bits++) src.v[bits].bits = uint16_t(bits);
  for_each_target([&] {
    Array<float> dst({65536});
    run(CastArgs{.src = src.t, .dst = dst.t});
    for (uint32_t bits = 0; bits < 65536; bits++)
      ASSERT_EQ(std::bit_cast<uint32_t>(dst.v[bits]), bits << 16) << "bf16 bits " << bits;
  });
}

struct AdamW {
  Array<float> master, m, v, grad;
  Array<bf16> weight;
  explicit AdamW(int64_t n) : master({n}), m({n}), v({n}), grad({n}), weight({n}) {
    master.normal("master"), m.normal("m"), v.normal("v"), grad.normal("grad");
    for (float& x : v.v) x *= x;
  }
  void step(int64_t begin, int64_t end, int threads) {
    auto part = [&](const Tensor& t) { return t.narrow(0, begin, end - begin); };
    run(AdamWArgs{.master = part(master.t),
                  .exp_avg = part(m.t),
                  .exp_avg_sq = part(v.t),
                  .grad = part(grad.t),
                  .weight = part(weight.t),
                  .lr = 1e-2f,
                  .weight_decay = 0.1f,
                  .bias1 = 0.271f,
                  .bias2 = 0.142625f,
                  .grad_scale = 0.37f},
        threads);
  }
};

// Sharded optimizers cut the flat range where they like; no element may notice (ZeRO 0 = 1, DESIGN.md section
// 4).
TEST(AdamW, BitsDoNotDependOnWhereTheRangeIsCut) {
  for_each_target([&] {
    constexpr int64_t n = 50021;
    AdamW whole(n), cut(n);
    whole.step(0, n, 2);
    int64_t at = 0;
    for (int64_t piece : {int64_t(1), int64_t(17), int64_t(4096), int64_t(31), n}) {
      int64_t end = std::min(n, at + piece);
      cut.step(at, end, 1);
      at = end;
    }
    EXPECT_TRUE(whole.master.same_bits(cut.master));
    EXPECT_TRUE(whole.m.same_bits(cut.m));
    EXPECT_TRUE(whole.v.same_bits(cut.v));
    EXPECT_TRUE(whole.weight.same_bits(cut.weight));
  });
}

TEST(SquareSums, BitsDependNeitherOnTheMachineNorOnTheBlocksAround) {
  constexpr int64_t n = 4096 * 3 + 1001;
  Array<float> x({n});
  Array<bf16> half({n});
  x.normal("x", 1e-3), half.normal("x", 1e-3);
  std::vector<double> first;
  for_each_target([&] {
    Array<double> sums({4}), tail({2}), of_half({4});
    run(SquareSumsArgs{.x = x.t, .sums = sums.t}, 2);
    run(SquareSumsArgs{.x = x.t.narrow(0, 8192, n - 8192), .sums = tail.t});
    run(SquareSumsArgs{.x = half.t, .sums = of_half.t}, 2);
    EXPECT_EQ(sums[2], tail[0]);
    EXPECT_EQ(sums[3], tail[1]);
    sums.v.insert(sums.v.end(), of_half.v.begin(), of_half.v.end());
    if (first.empty()) first = sums.v;
    EXPECT_EQ(first, sums.v);
  });
}

// A token's forward value and gradient do not depend on the other rows of the batch, nor on its place among
// them.
TEST(RmsNorm, ARowDependsOnThatRowAlone) {
  constexpr int64_t n = 71, c = 133;
  for_each_target([&] {
    Array<float> x({n, c}), dy({n, c}), w({c}), y({n, c}), dx({n, c}), rstd({n}), dw({c});
    x.normal("x"), dy.normal("dy"), w.normal("w");
    run(RmsNormArgs{.x = x.t, .weight = w.t, .y = y.t, .rstd = rstd.t}, 2);
    run(RmsNormBackwardArgs{.dy = dy.t, .x = x.t, .weight = w.t, .rstd = rstd.t, .dx = dx.t, .dweight = dw.t},
        2);
    for (int64_t i : {int64_t(0), int64_t(1), int64_t(6), int64_t(35), n - 1}) {
      Array<float> y1({1, c}), dx1({1, c}), rstd1({1});
      Tensor x1 = x.t.narrow(0, i, 1);
      run(RmsNormArgs{.x = x1, .weight = w.t, .y = y1.t, .rstd = rstd1.t});
      run(RmsNormBackwardArgs{
          .dy = dy.t.narrow(0, i, 1), .x = x1, .weight = w.t, .rstd = rstd1.t, .dx = dx1.t, .dweight = dw.t});
      EXPECT_EQ(std::memcmp(y1.v.data(), &y[i * c], c * sizeof(float)), 0) << "row " << i;
      EXPECT_EQ(std::memcmp(dx1.v.data(), &dx[i * c], c * sizeof(float)), 0) << "row " << i;
    }
  });
}

// More threads than blocks, columns or rows, and counts that divide nothing.
TEST(Reductions, BitsDoNotDependOnTheNumberOfThreads) {
  constexpr int64_t n = 2311, c = 211, vocab = 97;
  Array<bf16> dy({n, c}), x({n, c}), w({c}), dx({n, c});
  Array<float> mean({n}), rstd({n}, 0.8);
  Array<int32_t> ids({n});
  dy.normal("dy"), x.normal("x"), w.normal("w"), mean.normal("mean", 0.1);
  for (int64_t i = 0; i < n; i++) ids[i] = int32_t(below(5, uint64_t(i), vocab));
  for_each_target([&] {
    auto all = [&](int threads) {
      std::vector<float> out;
      Array<float> dw({c}), db({c}), sum({c}), table({vocab, c});
      run(LayerNormBackwardArgs{.dy = dy.t,
                                .x = x.t,
                                .weight = w.t,
                                .mean = mean.t,
                                .rstd = rstd.t,
                                .dx = dx.t,
                                .dweight = dw.t,
                                .dbias = db.t},
          threads);
      run(ColumnSumArgs{.dy = dy.t, .db = sum.t}, threads);
      run(EmbeddingBackwardArgs{.ids = ids.t, .dy = dy.t, .dtable = table.t}, threads);
      for (auto* a : {&dw, &db, &sum, &table}) out.insert(out.end(), a->v.begin(), a->v.end());
      return out;
    };
    const std::vector<float> one = all(1);
    for (int threads : {2, 3, 7, 64})
      EXPECT_EQ(std::memcmp(one.data(), all(threads).data(), one.size() * sizeof(float)), 0)
          << threads << " threads";
  });
}

}  // namespace
}  // namespace trireme::testing
