// Who owns what of a global tensor: one pair of functions shared by init, layers, optimizer and checkpoints.
#pragma once
#include <array>
#include <vector>

#include "base/rounding.h"
#include "mesh/mesh.h"
#include "mesh/shape.h"

namespace trireme {

// The axes that divide each dim, outer first; none = whole on every rank.
struct ShardSpec {
  std::array<std::vector<Axis>, kMaxDims> axes_of_dim;
  // Dim 0 is cut into equal parts rounded up, so the last ranks' boxes are short, or empty. What a rank
  // stores is as large on each: the rows beyond its box are zero (vocabularies).
  bool ragged = false;

  bool divides_along(Axis) const;
};
// Divided along `axis` in one dim.
ShardSpec sharded(int dim, Axis axis);

// Elements of the flat range that one ZeRO rank owns are padded to blocks of this many (DESIGN.md section 3);
// the gradient norm sums over the same blocks.
inline constexpr int64_t kFlatBlock = 4096;
constexpr int64_t flat_blocks(int64_t elements) {
  return div_up(elements, kFlatBlock);
}

// The box of `rank`. Each sharded dim must divide evenly, a ragged one apart; the error (request) names dim,
// size and degree.
Slice local_slice(const Shape& global, const ShardSpec&, const Mesh&, int rank);
// What a rank stores of it: the shape of the box, with the rows that complete a ragged one.
Shape stored_shape(const Shape& global, const ShardSpec&, const Mesh&);

// The row-major elements of the box that `rank` owns in its group along `zero_axes`: whole blocks of
// kFlatBlock, as even as blocks allow, the last one short; empty for ranks beyond the last block.
Range flat_range(const Slice& box, const Mesh&, Axes zero_axes, int rank);

}  // namespace trireme
