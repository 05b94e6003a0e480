// Ranks and their coordinates on the axes. Nobody else does rank arithmetic.
//
// world = pp * dp * cp * tp. ep divides dp * cp * tp and is carved from it: experts are whole on a rank and
// replicated on edp = dp * cp * tp / ep. At one pp coordinate, number the ranks 0 .. dp*cp*tp-1 in ascending
// order: the ep coordinate is that number modulo ep (experts' all-to-all stays among the nearest ranks), edp
// the quotient. So ep and edp cut across dp, cp and tp, and a set of axes names one kind or the other, pp
// with either.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

enum class Axis : uint8_t { pp, dp, cp, tp, ep, edp };
using Axes = std::span<const Axis>;
std::string_view name_of(Axis);

// A rank's place on an axis, as layers are told it.
struct AxisPlace {
  int size = 1, rank = 0;
  bool operator==(const AxisPlace&) const = default;
};

struct Degrees {
  int pp = 1, dp = 1, cp = 1, tp = 1, ep = 1;
  bool operator==(const Degrees&) const = default;
};

class Mesh {
 public:
  Mesh() : Mesh(Degrees{}) {}
  // Throws one Error (request) that lists every broken rule with the whole equation. The order names pp, dp,
  // cp and tp once each, outer to inner: ranks that differ only in the last are nearest.
  explicit Mesh(Degrees d, std::span<const Axis> outer_to_inner = kDefaultOrder);

  int world() const;
  int size(Axis) const;
  int size(Axes) const;
  int coord(int rank, Axis) const;
  int coord(int rank, Axes) const;  // index of rank within group(rank, axes)
  AxisPlace place(int rank, Axis a) const { return {size(a), coord(rank, a)}; }
  std::vector<int> group(int rank, Axes) const;  // ranks that differ from `rank` only along axes, ascending

  static constexpr std::array<Axis, 4> kDefaultOrder = {Axis::pp, Axis::dp, Axis::cp, Axis::tp};

 private:
  int inner_index(int rank) const;             // number of rank among those of its pp coordinate
  int rank_of(int pp_coord, int inner) const;  // the inverse

  Degrees degrees_;
  std::array<Axis, 4> order_;
};

}  // namespace trireme
