#include "mesh/shape.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trireme {

Shape::Shape(std::initializer_list<int64_t> dims) {
  require(dims.size() <= kMaxDims, "a shape has at most 4 dims");
  for (int64_t d : dims) {
    require(d >= 0, "a dim must not be negative");
    dim[size_t(rank++)] = d;
  }
}

std::string to_string(const Shape& s) {
  return fmt::format("[{}]", fmt::join(s.dim.begin(), s.dim.begin() + s.rank, ", "));
}

}  // namespace trireme
