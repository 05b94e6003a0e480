// Our own matrix product against sums in double, at every size of edge, and its promise that neither threads
// nor a cut along the rows change a bit.
#include "device/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/gemm_packed.h"
#include "device/cpu/gemm_tiles.h"
#include "device/cpu/matmul.h"
#include "dot.h"

namespace trireme::cpu {
namespace {

// Standard normal values rounded to the type, rows `stride` apart; what lies between rows is NaN.
struct PaddedMatrix {
  std::vector<std::byte> bytes;
  Tensor tensor;
  PaddedMatrix(int64_t rows, int64_t cols, int64_t stride, DType t, std::string_view name)
      : bytes(size_t(rows * stride * size_of(t))), tensor(bytes.data(), {rows, cols}, t) {
    tensor.stride[0] = stride;
    for (int64_t i = 0; i < rows * stride; i++) {
      float v = i % stride < cols ? float(normal(rng_key(7, 0, name), uint64_t(i))) : NAN;
      if (t == DType::f32)
        tensor.as<float>()[i] = v;
      else
        tensor.as<bf16>()[i] = bf16(v);
    }
  }
  double at(int64_t r, int64_t c) const {
    int64_t i = r * tensor.stride[0] + c;
    return tensor.dtype == DType::f32 ? double(tensor.as<float>()[i]) : double(float(tensor.as<bf16>()[i]));
  }
};

struct Problem {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  DType type = DType::bf16, out = DType::bf16;
  bool bias = false, residual = false, accumulate = false;
};

class Case {
 public:
  explicit Case(const Problem& s)
      : s_(s),
        a_(s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, (s.trans_a ? s.m : s.k) + 3, s.type, "a"),
        b_(s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, (s.trans_b ? s.k : s.n) + 1, s.type, "b"),
        c_(s.m, s.n, s.n + 5, s.out, "c"),
        residual_(s.m, s.n, s.n + 2, s.out, "residual"),
        bias_(1, s.n, s.n, s.type, "bias") {
    args = {.a = a_.tensor, .b = b_.tensor, .c = c_.tensor, .trans_a = s.trans_a, .trans_b = s.trans_b};
    if (s.bias) args.bias = Tensor(bias_.tensor.data, {s.n}, s.type);
    if (s.residual) args.residual = residual_.tensor;
    args.accumulate = s.accumulate;
  }
  static void run(const MatmulArgs& args, int threads) {
    Context ctx{.threads = threads};
    std::vector<std::byte> scratch(size_t(own_matmul_scratch_bytes(args, ctx)) + 128, std::byte(0xff));
    auto* at = scratch.data() + 64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64;
    own_matmul(args, at, ctx);
  }
  std::vector<std::byte> result(int threads) const {
    PaddedMatrix c = c_;
    MatmulArgs p = args;
    p.c.data = c.bytes.data();
    run(p, threads);
    return c.bytes;
  }
  void check(int threads) const {
    PaddedMatrix got = c_;
    got.bytes = result(threads);
    got.tensor.data = got.bytes.data();
    double rounding = s_.out == DType::bf16 ? 0x1p-8 : 0x1p-22;
    std::vector<double> rows(size_t(s_.m * s_.k)), columns(size_t(s_.n * s_.k));
    for (int64_t k = 0; k < s_.k; k++) {
      for (int64_t i = 0; i < s_.m; i++) rows[size_t(i * s_.k + k)] = s_.trans_a ? a_.at(k, i) : a_.at(i, k);
      for (int64_t j = 0; j < s_.n; j++)
        columns[size_t(j * s_.k + k)] = s_.trans_b ? b_.at(j, k) : b_.at(k, j);
    }
    for (int64_t i = 0; i < s_.m; i++)
      for (int64_t j = 0; j < s_.n; j++) {
        double want = (s_.bias ? bias_.at(0, j) : 0) + (s_.residual ? residual_.at(i, j) : 0) +
                      (s_.accumulate ? c_.at(i, j) : 0);
        want += testing::dot(&rows[size_t(i * s_.k)], &columns[size_t(j * s_.k)], s_.k);
        ASSERT_NEAR(got.at(i, j), want, std::fabs(want) * rounding + 1.5e-7 * double(s_.k) + 1e-5)
            << s_.m << "x" << s_.n << "x" << s_.k << " at " << i << ", " << j;
      }
    for (int64_t i = 0; i + 1 < s_.m; i++)
      for (int64_t j = s_.n; j < s_.n + 5; j++) ASSERT_TRUE(std::isnan(got.at(i, j))) << "wrote between rows";
  }
  MatmulArgs args;

