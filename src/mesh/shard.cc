#include "mesh/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/error.h"

namespace trireme {
namespace {

// "tp*ep = 2*4 = 8", or "tp = 2" for one axis.
std::string equation(const std::vector<Axis>& axes, const Mesh& mesh, int degree) {
  std::vector<std::string_view> names;
  std::vector<int> sizes;
  for (Axis a : axes) names.push_back(name_of(a)), sizes.push_back(mesh.size(a));
  if (axes.size() == 1) return fmt::format("{} = {}", names[0], degree);
  return fmt::format("{} = {} = {}", fmt::join(names, "*"), fmt::join(sizes, "*"), degree);
}

}  // namespace

bool ShardSpec::divides_along(Axis axis) const {
  return std::any_of(axes_of_dim.begin(), axes_of_dim.end(), [&](const std::vector<Axis>& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  });
}

ShardSpec sharded(int dim, Axis axis) {
  ShardSpec spec;
  spec.axes_of_dim[size_t(dim)] = {axis};
  return spec;
}

Slice local_slice(const Shape& global, const ShardSpec& spec, const Mesh& mesh, int rank) {
  Slice box;
  box.offset.rank = box.extent.rank = global.rank;
  std::vector<Axis> used;
  for (int d = 0; d < kMaxDims; d++) {
    const std::vector<Axis>& axes = spec.axes_of_dim[size_t(d)];
    require(d < global.rank || axes.empty(), "a dim beyond the tensor's rank is sharded");
    if (d >= global.rank) continue;
    used.insert(used.end(), axes.begin(), axes.end());
    // The first axis is the outer one: index = coord0 * size1 + coord1, and so on.
    int index = 0;
    for (Axis a : axes) index = index * mesh.size(a) + mesh.coord(rank, a);
    const int degree = mesh.size(axes);
    if (d == 0 && spec.ragged) {
      const int64_t part = (global[0] + degree - 1) / degree;
      box.offset.dim[0] = std::min(global[0], index * part);
      box.extent.dim[0] = std::min(global[0], (index + 1) * part) - box.offset[0];
      continue;
    }
    if (global[d] % degree != 0) {
      bad_request("dim {} of a tensor of shape {} has size {}, which {} does not divide", d,
                  to_string(global), global[d], equation(axes, mesh, degree));
    }
    box.extent.dim[size_t(d)] = global[d] / degree;
    box.offset.dim[size_t(d)] = index * box.extent[d];
  }
  mesh.size(used);  // an axis divides at most one dim: this set refuses repeats
  return box;
}

Shape stored_shape(const Shape& global, const ShardSpec& spec, const Mesh& mesh) {
  Shape s = local_slice(global, spec, mesh, 0).extent;
  if (spec.ragged) {
    const int64_t degree = mesh.size(spec.axes_of_dim[0]);
    s.dim[0] = (global[0] + degree - 1) / degree;
  }
  return s;
}

Range flat_range(const Slice& box, const Mesh& mesh, Axes zero_axes, int rank) {
  const int64_t n = box.extent.numel(), blocks = (n + kFlatBlock - 1) / kFlatBlock;
  const int64_t ranks = mesh.size(zero_axes), i = mesh.coord(rank, zero_axes);
  // The first `blocks % ranks` ranks own one block more, so only the last ranks can be empty.
  const int64_t even = blocks / ranks, extra = blocks % ranks;
  const int64_t first = i * even + std::min(i, extra), last = first + even + (i < extra ? 1 : 0);
  return {.begin = std::min(n, first * kFlatBlock), .end = std::min(n, last * kFlatBlock)};
}

}  // namespace trireme
