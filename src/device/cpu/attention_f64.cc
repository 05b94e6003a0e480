// Attention's tile functions in plain double: units are single elements. The reference that the others are
// held to.
#include <cmath>

#include "device/cpu/attention.h"

namespace trireme::cpu::attention {
namespace {

const double* row(const Rows& r, int64_t i) {
  return reinterpret_cast<const double*>(r.data) + i * r.stride;
}
double at(const Rows& r, int64_t i, int64_t d) {
  return i < r.rows && d < r.dim ? row(r, i)[d] : 0.0;
}
const double* f64(const std::byte* p) {
  return reinterpret_cast<const double*>(p);
}
double* f64(std::byte* p) {
  return reinterpret_cast<double*>(p);
}

// Place of column j of a right operand of `columns` columns and `depth` units, and the width of its panel.
struct Column {
  int64_t at, width;
};
Column column(int64_t j, int64_t columns, int64_t depth) {
  int64_t first = j / kPanel * kPanel;
  return {first * depth + j - first, std::min(kPanel, columns - first)};
}

void pack_rows(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  for (int64_t i = 0; i < padded; i++)
    for (int64_t d = 0; d < depth; d++) f64(dst)[i * depth + d] = at(src, i, d);
}
void pack_columns(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  for (int64_t i = 0; i < padded; i++) {
    Column c = column(i, padded, depth);
    for (int64_t d = 0; d < depth; d++) f64(dst)[c.at + d * c.width] = at(src, i, d);
  }
}
void pack_summed(const Rows& src, int64_t padded, int64_t depth, std::byte* dst) {
  for (int64_t d = 0; d < depth; d++) {
    Column c = column(d, depth, padded);
    for (int64_t i = 0; i < padded; i++) f64(dst)[c.at + i * c.width] = at(src, i, d);
  }
}

void product(const Product<double>& p) {
  for (int64_t j = 0; j < p.n; j += kLane) {
    Column col = column(j, p.b_cols, p.b_depth);
    const double* b = f64(p.b) + col.at + p.b_first * col.width;
    for (int64_t i = 0; i < p.m; i++) {
      const double* a = f64(p.a) + i * p.a_row;
      double *c = p.c + i * p.ldc + j, sum[kLane] = {}, keep = p.keep ? p.keep[i] : 1.0;
      if (p.add)
        for (int64_t l = 0; l < kLane; l++) sum[l] = keep * c[l];
      for (int64_t k = 0; k < p.k; k++)
        for (int64_t l = 0; l < kLane; l++) sum[l] += a[k * p.a_step] * b[k * col.width + l];
      std::copy(sum, sum + kLane, c);
    }
  }
}

void softmax(const SoftmaxTile<double>& t) {
  for (int64_t r = 0; r < kStrip; r++) {
    const double* s = t.s + r * t.ld;
    double *p = f64(t.p) + r * t.ld, m = t.m[r], sum = 0;
    int64_t seen = t.mask.row(r);
    for (int64_t j = 0; j < seen; j++) m = std::max(m, t.scale * s[j]);
    for (int64_t j = 0; j < t.n; j++) sum += p[j] = j < seen ? std::exp(t.scale * s[j] - m) : 0.0;
    t.keep[r] = std::exp(t.m[r] - m);
    t.l[r] = t.keep[r] * t.l[r] + sum;
    t.m[r] = m;
  }
}

void gradient(const GradientTile<double>& t) {
  for (int64_t r = 0; r < kStrip; r++) {
    const double *s = t.s + r * t.ld, *dp = t.dp + r * t.ld;
    double *p = f64(t.p_pairs) + r * t.ld, *ds = f64(t.ds_pairs) + r * t.ld;
    int64_t seen = t.mask.row(r);
    for (int64_t j = 0; j < t.n; j++) {
      p[j] = j < seen ? std::exp(t.scale * s[j] - t.lse[r]) : 0.0;
      ds[j] = j < seen ? p[j] * (dp[j] - t.delta[r]) : 0.0;
    }
  }
}

void drop(const DropTile<double>& t) {
  for (int64_t r = 0; r < kStrip; r++)
    for (int64_t j = 0; j < t.n; j++) {
      bool kept = t.bits[r * t.words + j / 16] >> (j % 16) & 1;
      t.x[r * t.ld + j] = kept ? t.factor * t.x[r * t.ld + j] : 0.0;
    }
}

void store(const double* c, int64_t ldc, double factor, const double* factors, const Rows& dst) {
  for (int64_t r = 0; r < dst.rows; r++) {
    double f = factors ? factor * factors[r] : factor, *out = const_cast<double*>(row(dst, r));
    for (int64_t d = 0; d < dst.dim; d++) out[d] = f * c[r * ldc + d];
  }
}

void row_dots(const Rows& a, const Rows& b, double* out) {
  for (int64_t r = 0; r < a.rows; r++) {
    double sum = 0;
    for (int64_t d = 0; d < a.dim; d++) sum += row(a, r)[d] * row(b, r)[d];
    out[r] = sum;
  }
}

}  // namespace

const Tiles<double>& tiles_f64() {
  static const Tiles<double> tiles{8,       8,       1,        pack_rows, pack_columns, pack_summed,
                                   product, softmax, gradient, store,     row_dots,     drop};
  return tiles;
}

}  // namespace trireme::cpu::attention
