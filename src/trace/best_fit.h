// Placement of blocks in a range: best fit, lowest address first, neighbours merged. A pure function of the
// calls, so it can be repeated without the caller (program/program_bytes.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

// Bytes: one cache line, one AVX-512 register.
inline constexpr int64_t kBlockAlign = 64;
// Bytes that a block of `bytes` takes in its range.
constexpr int64_t padded_block(int64_t bytes) {
  return (bytes > 0 ? (bytes + kBlockAlign - 1) / kBlockAlign : 1) * kBlockAlign;
}

class BestFit {
 public:
  explicit BestFit(int64_t capacity);
  int64_t place(int64_t size);  // its begin; -1: there is no room
  void give_back(int64_t begin, int64_t size);

  int64_t high_water() const { return high_water_; }  // end of the highest block ever placed
  int64_t capacity() const { return capacity_; }

 private:
  size_t best_for(int64_t size) const;
  void erase(size_t hole);

  int64_t capacity_, high_water_ = 0;
  // Holes, sorted by begin, never adjacent. Capacity is kept, so steady steps allocate nothing. Sizes have a
  // separate vector, because place() compares all of them.
  std::vector<int64_t> begins_, sizes_;
};

}  // namespace trireme
