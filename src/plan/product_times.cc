#include "plan/product_times.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme {
namespace {

constexpr size_t kParts = 5;
using Parts = std::array<double, kParts>;

double depth_of(double rows, double cols, double flops) {
  return flops / (2 * rows * cols);
}

// Arithmetic, output, left and right operand, launch.
Parts parts_of(double rows, double cols, double flops, double panel) {
  const double depth = depth_of(rows, cols, flops);
  return {rows * std::ceil(cols / panel) * panel * depth, rows * cols, rows * depth, cols * depth, 1};
}

double dot(const Parts& a, const Parts& b) {
  double sum = 0;
  for (size_t i = 0; i < kParts; i++) sum += a[i] * b[i];
  return sum;
}

// x of a x = b for the parts in `chosen`, 0 for others; false where they cannot be told apart.
bool solve(std::array<Parts, kParts> a, Parts b, unsigned chosen, Parts& x) {
  x = {};
  std::array<size_t, kParts> use;
  size_t n = 0;
  for (size_t i = 0; i < kParts; i++)
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

struct LawFit {
  Parts law = {};
  double error = std::numeric_limits<double>::infinity();  // mean magnitude of the relative one
};

// Of all choices of parts whose seconds come out positive the one with the least squared error: five parts
// have 31.
Parts least_squares(const std::array<Parts, kParts>& a, const Parts& b) {
  Parts best = {}, x;
  double most = -1;
  for (unsigned chosen = 1; chosen < 1u << kParts; chosen++) {
    if (!solve(a, b, chosen, x) || std::any_of(x.begin(), x.end(), [](double v) { return v < 0; })) continue;
    // Of a solution |r|^2 = const - b x.
    if (const double explained = dot(b, x); explained > most) most = explained, best = x;
  }
  return best;
}

LawFit fit(const SpeedTable& t, double panel, int rounds) {
  constexpr double kSoft = 0.02;  // relative errors below this count squared
  std::vector<Parts> rows;        // parts / measured seconds: their sum is to be 1
  Parts scale = {};
  for (const SpeedPoint& p : t.points) {
    Parts r = parts_of(p.rows, p.cols, p.work, panel);
    for (size_t i = 0; i < kParts; i++) scale[i] += r[i] /= p.seconds;
    rows.push_back(r);
  }
  for (Parts& r : rows)
    for (size_t i = 0; i < kParts; i++)
      if (scale[i] > 0) r[i] *= double(rows.size()) / scale[i];
  std::vector<double> weight(rows.size(), 1);
  LawFit out;
  for (int round = 0; round < rounds; round++) {
    std::array<Parts, kParts> a = {};
    Parts b = {};
    double all = 0;
    for (size_t n = 0; n < rows.size(); n++) {
      all += weight[n];
      for (size_t i = 0; i < kParts; i++) {
        b[i] += weight[n] * rows[n][i];
        for (size_t j = 0; j < kParts; j++) a[i][j] += weight[n] * rows[n][i] * rows[n][j];
      }
    }
    for (size_t i = 0; i < kParts; i++) {
      b[i] /= all;
      for (double& v : a[i]) v /= all;
    }
    const Parts law = least_squares(a, b);
    double error = 0;
    for (size_t n = 0; n < rows.size(); n++) {
      const double e = std::abs(dot(law, rows[n]) - 1);
      error += e, weight[n] = 1 / (e + kSoft);
    }
    out.error = error / double(rows.size());
    for (size_t i = 0; i < kParts; i++)
      out.law[i] = scale[i] > 0 ? law[i] * double(rows.size()) / scale[i] : 0;
  }
  return out;
}

// How far a side is a multiple of a power of two: rows that lie so far apart fall into few sets of a cache,
// and a product that walks across them is up to twice as slow.
double alignment(double side) {
  constexpr double kFree = 64, kMost = 4096, kWeight = 0.3;
  double a = 0;
  for (double n = 2 * kFree; n <= kMost && std::fmod(side, n) == 0; n *= 2) a += kWeight;
  return a;
}

}  // namespace

ProductTimes::ProductTimes(const SpeedTable& t) : matrices_(t.of.starts_with("matmul ")) {
  constexpr double kPanels[] = {1, 8, 16, 24, 32, 48, 64, 128, 256};
  constexpr size_t kEnough = 12;  // sizes; a law of fewer would be drawn through their noise
  constexpr int kRounds = 4, kLast = 16;
  for (const SpeedPoint& p : t.points) fastest_ = std::max(fastest_, p.work / p.seconds);
  if (t.points.size() >= kEnough) {
    double least = std::numeric_limits<double>::infinity();
    for (const double panel : kPanels)
      if (const double e = fit(t, panel, kRounds).error; e < least) least = e, panel_ = panel;
    law_ = fit(t, panel_, kLast).law;
  }
  if (std::none_of(law_.begin(), law_.end(), [](double v) { return v > 0; }))
    panel_ = 1, law_[0] = fastest_ > 0 ? 2 / fastest_ : 0;
  for (const SpeedPoint& p : t.points)
    measured_.push_back({size_of(p.rows, p.cols, p.work), p.work, p.seconds,
                         std::log(p.seconds / lawful_seconds(p.rows, p.cols, p.work))});
}

ProductTimes::Size ProductTimes::size_of(double rows, double cols, double flops) const {
  const double r = std::max(rows, 1e-9), c = std::max(cols, 1e-9), k = std::max(depth_of(r, c, flops), 1e-9);
  Size size{std::log(r), std::log(c), std::log(k)};
  if (matrices_) size[3] = alignment(rows), size[4] = alignment(cols), size[5] = alignment(std::round(k));
  return size;
}

double ProductTimes::lawful_seconds(double rows, double cols, double flops) const {
  return std::max(dot(law_, parts_of(rows, cols, flops, panel_)), 1e-12);
}

double ProductTimes::seconds(double rows, double cols, double flops) const {
  const Size here = size_of(rows, cols, flops);
  double weights = 0, sum = 0;
  for (const Measured& m : measured_) {
    double d2 = 0;
    for (size_t i = 0; i < here.size(); i++) d2 += (here[i] - m.size[i]) * (here[i] - m.size[i]);
    if (d2 < 1e-12) return m.seconds * flops / std::max(m.flops, 1.0);
    const double w = 1 / (d2 * d2 * d2);
    weights += w, sum += w * m.left;
  }
  return std::max(lawful_seconds(rows, cols, flops) * std::exp(sum / weights), flops / fastest_);
}

}  // namespace trireme
