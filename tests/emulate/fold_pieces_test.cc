// Reductions of ranks that share a GPU, held to the CPU's bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "device/cpu/sum_pieces.h"
#include "emulated_device.h"

namespace trireme {
namespace {

template <class T>
T drawn(uint64_t trial, uint64_t i) {
  if constexpr (std::is_integral_v<T>)
    return T(below(trial, i, ~uint64_t(0)));  // sums of which wrap
  else
    return T(float(uniform(trial, i) - 0.5) * std::exp2(float(below(trial, i, 24)) - 12));
}

// Buffers of ranks, and where in each a piece begins.
template <class T>
struct Pieces {
  std::vector<std::vector<T>> of;
  std::vector<std::byte*> at;
  Pieces(uint64_t trial, size_t ranks, int64_t n, const std::vector<int64_t>& shifts)
      : of(ranks, std::vector<T>(size_t(n) + 40)) {
    for (size_t r = 0; r < ranks; r++) {
      for (size_t i = 0; i < of[r].size(); i++) of[r][i] = drawn<T>(trial, r * of[r].size() + i);
      // From a multiple of 16 bytes on: what the shift says of alignment is then so.
      const auto begin = reinterpret_cast<uintptr_t>(of[r].data());
      const size_t aligned = (16 - begin % 16) % 16 / sizeof(T);
      at.push_back(reinterpret_cast<std::byte*>(of[r].data() + aligned + shifts[r % shifts.size()]));
    }
  }
};
std::span<const std::byte* const> sources(const std::vector<std::byte*>& p) {
  return {p.data(), p.size()};
}
template <class T>
bool same_bytes(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  for (size_t r = 0; r < a.size(); r++)
    if (std::memcmp(a[r].data(), b[r].data(), a[r].size() * sizeof(T)) != 0) return false;
  return a.size() == b.size();
}

template <class T>
class FoldOnDevice : public ::testing::Test {};
using Types = ::testing::Types<float, double, bf16, f16, int32_t, int64_t>;
TYPED_TEST_SUITE(FoldOnDevice, Types);

// In place and to other buffers, at alignments that are alike and at others; nothing beside is written.
TYPED_TEST(FoldOnDevice, HasTheProcessorsBits) {
  using T = TypeParam;
  uint64_t trial = 0;
  const std::vector<std::vector<int64_t>> all_shifts = {{0}, {1}, {7}, {0, 1, 3}};
  for (size_t ranks : {1, 2, 3, 9})
    for (int64_t n : {1, 2, 7, 8, 9, 16, 1000, 2049})
      for (const std::vector<int64_t>& shifts : all_shifts)
        for (bool max : {false, true}) {
          trial++;
          Pieces<T> ours(trial, ranks, n, shifts), theirs(trial, ranks, n, shifts);
          Pieces<T> out(~trial, 2, n, shifts), expected(~trial, 2, n, shifts);
          const auto fold = [&](const std::vector<std::byte*>& dst, const std::vector<std::byte*>& src) {
            max ? cpu::max_pieces(dst, sources(src), n, dtype_of<T>)
                : cpu::sum_pieces(dst, sources(src), n, dtype_of<T>);
          };
          fold(expected.at, theirs.at);
          emulated_fold_pieces(out.at, sources(ours.at), n, dtype_of<T>, max, trial);
          ASSERT_TRUE(same_bytes(out.of, expected.of)) << ranks << " pieces of " << n << (max ? ", max" : "");
          fold(theirs.at, theirs.at);
          emulated_fold_pieces(ours.at, sources(ours.at), n, dtype_of<T>, max, trial);
          ASSERT_TRUE(same_bytes(ours.of, theirs.of))
              << ranks << " pieces of " << n << " in place" << (max ? ", max" : "");
        }
}

TEST(FoldOnDevice, NanIsTheLargest) {
  for (size_t place : {0, 1, 2}) {
    std::array<float, 3> f = {1, 5, -2};
    f[place] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::byte*> at;
    for (float& x : f) at.push_back(reinterpret_cast<std::byte*>(&x));
    emulated_fold_pieces({at.data(), 1}, sources(at), 1, DType::f32, true, 0);
    EXPECT_TRUE(std::isnan(f[0])) << place;
  }
}

TEST(FoldOnDevice, OfAsManyPiecesAsALaunchTakes) {
  std::vector<float> x(64);
  std::vector<std::byte*> at;
  float sum = 0;
  for (size_t i = 0; i < 64; i++) {
    sum += x[i] = drawn<float>(5, i);
    at.push_back(reinterpret_cast<std::byte*>(&x[i]));
  }
  emulated_fold_pieces(at, sources(at), 1, DType::f32, false, 0);
  for (float y : x) EXPECT_EQ(y, sum);
}

}  // namespace
}  // namespace trireme
