#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

using std::vector;
constexpr std::array<Axis, 6> kAxes = {Axis::pp, Axis::dp, Axis::cp, Axis::tp, Axis::ep, Axis::edp};

std::string error_of(Degrees d, Axes order = Mesh::kDefaultOrder) {
  try {
    Mesh m(d, order);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}

vector<int> group(const Mesh& m, int rank, vector<Axis> axes) {
  return m.group(rank, axes);
}

// Every set of dense axes, and every set of expert axes, with and without pp.
vector<vector<Axis>> axis_sets() {
  vector<vector<Axis>> sets;
  for (unsigned bits = 0; bits < 64; bits++) {
    vector<Axis> s;
    for (size_t i = 0; i < 6; i++) {
      if (bits >> i & 1) s.push_back(kAxes[i]);
    }
    if ((bits & 0b110000) && (bits & 0b001110)) continue;
    sets.push_back(s);
  }
  return sets;
}

TEST(Mesh, OneRank) {
  Mesh m;
  EXPECT_EQ(m.world(), 1);
  for (Axis a : kAxes) {
    EXPECT_EQ(m.size(a), 1);
    EXPECT_EQ(m.coord(0, a), 0);
  }
  EXPECT_EQ(group(m, 0, {}), vector<int>{0});
}

TEST(Mesh, DefaultOrderByHand) {
  // rank = ((pp * 2 + dp) * 1 + cp) * 3 + tp
  Mesh m({.pp = 2, .dp = 2, .tp = 3});
  EXPECT_EQ(m.world(), 12);
  EXPECT_EQ(m.coord(10, Axis::pp), 1);
  EXPECT_EQ(m.coord(10, Axis::dp), 1);
  EXPECT_EQ(m.coord(10, Axis::tp), 1);
  EXPECT_EQ(group(m, 10, {Axis::tp}), (vector<int>{9, 10, 11}));
  EXPECT_EQ(group(m, 10, {Axis::dp}), (vector<int>{7, 10}));
  EXPECT_EQ(group(m, 10, {Axis::tp, Axis::pp}), (vector<int>{3, 4, 5, 9, 10, 11}));
}

TEST(Mesh, OtherOrderByHand) {
  // rank = ((tp * 1 + cp) * 2 + pp) * 3 + dp
  const std::array<Axis, 4> order = {Axis::tp, Axis::cp, Axis::pp, Axis::dp};
  Mesh m({.pp = 2, .dp = 3, .tp = 2}, order);
  EXPECT_EQ(group(m, 7, {Axis::dp}), (vector<int>{6, 7, 8}));
  EXPECT_EQ(group(m, 7, {Axis::pp}), (vector<int>{7, 10}));
  EXPECT_EQ(group(m, 7, {Axis::tp}), (vector<int>{1, 7}));
}

TEST(Mesh, ExpertsAreCarvedFromTheNearestRanks) {
  Mesh m({.pp = 2, .dp = 2, .tp = 3, .ep = 2});  // six ranks a stage: ep groups of two neighbours
  EXPECT_EQ(m.size(Axis::edp), 3);
  EXPECT_EQ(group(m, 8, {Axis::ep}), (vector<int>{8, 9}));
  EXPECT_EQ(group(m, 8, {Axis::edp}), (vector<int>{6, 8, 10}));
  // With pp innermost the six ranks of stage 1 are 1, 3, .., 11.
  const std::array<Axis, 4> order = {Axis::dp, Axis::cp, Axis::tp, Axis::pp};
  Mesh inner({.pp = 2, .dp = 2, .tp = 3, .ep = 2}, order);
  EXPECT_EQ(group(inner, 5, {Axis::ep}), (vector<int>{5, 7}));
  EXPECT_EQ(group(inner, 5, {Axis::edp}), (vector<int>{1, 5, 9}));
}

// The definition itself, held against the fast arithmetic: a rank is in the group exactly when all its
// coordinates outside the axes are equal.
TEST(Mesh, GroupsAreWhatTheirDefinitionSays) {
  const uint64_t key = rng_key(7, 0, "mesh");
  uint64_t draw = 0;
  const auto pick = [&](int n) { return int(below(key, draw++, uint64_t(n))); };
  for (int trial = 0; trial < 40; trial++) {
    Degrees d{.pp = 1 + pick(3), .dp = 1 + pick(4), .cp = 1 + pick(3), .tp = 1 + pick(3)};
    const int inner = d.dp * d.cp * d.tp;
    do d.ep = 1 + pick(inner);
    while (inner % d.ep);
    std::array<Axis, 4> order = Mesh::kDefaultOrder;
    for (int i = 3; i > 0; i--) std::swap(order[size_t(i)], order[size_t(pick(i + 1))]);
    const Mesh m(d, order);
    for (const vector<Axis>& axes : axis_sets()) {
      const bool expert =
          std::any_of(axes.begin(), axes.end(), [](Axis a) { return a == Axis::ep || a == Axis::edp; });
      vector<Axis> fixed;
      for (Axis a : expert ? vector<Axis>{Axis::pp, Axis::ep, Axis::edp}
                           : vector<Axis>(kAxes.begin(), kAxes.begin() + 4)) {
        if (std::find(axes.begin(), axes.end(), a) == axes.end()) fixed.push_back(a);
      }
      const int rank = pick(m.world());
      vector<int> want;
      for (int r = 0; r < m.world(); r++) {
        if (std::all_of(fixed.begin(), fixed.end(),
                        [&](Axis a) { return m.coord(r, a) == m.coord(rank, a); }))
          want.push_back(r);
      }
      const vector<int> got = m.group(rank, axes);
      ASSERT_EQ(got, want);
      ASSERT_EQ(int(got.size()), m.size(axes));
      ASSERT_EQ(got[size_t(m.coord(rank, axes))], rank);
    }
  }
}

TEST(Mesh, CoordinatesNameOneRankEach) {
  const Mesh m({.pp = 2, .dp = 3, .cp = 2, .tp = 5, .ep = 6});
  std::set<vector<int>> dense, expert;
  for (int r = 0; r < m.world(); r++) {
    dense.insert({m.coord(r, Axis::pp), m.coord(r, Axis::dp), m.coord(r, Axis::cp), m.coord(r, Axis::tp)});
    expert.insert({m.coord(r, Axis::pp), m.coord(r, Axis::ep), m.coord(r, Axis::edp)});
    EXPECT_LT(m.coord(r, Axis::ep), 6);
    EXPECT_LT(m.coord(r, Axis::edp), 5);
  }
  EXPECT_EQ(dense.size(), 60u);
  EXPECT_EQ(expert.size(), 60u);
}

TEST(Mesh, EveryBrokenRuleIsListed) {
  const std::array<Axis, 4> order = {Axis::pp, Axis::pp, Axis::cp, Axis::tp};
  EXPECT_EQ(error_of({.pp = 0, .dp = -2}, order),
            "layout: pp = 0 must be at least 1; dp = -2 must be at least 1; order \"pp pp cp tp\" must name "
            "pp, dp, cp "
            "and tp once each");
  EXPECT_EQ(error_of({.pp = 4, .dp = 3, .cp = 2, .tp = 5, .ep = 4}),
            "layout: ep = 4 must divide dp*cp*tp = 3*2*5 = 30");
  EXPECT_EQ(error_of({}, std::array{Axis::dp, Axis::tp}),
            "layout: order \"dp tp\" must name pp, dp, cp and tp once each");
  EXPECT_EQ(error_of({.pp = 1 << 30, .dp = 1 << 30, .cp = 1 << 30, .tp = 1 << 30}).substr(0, 27),
            "layout: world = pp*dp*cp*tp");
}

TEST(Mesh, MisusedAxesAreABug) {
  const Mesh m({.dp = 2, .tp = 2, .ep = 2});
  EXPECT_THROW(group(m, 0, {Axis::dp, Axis::ep}), Error);
  EXPECT_THROW(group(m, 0, {Axis::dp, Axis::dp}), Error);
  EXPECT_THROW(m.coord(4, Axis::dp), Error);
  EXPECT_THROW(m.coord(-1, Axis::dp), Error);
}

}  // namespace
}  // namespace trireme
