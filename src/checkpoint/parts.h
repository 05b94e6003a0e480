// Parts of global tensors, and copies between any two layouts of them: pure integers.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mesh/shape.h"
#include "tensor/tensor.h"

namespace trireme {

// The row-major elements [begin, end) of a box of a global tensor: what one rank stores, or wants.
struct Part {
  Slice box;
  Range range;
  bool operator==(const Part&) const = default;
};

Part whole(const Shape& global);

// Empty when `part` is a part of a tensor of this shape; else what is wrong. Holds for any numbers: nothing
// overflows once the shape's own product does not.
std::string why_not_part(const Part&, const Shape& global);

// n elements that both parts hold, by their row-major index in either box (not in the range).
struct Overlap {
  int64_t to = 0, from = 0, n = 0;
};
// Every element of the intersection once, in rising order of `to`, in runs as long as both layouts allow.
// Both parts are of one tensor.
void for_each_run(const Part& to, const Part& from, const std::function<void(const Overlap&)>&);

// What of [begin, end) has been filled.
class Cover {
 public:
  void add(const Range&);
  // The first elements of `wanted` that nobody added; empty when all are there.
  Range first_missing(const Range& wanted);

 private:
  std::vector<Range> filled_;
};

// A part of a global tensor with its data: row-major, contiguous, range.size() elements, in host memory.
struct NamedTensor {
  std::string name;
  Shape global;
  Slice box;
  Range range;
  Tensor host_data;
  // xxh3 of the data's bytes at an earlier time. A save compares it with the bytes that it writes.
  std::optional<uint64_t> xxh3 = {};
  Part part() const { return {box, range}; }
};

}  // namespace trireme
