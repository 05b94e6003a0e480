// What a rank of a World holds over time: states all along, activations from a layer's forward pass to its
// weight gradient, and what its backward pass has besides.
#pragma once
#include <vector>

#include "sim/world.h"

namespace trireme {

struct MemoryPoint {
  int64_t time = 0, bytes = 0;  // from then on
};
// Ascending in time, from 0. A layer's activations are there from the end of its forward pass and go at the
// end of the pass that adds its weight gradient.
std::vector<MemoryPoint> memory_of(const World&, const RankTape&, const RankReplay&);
int64_t peak_of(const std::vector<MemoryPoint>&);

struct MemoryRow {
  std::string name;
  std::vector<MemoryPoint> points;
};
// A curve a row, all on one scale up to `limit` bytes (a device's; 0 = not known) or the highest peak.
std::string memory_svg(const std::vector<MemoryRow>&, int64_t makespan, int64_t limit,
                       std::string_view title);

}  // namespace trireme
