#include "trace/best_fit.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"

namespace trireme {
namespace {

// The definition: the smallest hole that has room, the lowest of equal ones, the open end if no other has.
int64_t placed(const std::map<int64_t, int64_t>& holes, int64_t size, int64_t capacity) {
  int64_t at = -1, least = 0;
  for (const auto& [begin, hole] : holes) {
    if (begin + hole == capacity || hole < size || (at >= 0 && hole >= least)) continue;
    at = begin;
    least = hole;
  }
  if (at >= 0) return at;
  if (holes.empty()) return -1;
  const auto& [begin, hole] = *holes.rbegin();
  return begin + hole == capacity && hole >= size ? begin : -1;
}

// Holes between the blocks.
std::map<int64_t, int64_t> holes_between(const std::map<int64_t, int64_t>& blocks, int64_t capacity) {
  std::map<int64_t, int64_t> holes;
  int64_t end = 0;
  for (const auto& [begin, size] : blocks) {
    if (begin > end) holes[end] = begin - end;
    end = begin + size;
  }
  if (end < capacity) holes[end] = capacity - end;
  return holes;
}

TEST(BestFit, PlacesAsDefined) {
  std::mt19937_64 rng(11);
  for (const int64_t capacity : {int64_t(1) << 14, int64_t(1) << 52}) {
    BestFit fit(capacity);
    std::map<int64_t, int64_t> blocks;
    int64_t high = 0, refused = 0;
    size_t most_holes = 0;
    for (int step = 0; step < 3000; step++) {
      if (blocks.size() < 40 || rng() % 2) {
        const int64_t size = kBlockAlign * int64_t(1 + rng() % (rng() % 4 == 0 ? 40 : 5));
        const int64_t at = fit.place(size);
        ASSERT_EQ(at, placed(holes_between(blocks, capacity), size, capacity));
        refused += at < 0;
        if (at < 0) continue;
        blocks[at] = size;
        high = std::max(high, at + size);
      } else {
        const auto it = std::next(blocks.begin(), int64_t(rng() % blocks.size()));
        fit.give_back(it->first, it->second);
        blocks.erase(it);
      }
      most_holes = std::max(most_holes, holes_between(blocks, capacity).size());
      ASSERT_EQ(fit.high_water(), high);
    }
    EXPECT_GT(most_holes, 16u);  // more than are compared at once
    if (capacity < 1 << 20) {
      EXPECT_GT(refused, 0);
    }
    EXPECT_THROW(fit.give_back(blocks.begin()->first + 1, 1 << 14), Error);
  }
}

}  // namespace
}  // namespace trireme
