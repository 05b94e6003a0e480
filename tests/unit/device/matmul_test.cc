// What the op harness cannot reach: the f32 path for processors without bf16, the plan cache, thread
// settings.
#include "device/cpu/matmul.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace trireme::cpu {
namespace {

struct Matrix {
  std::vector<bf16> values;
  Tensor tensor;
  Matrix(int64_t rows, int64_t cols, int64_t stride, std::string_view name) : values(size_t(rows * stride)) {
    for (size_t i = 0; i < values.size(); i++) values[i] = bf16(float(normal(rng_key(3, 0, name), i)));
    tensor = Tensor(values.data(), {rows, cols}, DType::bf16);
    tensor.stride[0] = stride;
  }
  double at(int64_t r, int64_t c, bool transposed = false) const {
    return float(values[size_t(transposed ? c * tensor.stride[0] + r : r * tensor.stride[0] + c)]);
  }
};

struct Problem {
  int64_t m, n, k;
  bool trans_a, trans_b;
};

// Against sums in double: one rounding to bf16 (2^-8) and f32 sums.
void check_in_f32(const Problem& s, bool bias, bool residual, bool accumulate) {
  Matrix a(s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, (s.trans_a ? s.m : s.k) + 3, "a");
  Matrix b(s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, (s.trans_b ? s.k : s.n) + 1, "b");
  Matrix c(s.m, s.n, s.n + 2, "c"), r(s.m, s.n, s.n, "r"), v(1, s.n, s.n, "v");
  const Matrix before = c;
  MatmulArgs p{.a = a.tensor, .b = b.tensor, .c = c.tensor, .trans_a = s.trans_a, .trans_b = s.trans_b};
  if (bias) p.bias = Tensor(v.values.data(), {s.n}, DType::bf16);
  if (residual) p.residual = r.tensor;
  p.accumulate = accumulate;
  MatmulCache cache;
  Context ctx{.threads = 2, .matmuls = &cache};
  std::vector<std::byte> scratch(size_t(matmul_in_f32_scratch_bytes(p, ctx, cache)) + 64);
  auto at = reinterpret_cast<uintptr_t>(scratch.data());
  matmul_in_f32(p, reinterpret_cast<std::byte*>((at + 63) / 64 * 64), ctx, cache);
  for (int64_t i = 0; i < s.m; i++)
    for (int64_t j = 0; j < s.n; j++) {
      double want =
          (bias ? v.at(0, j) : 0) + (residual ? r.at(i, j) : 0) + (accumulate ? before.at(i, j) : 0);
      for (int64_t k = 0; k < s.k; k++) want += a.at(i, k, s.trans_a) * b.at(k, j, s.trans_b);
      ASSERT_NEAR(c.at(i, j), want, std::fabs(want) * 0x1p-8 + 1e-4) << i << ", " << j;
    }
  for (int64_t i = 0; i < s.m; i++)
    for (int64_t j = s.n; j < s.n + 2; j++) ASSERT_EQ(c.at(i, j), before.at(i, j));
}

TEST(MatmulInF32, MatchesDoubleAcrossBlocks) {
  check_in_f32({1, 1, 1, false, false}, true, true, true);
  check_in_f32({33, 65, 31, false, true}, true, false, false);
  check_in_f32({515, 9, 17, true, false}, false, false, true);
  check_in_f32({7, 1030, 13, false, true}, true, true, false);
  check_in_f32({520, 521, 5, true, true}, false, true, true);
}

TEST(MatmulCache, KeepsOnePlanPerProblem) {
  auto* at = reinterpret_cast<void*>(64);
  MatmulArgs p{.a = Tensor(at, {4, 8}, DType::f32),
               .b = Tensor(at, {8, 5}, DType::f32),
               .c = Tensor(at, {4, 5}, DType::f32)};
  MatmulCache cache;
  MatmulPlan* first = &cache.find(key_of(p, 1));
  EXPECT_EQ(first, &cache.find(key_of(p, 1)));
  EXPECT_TRUE(first->supported());
  EXPECT_NE(first, &cache.find(key_of(p, 2)));
  p.accumulate = true;
  EXPECT_NE(first, &cache.find(key_of(p, 1)));
  // The residual in place is a sum, elsewhere an operand.
  p.residual = p.c;
  EXPECT_EQ(key_of(p, 1).sum, 2);
  p.residual.data += 1024;
  EXPECT_EQ(key_of(p, 1).sum, 1);
  EXPECT_TRUE(key_of(p, 1).residual);
  // A single row may claim any stride.
  MatmulArgs row = p;
  row.a = Tensor(at, {1, 8}, DType::f32), row.c = Tensor(at, {1, 5}, DType::f32), row.residual = {};
  MatmulKey key = key_of(row, 1);
  row.a.stride[0] = 100;
  EXPECT_EQ(key_of(row, 1), key);
}

TEST(Matmul, LeavesTheCallersThreadCountAlone) {
  std::vector<float> x(64, 1), y(64);
  MatmulArgs p{.a = Tensor(x.data(), {8, 8}, DType::f32),
               .b = Tensor(x.data(), {8, 8}, DType::f32),
               .c = Tensor(y.data(), {8, 8}, DType::f32)};
  omp_set_num_threads(3);
  std::vector<std::byte> scratch(size_t(scratch_bytes(p, Context{1})));
  launch(p, Tensor(scratch.data(), {int64_t(scratch.size())}, DType::u8), Context{1});
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_EQ(y[63], 8);
}

}  // namespace
}  // namespace trireme::cpu
