// The products of ragged groups as processors without products of our own run them: block by block, and with
// the same results as expert by expert in double. (The harness runs what this processor takes.)
#include "device/cpu/grouped_matmul.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kExperts = 4, kRows = 83, kIn = 37, kOut = 29;
const std::vector<int32_t> kOffsets = {0, 45, 45, 46, 79};  // many rows, none, one, some; 4 rows of nobody

std::vector<float> values(std::string_view name, int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); i++) v[i] = float(normal(rng_key(5, 0, name), i));
  return v;
}
template <class T>
Tensor view(std::vector<T>& v, const Shape& s) {
  return Tensor(v.data(), s, dtype_of<T>);
}
// As much as was asked for, and a guard.
struct Scratch {
  explicit Scratch(int64_t bytes) : bytes(bytes), memory(size_t(bytes + 128), 0x5a) {}
  Tensor tensor() {
    auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64;
    first = size_t(at - reinterpret_cast<uintptr_t>(memory.data()));
    return bytes > 0 ? Tensor(memory.data() + first, {bytes}, DType::u8) : Tensor();
  }
  bool kept() const {
    for (size_t i = first + size_t(bytes); i < memory.size(); i++)
      if (memory[i] != 0x5a) return false;
    return true;
  }
  int64_t bytes;
  size_t first = 0;
  std::vector<uint8_t> memory;
};

double worst(const std::vector<float>& got, const std::vector<double>& want) {
  double w = 0;
  for (size_t i = 0; i < want.size(); i++) w = std::max(w, std::fabs(double(got[i]) - want[i]));
  return w;
}

TEST(GroupedByBlocks, EachExpertsRowsMeetItsWeight) {
  for (bool trans : {false, true})
    for (int threads : {1, 2}) {
      auto x = values("x", kRows * kIn), w = values("w", kExperts * kIn * kOut);
      std::vector<float> y(size_t(kRows * kOut), 7.0f);
      auto offsets = kOffsets;
      GroupedMatmulArgs p{.x = view(x, {kRows, kIn}),
                          .w = view(w, trans ? Shape{kExperts, kOut, kIn} : Shape{kExperts, kIn, kOut}),
                          .offsets = view(offsets, {kExperts + 1}),
                          .y = view(y, {kRows, kOut}),
                          .trans_w = trans};
      const Context ctx{.threads = threads};
      Scratch scratch(grouped_by_blocks_scratch_bytes(p, ctx));
      grouped_by_blocks(p, scratch.tensor(), ctx);
      std::vector<double> want(y.size(), 7.0);
      for (int64_t e = 0; e < kExperts; e++)
        for (int64_t r = kOffsets[size_t(e)]; r < kOffsets[size_t(e + 1)]; r++)
          for (int64_t j = 0; j < kOut; j++) {
            double s = 0;
            for (int64_t i = 0; i < kIn; i++)
              s += double(x[size_t(r * kIn + i)]) *
                   double(w[size_t(e * kIn * kOut + (trans ? j * kIn + i : i * kOut + j))]);
            want[size_t(r * kOut + j)] = s;
          }
      EXPECT_LT(worst(y, want), 1e-5) << trans << threads;
      EXPECT_TRUE(scratch.kept());
    }
}

TEST(GroupedByBlocks, AWeightsGradientIsTheSumOfItsBlocks) {
  for (bool accumulate : {false, true}) {
    auto dy = values("dy", kRows * kOut), x = values("x", kRows * kIn),
         before = values("dw", kExperts * kOut * kIn), dw = before;
    auto offsets = kOffsets;
    GroupedMatmulWeightArgs p{.dy = view(dy, {kRows, kOut}),
                              .x = view(x, {kRows, kIn}),
                              .offsets = view(offsets, {kExperts + 1}),
                              .dw = view(dw, {kExperts, kOut, kIn}),
                              .accumulate = accumulate};
    const Context ctx{.threads = 2};
    Scratch scratch(grouped_by_blocks_scratch_bytes(p, ctx));
    grouped_by_blocks(p, scratch.tensor(), ctx);
    std::vector<double> want(before.begin(), before.end());
    for (int64_t e = 0; e < kExperts; e++) {
      const int64_t begin = kOffsets[size_t(e)], end = kOffsets[size_t(e + 1)];
      if (begin == end) continue;  // left as it is
      for (int64_t j = 0; j < kOut; j++)
        for (int64_t i = 0; i < kIn; i++) {
          const auto at = size_t((e * kOut + j) * kIn + i);
          double s = accumulate ? want[at] : 0;
          for (int64_t r = begin; r < end; r++)
            s += double(dy[size_t(r * kOut + j)]) * double(x[size_t(r * kIn + i)]);
          want[at] = s;
        }
    }
    EXPECT_LT(worst(dw, want), 2e-5) << accumulate;
    EXPECT_TRUE(scratch.kept());
  }
}

// Offsets come from memory: what does not lie within the rows stops the run.
TEST(GroupedMatmul, OffsetsBeyondTheRowsStopTheRun) {
  auto x = values("x", 6 * 4), w = values("w", 2 * 4 * 3);
  std::vector<float> y(18);
  for (std::vector<int32_t> offsets : {std::vector<int32_t>{0, 4, 7}, {0, -1, 6}, {0, 5, 3}, {-1, 2, 6}}) {
    GroupedMatmulArgs p{
        .x = view(x, {6, 4}), .w = view(w, {2, 4, 3}), .offsets = view(offsets, {3}), .y = view(y, {6, 3})};
    const Context ctx{.threads = 1};
    Scratch scratch(scratch_bytes(p, ctx));
    EXPECT_THROW(launch(p, scratch.tensor(), ctx), Error);
  }
}

}  // namespace
}  // namespace trireme::cpu
