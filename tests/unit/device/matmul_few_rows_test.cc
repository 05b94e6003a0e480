// What the op harness cannot reach: the path for processors without bf16 dot products, and that a row's bits
// are its own. The same for cached attention.
#include "device/cpu/matmul_few_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "device/device.h"
#include "dot.h"

namespace trireme::cpu {
namespace {

template <class T>
struct FewRowsMatrix {
  std::vector<T> values;
  Tensor tensor;
  FewRowsMatrix(int64_t rows, int64_t cols, std::string_view name) : values(size_t(rows * cols)) {
    for (size_t i = 0; i < values.size(); i++) values[i] = T(float(normal(rng_key(4, 0, name), i)));
    tensor = Tensor(values.data(), {rows, cols}, dtype_of<T>);
  }
  std::vector<float> row(int64_t i) const {
    int64_t cols = tensor.shape[1];
    return {values.begin() + i * cols, values.begin() + (i + 1) * cols};
  }
};
template <>
std::vector<float> FewRowsMatrix<bf16>::row(int64_t i) const {
  std::vector<float> out;
  for (int64_t j = 0; j < tensor.shape[1]; j++) out.push_back(float(values[size_t(i * tensor.shape[1] + j)]));
  return out;
}

TEST(FewRows, WidenedBf16IsTheSumInF32) {
  for (int64_t m : {1, 2, 3, 7, 32}) {
    const int64_t n = 37, k = 101;
    FewRowsMatrix<bf16> a(m, k, "a"), b(n, k, "b");
    FewRowsMatrix<float> c(m, n, "c");
    MatmulArgs p{.a = a.tensor, .b = b.tensor, .c = c.tensor, .trans_b = true};
    std::vector<float> scratch(size_t(matmul_few_rows_scratch_bytes(p, nullptr)) / 4);
    ASSERT_EQ(scratch.size(), size_t(m * k));
    matmul_few_rows(p, reinterpret_cast<std::byte*>(scratch.data()), {.threads = 2}, nullptr);
    const auto wide = [](const std::vector<bf16>& v) {
      std::vector<double> x;
      for (bf16 e : v) x.push_back(double(float(e)));
      return x;
    };
    const std::vector<double> x = wide(a.values), w = wide(b.values);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < n; j++)
        EXPECT_NEAR(c.values[size_t(i * n + j)], testing::dot(&x[size_t(i * k)], &w[size_t(j * k)], k), 2e-5)
            << m << " rows, at " << i << ", " << j;
  }
}

// Together and alone, on one thread and two, at the start of a matrix and in it.
template <class T>
void rows_are_their_own(FewRowsDots dots) {
  const int64_t n = 83, k = 203;
  FewRowsMatrix<T> a(kFewRows, k, "a"), b(n, k, "b"), alone(1, n, "one");
  FewRowsMatrix<float> scratch(kFewRows, k, "scratch");
  auto* at = reinterpret_cast<std::byte*>(scratch.values.data());
  for (int64_t m = 1; m <= kFewRows; m++) {
    FewRowsMatrix<T> together(m, n, "c");
    matmul_few_rows({.a = a.tensor.narrow(0, 0, m), .b = b.tensor, .c = together.tensor, .trans_b = true}, at,
                    {.threads = int(1 + m % 2)}, dots);
    for (int64_t i = 0; i < m; i++) {
      matmul_few_rows({.a = a.tensor.narrow(0, i, 1), .b = b.tensor, .c = alone.tensor, .trans_b = true}, at,
                      {.threads = 1}, dots);
      ASSERT_EQ(together.row(i), alone.row(0)) << "row " << i << " of " << m;
    }
  }
}
TEST(FewRows, ARowsBitsAreItsOwn) {
  rows_are_their_own<float>(nullptr);
  rows_are_their_own<bf16>(nullptr);
  if (FewRowsDots dots = few_rows_dots_bf16()) rows_are_their_own<bf16>(dots);
}

TEST(CachedAttention, ARowsBitsAreItsOwn) {
  const int64_t b = 5, cap = 70, heads = 6, kv = 2, d = 40;
  FewRowsMatrix<bf16> q(b, heads * d, "q"), k(b, cap * kv * d, "k"), v(b, cap * kv * d, "v"),
      together(b, heads * d, "o"), alone(1, heads * d, "one");
  std::vector<int32_t> positions = {69, 0, 33, -1, 12};
  auto device = make_device("cpu", {.threads = 2}), one = make_device("cpu", {.threads = 1});
  std::vector<float> memory(1 << 20);
  Arena arena(reinterpret_cast<std::byte*>(memory.data()), int64_t(memory.size() * 4));
  device->kernels().attach(&arena), one->kernels().attach(&arena);
  auto args = [&](int64_t first, int64_t n, const Tensor& o) {
    auto rows = [&](const Tensor& t, const Shape& s) { return t.narrow(0, first, n).view(s); };
    return CachedAttentionArgs{.q = rows(q.tensor, {n, 1, heads, d}),
                               .k = rows(k.tensor, {n, cap, kv, d}),
                               .v = rows(v.tensor, {n, cap, kv, d}),
                               .positions = Tensor(positions.data() + first, {n, 1}, DType::i32),
                               .o = o.view({n, 1, heads, d}),
                               .scale = 0.2f};
  };
  device->kernels().run(args(0, b, together.tensor));
  for (int64_t i = 0; i < b; i++) {
    one->kernels().run(args(i, 1, alone.tensor));
    EXPECT_EQ(together.row(i), alone.row(0)) << i;
  }
  for (float x : together.row(3)) EXPECT_EQ(x, 0);
  positions[2] = 70;
  EXPECT_THROW(device->kernels().run(args(0, b, together.tensor)), Error);
}

}  // namespace
}  // namespace trireme::cpu