 private:
  Problem s_;
  PaddedMatrix a_, b_, c_, residual_, bias_;
};

using gemm::Instructions;

// Products as processors run them that have no more than these instructions.
class OwnMatmul : public ::testing::TestWithParam<Instructions> {
 protected:
  void SetUp() override {
    gemm::newest() = GetParam();
    if (GetParam() == Instructions::avx2 ? !packed::kernels() : !gemm::kernels(DType::f32))
      GTEST_SKIP() << "this processor has none of these instructions";
    if (GetParam() == Instructions::tiles && !tiles::kernels())
      GTEST_SKIP() << "this processor has no tile registers";
  }
  void TearDown() override { gemm::newest() = Instructions::tiles; }
  // Of operands and result, those that are multiplied so.
  static std::vector<std::pair<DType, DType>> types() {
    std::vector<std::pair<DType, DType>> all;
    if (gemm::kernels(DType::bf16)) all = {{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
    all.emplace_back(DType::f32, DType::f32);
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(, OwnMatmul,
                         ::testing::Values(Instructions::avx2, Instructions::avx512, Instructions::tiles),
                         [](const auto& p) {
                           return p.param == Instructions::avx2     ? "Avx2"
                                  : p.param == Instructions::avx512 ? "Vectors"
                                                                    : "Tiles";
                         });

TEST_P(OwnMatmul, MatchesDoubleAtEveryEdge) {
  // One element, each height of a strip, narrow and wide panels, odd depths, strips packed eight at a time.
  const int64_t sizes[][3] = {{1, 1, 1},   {2, 63, 2},   {3, 64, 3},   {4, 65, 31}, {5, 130, 33},
                              {7, 16, 64}, {53, 17, 35}, {97, 70, 47}, {64, 96, 64}};
  for (auto [type, out] : types())
    for (auto [m, n, k] : sizes)
      for (int trans = 0; trans < 4; trans++)
        Case({m, n, k, bool(trans & 1), bool(trans & 2), type, out}).check(1 + trans % 3);
}

TEST_P(OwnMatmul, AddsEachEpilogueOnce) {
  for (auto [type, out] : types())
    for (int what = 0; what < 8; what++)
      Case({20, 75, 40, false, true, type, out, bool(what & 1), bool(what & 2), bool(what & 4)}).check(2);
}

// Sums that go through memory between blocks of the summed dim, in c or in scratch.
TEST_P(OwnMatmul, BlocksOfTheSummedDimMeetInF32) {
  for (auto [type, out] : types())
    for (bool trans_a : {false, true})
      for (bool add : {false, true})
        Case({13, 77, 3101, trans_a, !trans_a, type, out, add, add, add}).check(2);
}

// More columns than are packed at a time: of this depth 2,069 in tiles, 2,064 in panels of 24.
TEST_P(OwnMatmul, PacksColumnsInBlocks) {
  if (GetParam() == Instructions::avx512) GTEST_SKIP() << "vectors pack panel by panel";
  for (auto [type, out] : types()) {
    if (GetParam() == Instructions::tiles && type == DType::f32) continue;
    for (int threads : {1, 2}) Case({1, 2100, 3009, false, true, type, out, true}).check(threads);
  }
}

// More rows than one block of packed strips holds.
TEST_P(OwnMatmul, PacksRowsInBlocks) {
  for (auto [type, out] : types()) Case({805, 9, 11, true, false, type, out}).check(1);
}

// Rows enough that threads share packed panels, several blocks of the summed dim, a narrow last panel: the
// bits of the same product in pieces of rows too few for that.
TEST_P(OwnMatmul, SharesPanelsAmongManyRows) {
  for (auto [type, out] : types()) {
    const int64_t rows = 1541, most = 400;
    Case many({rows, 67, 1031, true, out == DType::f32, type, out, true, true, true});
    const auto one = many.result(1);
    for (int threads : {2, 3, 7}) EXPECT_EQ(many.result(threads), one) << threads << " threads";
    std::vector<std::byte> c(one.size());
    std::memcpy(c.data(), many.args.c.data, c.size());
    for (int64_t first = 0; first < rows; first += most) {
      MatmulArgs p = many.args;
      const int64_t n = std::min(most, rows - first);
      p.c.data = c.data();
      p.a = p.a.narrow(1, first, n), p.c = p.c.narrow(0, first, n);
      p.residual = p.residual.narrow(0, first, n);
      Case::run(p, 1);
    }
    EXPECT_EQ(c, one);
  }
}

TEST_P(OwnMatmul, ThreadsAndCutsAlongRowsKeepEveryBit) {
  for (auto [type, out] : types())
    for (bool trans_a : {false, true}) {
      Case whole({61, 70, 3001, trans_a, false, type, out, true, true, true});
      const auto one = whole.result(1);
      for (int threads : {2, 3, 7}) EXPECT_EQ(whole.result(threads), one) << threads << " threads";
      // The last 20 rows by themselves.
      Case part = whole;
      const int64_t first = 41, rows = 20;
      MatmulArgs p = part.args;
      p.a = p.a.narrow(trans_a ? 1 : 0, first, rows);
      std::vector<std::byte> c(one.size());
      std::memcpy(c.data(), whole.args.c.data, c.size());
      p.c.data = c.data();
      p.c = p.c.narrow(0, first, rows), p.residual = p.residual.narrow(0, first, rows);
      Case::run(p, 1);
      int64_t at = first * p.c.stride[0] * size_of(out);
      EXPECT_EQ(std::memcmp(c.data() + at, one.data() + at, one.size() - size_t(at)), 0);
    }
}

// Rows of a that begin on lines and end with whole steps are read where they lie: the bits of packed ones,
// for whole strips and the rest.
TEST_P(OwnMatmul, RowsOnLinesGiveTheBitsOfOthers) {
  if (!gemm::kernels(DType::bf16)) GTEST_SKIP() << "of bf16";
  for (int64_t rows : {64, 70, 131}) {
    Case odd({rows, 90, 96, false, true, DType::bf16, DType::f32});
    Tensor a = odd.args.a;
    std::vector<bf16> space(size_t(rows * 128 + 32));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64;
    Tensor lines(reinterpret_cast<void*>(begin), a.shape, DType::bf16);
    lines.stride[0] = 128;
    for (int64_t i = 0; i < rows; i++)
      std::copy_n(a.as<bf16>() + i * a.stride[0], 96, lines.as<bf16>() + i * 128);
    const auto want = odd.result(2);
    odd.args.a = lines;
    EXPECT_EQ(odd.result(2), want);
  }
}

// A large c whose rows begin on lines may go past the caches: the bits of one whose rows do not, and nothing
// of it is missing when another thread reads it.
TEST_P(OwnMatmul, LargeResultsOnLinesAreWhole) {
  if (!gemm::kernels(DType::bf16)) GTEST_SKIP() << "of bf16";
  const int64_t rows = 200, cols = 10528 + 7, depth = 32;  // 4.2 MB
  PaddedMatrix a(rows, depth, depth, DType::bf16, "a"), b(depth, cols, cols, DType::bf16, "b");
  std::vector<bf16> odd(size_t(rows * (cols + 5))), even(size_t(rows * (cols + 25) + 32));
  const uintptr_t line = (reinterpret_cast<uintptr_t>(even.data()) + 63) / 64 * 64;
  MatmulArgs p{.a = a.tensor, .b = b.tensor, .c = Tensor(odd.data(), {rows, cols}, DType::bf16)};
  p.c.stride[0] = cols + 5;
  Case::run(p, 2);
  const Tensor c = p.c;
  p.c.data = reinterpret_cast<std::byte*>(line), p.c.stride[0] = cols + 25;
  ASSERT_EQ(p.c.stride[0] % 32, 0);
  Case::run(p, 2);
  for (int64_t i = 0; i < rows; i++)
    ASSERT_EQ(
        std::memcmp(p.c.as<bf16>() + i * p.c.stride[0], c.as<bf16>() + i * c.stride[0], size_t(cols) * 2), 0)
        << "row " << i;
}

TEST_P(OwnMatmul, LeavesToOneDnnWhatItDoesNotTake) {
  auto* at = reinterpret_cast<void*>(64);
  const DType type = types().front().first;
  MatmulArgs p{
      .a = Tensor(at, {256, 64}, type), .b = Tensor(at, {64, 128}, type), .c = Tensor(at, {256, 128}, type)};
  EXPECT_TRUE(takes_own_matmul(p, {.threads = 2}));
  p.residual = p.c;  // partial sums in an f32 c would overwrite it
  EXPECT_FALSE(takes_own_matmul(p, {.threads = 2}));
  p.residual = {};
  p.a = p.a.narrow(0, 0, 1), p.c = p.c.narrow(0, 0, 1);  // one row: a stream of b, nothing to reuse
  EXPECT_FALSE(takes_own_matmul(p, {.threads = 1}));
}

}  // namespace
}  // namespace trireme::cpu
