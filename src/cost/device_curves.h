// How fast single operations run on a device that is not at hand: a few named curves, each calibrated from
// published measurements and held against them by `trireme score data/published_microbench.json`
// (docs/score.md: constants, sources, residuals). step_time.h prices every step with these functions alone.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace trireme {

class StatedLinks;  // cost/stated_links.h

// What a vendor states of a device, dense; and of its way to the others.
struct DeviceFigures {
  double bf16 = 0, fp8 = 0, fp4 = 0;  // FLOP/s; 0 = has no such type
  double memory = 0;                  // bytes
  double bandwidth = 0;               // bytes/s
  double bus = 0;                     // bytes/s of a long all-reduce among near devices (bus bandwidth)
  double near = 8;                    // devices that reach each other so
  double nic = 0;                     // bytes/s of a device to those farther away
  double latency = 0;                 // s of a message to those farther away; 0 = a usual network's
  double attention = 0;               // FLOP/s of the fastest fused attention kernel (AttentionCurve)
  double attention2 = 0;              // the same of FlashAttention 2; 0 = no software runs it
  double k0 = 300;            // products of this depth reach half their rate: the ends of a tile take as long
  double units = 0;           // that compute tiles of products at once (multiprocessors); 0 = not known
  double m0 = 200, n0 = 200;  // where units are not known: products of these sizes reach half their rate
  // Latencies, rounds and efficiencies that the cluster file states; null = none. A collective of trireme's
  // own runs takes no less (kTrireme).
  std::shared_ptr<const StatedLinks> links;
};

// ---- memory ----

// Bytes that kernels move, by what they do meanwhile: each reaches a share of the bandwidth.
enum class Traffic { products, elementwise, update, count };
struct TrafficCurve {
  std::string_view name;
  double reached;
};
inline constexpr std::array<TrafficCurve, size_t(Traffic::count)> kTrafficCurves = {
    {{"products", 0.85}, {"elementwise", 0.8}, {"update", 0.7}}};
inline double traffic_seconds(const DeviceFigures& d, Traffic t, double bytes) {
  return bytes / (kTrafficCurves[size_t(t)].reached * d.bandwidth);
}

// ---- products ----

// What products of a type of number reach: FLOP/s without a short side, and bytes of an operand's element.
struct ProductRate {
  double flops = 0, bytes = 2;
};
// A part of a product that one unit computes at a time. cuBLAS has these sizes among others; large ones
// read less a multiplication (NVIDIA's Matrix Multiplication Background User's Guide).
struct ProductTile {
  double rows = 0, columns = 0, rate = 1;  // rate: relative to the largest tile's
};
inline constexpr std::array<ProductTile, 4> kProductTiles = {
    {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.9}, {128, 64, 0.8}}};
inline double whole_parts(double of, double each) {
  const double whole = double(int64_t(of / each));  // faster than std::ceil
  return whole + (whole * each < of ? 1 : 0);
}
// How much of the units' time the tiles of `group` products [m, n] fill: the last wave of tiles leaves units
// idle, and tiles at the edges are not full.
inline double filled_waves(double units, double m, double n, double group) {
  double best = 0;
  for (const ProductTile& t : kProductTiles) {
    const double tiles = group * whole_parts(m, t.rows) * whole_parts(n, t.columns);
    const double room = whole_parts(tiles, units) * units * t.rows * t.columns;
    best = std::max(best, t.rate * group * m * n / room);
  }
  return best;
}
// How much of the rate the sides of a product [m, k] x [k, n] leave, `group` of them side by side: 0 to 1.
// Shorter numbers pass faster, so a depth that hides the ends has as many more of them.
inline double product_share(const DeviceFigures& d, double m, double n, double k, double bytes,
                            double group = 1) {
  constexpr double kHalf = 2;
  const double deep = k / (k + d.k0 * kHalf / bytes);
  if (d.units > 0) return deep * filled_waves(d.units, m, n, group);
  return deep * group * m / (group * m + d.m0) * n / (n + d.n0);
}
// One of them: the larger of arithmetic and traffic; what it puts out has 16 bits.
inline double product_seconds(const DeviceFigures& d, double m, double n, double k, ProductRate rate,
                              double group = 1) {
  constexpr double kHalf = 2;
  return std::max(2 * m * n * k / (rate.flops * product_share(d, m, n, k, rate.bytes, group)),
                  traffic_seconds(d, Traffic::products, rate.bytes * (m * k + k * n) + kHalf * m * n));
}

// ---- attention, fused ----

enum class AttentionKind { flash, flash1, flash2, unfused };

// A generation of kernels. Its rate is a device's at long sequences (DeviceFigures) x s / (s + half_keys): of
// forward and backward together under a causal mask, 3.5 times the forward pass's FLOPs, as FlashAttention's
// authors count.
struct AttentionCurve {
  std::string_view name;
  double half_keys;    // sequences of this length reach half the rate
  double short_heads;  // rate of heads under 96 relative to those of 128
};
// `fused`: any kind but unfused. The device's fastest (flash) is FlashAttention 2 where nothing is faster.
const AttentionCurve& attention_curve(const DeviceFigures&, AttentionKind fused);
double attention_peak(const DeviceFigures&, AttentionKind fused);  // FLOP/s at long sequences, heads of 128

struct AttentionSeconds {
  double forward = 0, backward = 0;
};
// `flops`: of the forward pass under the mask; `relative`: of the curve's rate.
AttentionSeconds attention_seconds(const DeviceFigures&, AttentionKind fused, double flops, double seq,
                                   double head_dim, double relative = 1);

}  // namespace trireme
