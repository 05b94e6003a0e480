// Keys of the ops of Muon. References take the numbers as the ops do: f32.
// - muon_momentum: n, grad and update = their types, beta, grad_scale, nesterov
// - muon_apply: n, update, weight=1: with a copy of type to (default bf16), lr, keep
// - scaled_sum: n, dtype, alpha, beta, one=1: no b, inplace=1: y is a, inplace=2: y is b
// - orthogonalise: count (default 1) matrices of rows x cols, then one of rows2 x cols2
#include <algorithm>
#include <cmath>

#include "cases.h"

namespace trireme::harness {
namespace {

class MomentumCase final : public CaseOf<MuonMomentumArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n")};
    args = {};
    args.beta = float(p.number("beta", 0.95)), args.grad_scale = float(p.number("grad_scale", 1));
    args.nesterov = p.size("nesterov", 1) != 0;
    args.momentum = b.dense(Role::inout, "momentum", shape, DType::f32, b.gaussian("momentum", 0.3));
    args.grad = b.dense(Role::in, "grad", shape, p.dtype("grad"));
    args.update = b.dense(Role::out, "update", shape, p.dtype("update"));
  }
  void reference(Operands& o) const override {
    const double beta = double(args.beta);
    for (size_t i = 0; i < o.in("grad").size(); i++) {
      double g = o.in("grad")[i] * double(args.grad_scale);
      double m = beta * o.in("momentum")[i] + (1 - beta) * g;
      o.want("momentum")[i] = m;
      o.want("update")[i] = args.nesterov ? (1 - beta) * g + beta * m : m;
    }
  }
};

class ApplyCase final : public CaseOf<MuonApplyArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n")};
    args = {};
    args.lr = float(p.number("lr", 0.02)), args.keep = float(p.number("keep", 0.999));
    args.master = b.dense(Role::inout, "master", shape, DType::f32);
    args.update = b.dense(Role::in, "update", shape, p.dtype("update"));
    if (p.flag("weight"))
      args.weight = b.dense(Role::out, "weight", shape, p.has("to") ? p.dtype("to") : DType::bf16);
  }
  void reference(Operands& o) const override {
    for (size_t i = 0; i < o.in("master").size(); i++) {
      double w = double(args.keep) * o.in("master")[i] - double(args.lr) * o.in("update")[i];
      o.want("master")[i] = w;
      if (args.weight) o.want("weight")[i] = w;
    }
  }
};

class ScaledSumCase final : public CaseOf<ScaledSumArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n")};
    args = {};
    inplace_ = p.size("inplace", 0), one_ = p.flag("one");
    args.alpha = float(p.number("alpha", -4.775)), args.beta = float(p.number("beta", 2.0315));
    args.y = b.dense(inplace_ ? Role::inout : Role::out, "y", shape, p.dtype());
    args.a = inplace_ == 1 ? args.y : b.dense(Role::in, "a", shape, p.dtype());
    if (!one_) args.b = inplace_ == 2 ? args.y : b.dense(Role::in, "b", shape, p.dtype());
  }
  void reference(Operands& o) const override {
    for (size_t i = 0; i < o.want("y").size(); i++) {
      double y = double(args.alpha) * o.in(inplace_ == 1 ? "y" : "a")[i];
      if (!one_) y += double(args.beta) * o.in(inplace_ == 2 ? "y" : "b")[i];
      o.want("y")[i] = y;
    }
  }

 private:
  int64_t inplace_ = 0;
  bool one_ = false;
};

// The definition (optim/newton_schulz.h), each product in full.
class OrthogonaliseCase final : public CaseOf<OrthogonaliseArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    args = {};
    int64_t n = 0;
    const auto add = [&](int64_t rows, int64_t cols) {
      args.sides[size_t(args.count++)] = {rows, cols};
      n += rows * cols;
    };
    for (int64_t i = 0; i < p.size("count", 1); i++) add(p.size("rows"), p.size("cols"));
    if (p.has("rows2")) add(p.size("rows2"), p.size("cols2"));
    args.x = b.dense(Role::inout, "x", {n}, DType::f32);
  }
  void reference(Operands& o) const override {
    size_t at = 0;
    for (int i = 0; i < args.count; i++) {
      const OrthogonaliseArgs::Sides& s = args.sides[size_t(i)];
      const auto n = size_t(s.numel());
      std::vector<double> x(o.in("x").begin() + std::ptrdiff_t(at),
                            o.in("x").begin() + std::ptrdiff_t(at + n));
      x = factor(std::move(x), size_t(s.rows), size_t(s.cols));
      std::copy(x.begin(), x.end(), o.want("x").begin() + std::ptrdiff_t(at));
      at += n;
    }
  }

 private:
  // a [m, k] . b [k, n]
  static std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, size_t m,
                                     size_t k, size_t n) {
    std::vector<double> c(m * n);
    for (size_t i = 0; i < m; i++)
      for (size_t l = 0; l < k; l++)
        for (size_t j = 0; j < n; j++) c[i * n + j] += a[i * k + l] * b[l * n + j];
    return c;
  }
  static std::vector<double> transposed(const std::vector<double>& a, size_t rows, size_t cols) {
    std::vector<double> t(a.size());
    for (size_t i = 0; i < rows; i++)
      for (size_t j = 0; j < cols; j++) t[j * rows + i] = a[i * cols + j];
    return t;
  }
  static std::vector<double> factor(std::vector<double> x, size_t rows, size_t cols) {
    if (rows > cols) return transposed(factor(transposed(x, rows, cols), cols, rows), cols, rows);
    double norm = 0;
    for (double v : x) norm += v * v;
    norm = std::max(1e-7, std::sqrt(norm));
    for (double& v : x) v /= norm;
    for (int step = 0; step < 5; step++) {
      const std::vector<double> a = product(x, transposed(x, rows, cols), rows, cols, rows);
      std::vector<double> b = product(a, a, rows, rows, rows);
      for (size_t i = 0; i < b.size(); i++) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
      std::vector<double> next = product(b, x, rows, rows, cols);
      for (size_t i = 0; i < x.size(); i++) next[i] += 3.4445 * x[i];
      x = std::move(next);
    }
    return x;
  }
};

}  // namespace

std::unique_ptr<Case> make_muon_momentum() {
  return std::make_unique<MomentumCase>();
}
std::unique_ptr<Case> make_muon_apply() {
  return std::make_unique<ApplyCase>();
}
std::unique_ptr<Case> make_orthogonalise() {
  return std::make_unique<OrthogonaliseCase>();
}
std::unique_ptr<Case> make_scaled_sum() {
  return std::make_unique<ScaledSumCase>();
}

}  // namespace trireme::harness
