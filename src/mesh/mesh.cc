#include "mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"pp", "dp", "cp", "tp", "ep", "edp"};

bool contains(Axes axes, Axis a) {
  return std::find(axes.begin(), axes.end(), a) != axes.end();
}
bool is_expert(Axis a) {
  return a == Axis::ep || a == Axis::edp;
}

// Each axis once, and expert axes never beside the dense ones they are carved from. True if expert axes are
// in it.
bool check_axes(Axes axes) {
  bool dense = false, expert = false;
  for (size_t i = 0; i < axes.size(); i++) {
    require(!contains(axes.first(i), axes[i]), "an axis is named twice in a set of axes");
    expert |= is_expert(axes[i]);
    dense |= !is_expert(axes[i]) && axes[i] != Axis::pp;
  }
  require(!(dense && expert),
          "ep and edp are carved from dp, cp and tp: a set of axes has one kind or the other");
  return expert;
}

std::string join(Axes axes) {
  std::vector<std::string_view> names;
  for (Axis a : axes) names.push_back(name_of(a));
  return fmt::format("{}", fmt::join(names, " "));
}

}  // namespace

std::string_view name_of(Axis a) {
  return kNames[size_t(a)];
}

Mesh::Mesh(Degrees d, std::span<const Axis> outer_to_inner) : degrees_(d), order_(kDefaultOrder) {
  std::vector<std::string> wrong;
  const std::array<int, 5> degree = {d.pp, d.dp, d.cp, d.tp, d.ep};
  bool positive = true;
  for (size_t i = 0; i < degree.size(); i++) {
    if (degree[i] < 1) wrong.push_back(fmt::format("{} = {} must be at least 1", kNames[i], degree[i]));
    positive &= degree[i] >= 1;
  }
  // In double: four degrees can overflow 64 bits.
  const double inner = double(d.dp) * d.cp * d.tp, world = d.pp * inner;
  const bool fits = world <= std::numeric_limits<int>::max();
  if (positive && !fits) {
    wrong.push_back(fmt::format("world = pp*dp*cp*tp = {}*{}*{}*{} = {:.3g} is more than {} ranks", d.pp,
                                d.dp, d.cp, d.tp, world, std::numeric_limits<int>::max()));
  }
  if (positive && fits && int(inner) % d.ep != 0) {
    wrong.push_back(
        fmt::format("ep = {} must divide dp*cp*tp = {}*{}*{} = {}", d.ep, d.dp, d.cp, d.tp, int(inner)));
  }
  const bool permutation =
      outer_to_inner.size() == order_.size() &&
      std::all_of(order_.begin(), order_.end(), [&](Axis a) { return contains(outer_to_inner, a); });
  if (permutation) {
    std::copy(outer_to_inner.begin(), outer_to_inner.end(), order_.begin());
  } else {
    wrong.push_back(fmt::format("order \"{}\" must name pp, dp, cp and tp once each", join(outer_to_inner)));
  }
  if (!wrong.empty()) bad_request("layout: {}", fmt::join(wrong, "; "));
}

int Mesh::world() const {
  return degrees_.pp * degrees_.dp * degrees_.cp * degrees_.tp;
}

int Mesh::size(Axis a) const {
  switch (a) {
    case Axis::pp:
      return degrees_.pp;
    case Axis::dp:
      return degrees_.dp;
    case Axis::cp:
      return degrees_.cp;
    case Axis::tp:
      return degrees_.tp;
    case Axis::ep:
      return degrees_.ep;
    case Axis::edp:
      return degrees_.dp * degrees_.cp * degrees_.tp / degrees_.ep;
  }
  invariant_failed("no such axis", __FILE__, __LINE__);
}

int Mesh::size(Axes axes) const {
  check_axes(axes);
  int n = 1;
  for (Axis a : axes) n *= size(a);
  return n;
}

int Mesh::inner_index(int rank) const {
  int index = 0, scale = 1;
  for (auto a = order_.rbegin(); a != order_.rend(); ++a) {
    if (*a != Axis::pp) index += rank % size(*a) * scale, scale *= size(*a);
    rank /= size(*a);
  }
  return index;
}

int Mesh::rank_of(int pp_coord, int inner) const {
  int rank = 0, scale = 1;
  for (auto a = order_.rbegin(); a != order_.rend(); ++a) {
    const bool is_pp = *a == Axis::pp;
    rank += (is_pp ? pp_coord : inner % size(*a)) * scale;
    scale *= size(*a);
    if (!is_pp) inner /= size(*a);
  }
  return rank;
}

int Mesh::coord(int rank, Axis axis) const {
  require(rank >= 0 && rank < world(), "a rank lies outside the mesh");
  if (axis == Axis::ep) return inner_index(rank) % degrees_.ep;
  if (axis == Axis::edp) return inner_index(rank) / degrees_.ep;
  for (auto a = order_.rbegin(); *a != axis; ++a) rank /= size(*a);
  return rank % size(axis);
}

int Mesh::coord(int rank, Axes axes) const {
  if (axes.size() == 1) return coord(rank, axes[0]);
  if (check_axes(axes)) {
    const std::vector<int> g = group(rank, axes);
    return int(std::lower_bound(g.begin(), g.end(), rank) - g.begin());
  }
  int index = 0;
  for (Axis a : order_) {
    if (contains(axes, a)) index = index * size(a) + coord(rank, a);
  }
  return index;
}

std::vector<int> Mesh::group(int rank, Axes axes) const {
  require(rank >= 0 && rank < world(), "a rank lies outside the mesh");
  std::vector<int> ranks;
  ranks.reserve(size_t(size(axes)));
  if (check_axes(axes)) {
    const int ep = degrees_.ep, pp = coord(rank, Axis::pp), inner = inner_index(rank);
    const bool any_pp = contains(axes, Axis::pp), any_ep = contains(axes, Axis::ep),
               any_edp = contains(axes, Axis::edp);
    for (int p = any_pp ? 0 : pp; p < (any_pp ? degrees_.pp : pp + 1); p++) {
      for (int e = any_edp ? 0 : inner / ep; e < (any_edp ? size(Axis::edp) : inner / ep + 1); e++) {
        for (int i = any_ep ? 0 : inner % ep; i < (any_ep ? ep : inner % ep + 1); i++)
          ranks.push_back(rank_of(p, e * ep + i));
      }
    }
  } else {
    // Start from the rank whose coordinates on the axes are 0, then spread axis by axis along its stride.
    ranks.push_back(rank);
    int stride = 1;
    for (auto a = order_.rbegin(); a != order_.rend(); stride *= size(*a), ++a) {
      if (!contains(axes, *a)) continue;
      ranks[0] -= coord(rank, *a) * stride;
    }
    stride = 1;
    for (auto a = order_.rbegin(); a != order_.rend(); stride *= size(*a), ++a) {
      if (!contains(axes, *a)) continue;
      const size_t before = ranks.size();
      for (int k = 1; k < size(*a); k++) {
        for (size_t i = 0; i < before; i++) ranks.push_back(ranks[i] + k * stride);
      }
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace trireme
