#include "tensor/arena.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace trireme {
namespace {

TEST(Arena, BooksExactBytesAndReusesHoles) {
  alignas(64) static std::byte memory[1 << 16];
  Arena a(memory, sizeof memory);
  Tensor x = a.alloc(Bucket::weights, {3, 5}, DType::bf16);
  EXPECT_EQ(a.ledger().now(Bucket::weights), 30);
  {
    Owned y(a, Bucket::scratch, {7}, DType::f32);
    EXPECT_EQ(a.ledger().total(), 58);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(y->data) % Arena::kAlign, 0u);
  }
  EXPECT_EQ(a.ledger().total(), 30);
  EXPECT_EQ(a.ledger().peak_total(), 58);
  EXPECT_EQ(a.ledger().at_peak()[size_t(Bucket::scratch)], 28);
  a.free(Bucket::weights, x);
  EXPECT_THROW(a.free(Bucket::weights, x), Error);
  EXPECT_EQ(a.live_blocks(), 0);
}

// Placement must be the same over a range of just the high-water mark as over an endless one.
TEST(Arena, PlacementDoesNotDependOnCapacity) {
  auto run = [](int64_t capacity) {
    Arena a(nullptr, capacity);
    std::vector<Tensor> live;
    std::vector<int64_t> trace;
    for (uint64_t i = 0; i < 5000; i++) {
      if (live.empty() || below(1, i, 100) < 52) {
        live.push_back(a.alloc(Bucket::activations, {int64_t(below(2, i, 9000))}, DType::u8));
        trace.push_back(reinterpret_cast<int64_t>(live.back().data));
      } else {
        size_t k = below(3, i, live.size());
        a.free(Bucket::activations, live[k]);
        live.erase(live.begin() + int64_t(k));
      }
    }
    return std::pair(trace, a.high_water());
  };
  auto [endless, high] = run(int64_t(1) << 60);
  auto [tight, high2] = run(high);
  EXPECT_EQ(endless, tight);
  EXPECT_EQ(high, high2);
  EXPECT_THROW(run(high - Arena::kAlign), Error);
}

}  // namespace
}  // namespace trireme
