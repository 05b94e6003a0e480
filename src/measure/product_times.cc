#include "measure/product_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "measure/robust_parts.h"

namespace trireme {
namespace {

constexpr size_t kParts = 5;
using Parts = PartsOf<kParts>;

double depth_of(double rows, double cols, double flops) {
  return flops / (2 * rows * cols);
}

// Arithmetic, output, left and right operand, launch.
Parts parts_of(double rows, double cols, double flops, double panel) {
  const double depth = depth_of(rows, cols, flops);
  return {rows * std::ceil(cols / panel) * panel * depth, rows * cols, rows * depth, cols * depth, 1};
}

RobustParts<kParts> fit(const SpeedTable& t, double panel, int rounds) {
  constexpr double kSoft = 0.02;
  std::vector<Parts> rows;
  for (const SpeedPoint& p : t.points) {
    Parts r = parts_of(p.rows, p.cols, p.work, panel);
    for (double& part : r) part /= p.seconds;
    rows.push_back(r);
  }
  return robust_parts(std::move(rows), kSoft, rounds);
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
    law_ = fit(t, panel_, kLast).x;
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
