// Measurements as sums of parts: how much of each part there is, none of it negative, so that a few that
// something held up move none.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace trireme {

template <size_t N>
using PartsOf = std::array<double, N>;

template <size_t N>
double dot(const PartsOf<N>& a, const PartsOf<N>& b) {
  double sum = 0;
  for (size_t i = 0; i < N; i++) sum += a[i] * b[i];
  return sum;
}

// x of a x = b for the parts in `chosen`, 0 for others; false where they cannot be told apart.
template <size_t N>
bool solve_parts(std::array<PartsOf<N>, N> a, PartsOf<N> b, unsigned chosen, PartsOf<N>& x) {
  x = {};
  std::array<size_t, N> use;
  size_t n = 0;
  for (size_t i = 0; i < N; i++)
    if (chosen >> i & 1) use[n++] = i;
  // Positive semidefinite: no need to look for pivots.
  for (size_t c = 0; c < n; c++) {
    const size_t p = use[c];
    if (a[p][p] <= 1e-9) return false;
    for (size_t r = c + 1; r < n; r++) {
      const size_t q = use[r];
      const double f = a[q][p] / a[p][p];
      for (size_t k = c; k < n; k++) a[q][use[k]] -= f * a[p][use[k]];
      b[q] -= f * b[p];
    }
  }
  for (size_t c = n; c-- > 0;) {
    double v = b[use[c]];
    for (size_t k = c + 1; k < n; k++) v -= a[use[c]][use[k]] * x[use[k]];
    x[use[c]] = v / a[use[c]][use[c]];
  }
  return true;
}

// Of all choices of parts whose shares come out positive the one with the least squared error: five parts
// have 31.
template <size_t N>
PartsOf<N> least_squares(const std::array<PartsOf<N>, N>& a, const PartsOf<N>& b) {
  PartsOf<N> best = {}, x;
  double most = -1;
  for (unsigned chosen = 1; chosen < 1u << N; chosen++) {
    if (!solve_parts(a, b, chosen, x) || std::any_of(x.begin(), x.end(), [](double v) { return v < 0; }))
      continue;
    // Of a solution |r|^2 = const - b x.
    if (const double explained = dot(b, x); explained > most) most = explained, best = x;
  }
  return best;
}

template <size_t N>
struct RobustParts {
  PartsOf<N> x = {};
  double error = std::numeric_limits<double>::infinity();  // mean magnitude of the relative one
};

// rows: parts of a measurement, divided by what was measured, so that sum(x part) is to be 1. Least squares
// over and over, each row at the weight 1 / (its error + soft): errors far below `soft` count squared, those
// far above by their magnitude.
template <size_t N>
RobustParts<N> robust_parts(std::vector<PartsOf<N>> rows, double soft, int rounds) {
  PartsOf<N> scale = {};
  for (const PartsOf<N>& r : rows)
    for (size_t i = 0; i < N; i++) scale[i] += r[i];
  for (PartsOf<N>& r : rows)
    for (size_t i = 0; i < N; i++)
      if (scale[i] > 0) r[i] *= double(rows.size()) / scale[i];
  std::vector<double> weight(rows.size(), 1);
  RobustParts<N> out;
  for (int round = 0; round < rounds; round++) {
    std::array<PartsOf<N>, N> a = {};
    PartsOf<N> b = {};
    double all = 0;
    for (size_t n = 0; n < rows.size(); n++) {
      all += weight[n];
      for (size_t i = 0; i < N; i++) {
        b[i] += weight[n] * rows[n][i];
        for (size_t j = 0; j < N; j++) a[i][j] += weight[n] * rows[n][i] * rows[n][j];
      }
    }
    for (size_t i = 0; i < N; i++) {
      b[i] /= all;
      for (double& v : a[i]) v /= all;
    }
    const PartsOf<N> x = least_squares(a, b);
    double error = 0;
    for (size_t n = 0; n < rows.size(); n++) {
      const double e = std::abs(dot(x, rows[n]) - 1);
      error += e, weight[n] = 1 / (e + soft);
    }
    out.error = error / double(rows.size());
    for (size_t i = 0; i < N; i++) out.x[i] = scale[i] > 0 ? x[i] * double(rows.size()) / scale[i] : 0;
  }
  return out;
}

}  // namespace trireme
