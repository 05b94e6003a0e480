// Closed forms of published work (shared/reference/FORMULAS.md has their sources), written for tests alone:
// no code of src decides them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace oracle {

// A Llama and its division, by the letters of the papers.
struct Sizes {
  double L = 8;  // blocks
  double h = 1024, a = 16, k = 4, f = 2816, V = 8192;
  double s = 256, b = 1;                     // tokens of a sequence, sequences of a microbatch
  double t = 1, p = 1, c = 1, e = 1, D = 1;  // ranks of tp, pp, cp, ep and dp
  double m = 1;                              // microbatches of a rank's step

  double kv() const { return h * k / a; }
  // Parameters of a block that tp divides, and its two norms.
  double matrices() const { return 2 * h * h + 2 * h * kv() + 3 * h * f; }
  double block() const { return matrices() / t + 2 * h; }
  double table() const { return V * h / t; }  // embedding or head
  // Parameters of a rank: its blocks, then what the first and the last stage have besides.
  double stage(bool first, bool last) const {
    return L / p * block() + (first ? table() : 0) + (last ? table() + h : 0);
  }
};

// Rajbhandari et al. 2020 (1910.02054): bytes of 16-bit weights, of gradients of `g` bytes, and of Adam's f32
// copy and moments, K = 12.
struct State {
  double weights, grads, optimizer;
};
inline State zero(double P, double g, int stage, double D) {
  return {2 * P / (stage == 3 ? D : 1), g * P / (stage >= 2 ? D : 1), 12 * P / (stage >= 1 ? D : 1)};
}

// Korthikanti et al. 2022 (2205.05198), section 4.1, counted for a gated MLP, grouped heads and attention
// that keeps one f32 number per row and head: bytes that a block keeps of one microbatch. Tensors of [s, b,
// h]: the input, both norms' outputs, attention's output, and the residual between; then q, k and v; gate, up
// and their product. Each norm keeps an f32 number per row. SP: all of it is divided by t.
inline double kept(const Sizes& z) {
  const double rows = z.s * z.b / z.c;
  const double tensors = 5 * z.h + z.h + 2 * z.kv() + 3 * z.f;
  return (2 * rows * tensors + 4 * rows * (z.a + 2)) / z.t;
}
// Full recompute: the input alone.
inline double kept_full(const Sizes& z) {
  return 2 * z.s * z.b / z.c * z.h / z.t;
}

// Microbatches in flight on rank r, in units of all of a rank's blocks.
inline double in_flight_1f1b(double p, double m, double r) {
  return std::min(m, p - r);
}
// Narayanan et al. 2021 (2104.04473): the first rank's, v chunks a rank.
inline double in_flight_interleaved(double p, double v) {
  return p * (1 + (p - 1) / (p * v));
}

// ---- the wire: bytes that one rank sends ----

// A ring's all_gather or reduce_scatter of N bytes among n ranks. An all_reduce is both.
inline double ring(double n, double N) {
  return (n - 1) / n * N;
}
// Rajbhandari et al. 2020, section 7: 16-bit weights and gradients of P parameters, m microbatches. ZeRO 2
// reduces and ZeRO 3 also gathers for each pass.
struct Replicas {
  double gathers, reduces;
};
inline Replicas replicas(double P, int stage, double D, double m) {
  const double once = ring(D, 2 * P);
  return {stage == 0 ? once : stage == 3 ? 2 * m * once : once, stage >= 2 ? m * once : once};
}
// Korthikanti et al. 2022, section 4.2.2: a block's all_gathers and reduce_scatters of its rows. Forward has
// two of each, backward two of each and gathers the inputs of two products again. Full recompute repeats
// forward's.
struct TensorCalls {
  double gathers, scatters;
};
inline TensorCalls tensor_calls(bool full) {
  return {6.0 + (full ? 2 : 0), 4.0 + (full ? 2 : 0)};
}
// Liu et al. 2023 (2310.01889): keys and values travel c - 1 hops forward, again backward, and their f32
// gradients c hops.
inline double ring_attention(const Sizes& z) {
  const double hop = 2 * 2 * z.s / z.c * z.b * z.kv();
  return 2 * (z.c - 1) * hop + z.c * 2 * hop;
}
// Lepikhin et al. 2020 (2006.16668): each token's row to its experts and back, forward and backward.
inline double expert_rows(const Sizes& z, double top) {
  return 4 * (z.e - 1) / z.e * top * 2 * z.s * z.b * z.h;
}
// A message between stages.
inline double message(const Sizes& z) {
  return 2 * z.s * z.b / z.c * z.h / z.t;
}

}  // namespace oracle
