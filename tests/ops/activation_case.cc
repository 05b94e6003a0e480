// gelu and swiglu, forward and backward, and gelu in products. Keys: n rows, c columns, dtype; gelu: erf=1
// for the erf form; backward: inplace=1: the gradient overwrites the incoming one (gelu: dx is dy; swiglu:
// dgate is gate and dup is up); in products m n k, trans_b, bias. Inputs have deviation `scale` (3), so that
// both tails are met.
#include <cmath>
#include <numbers>

#include "cases.h"

namespace trireme::harness {
namespace {

double gelu_of(double x, bool tanh_approx) {
  if (!tanh_approx) return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2);
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x, bool tanh_approx) {
  if (!tanh_approx)
    return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2) +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  double k = std::sqrt(2 / std::numbers::pi), t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}
double silu(double x) {
  return x / (1 + std::exp(-x));
}
double silu_slope(double x) {
  double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

class GeluCase final : public CaseOf<GeluArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n"), p.size("c")};
    args = {};
    args.tanh_approx = !p.flag("erf");
    args.x = b.matrix(Role::in, "x", shape, p.dtype(), b.gaussian("x", p.number("scale", 3)));
    args.y = b.matrix(Role::out, "y", shape, p.dtype());
  }
  void reference(Operands& o) const override {
    for (size_t i = 0; i < o.in("x").size(); i++) o.want("y")[i] = gelu_of(o.in("x")[i], args.tanh_approx);
  }
};

class GeluBackwardCase final : public CaseOf<GeluBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n"), p.size("c")};
    inplace_ = p.flag("inplace");
    args = {};
    args.tanh_approx = !p.flag("erf");
    args.x = b.matrix(Role::in, "x", shape, p.dtype(), b.gaussian("x", p.number("scale", 3)));
    args.dx = b.matrix(inplace_ ? Role::inout : Role::out, "dx", shape, p.dtype());
    args.dy = inplace_ ? args.dx : b.matrix(Role::in, "dy", shape, p.dtype());
  }
  void reference(Operands& o) const override {
    const std::vector<double>& dy = o.in(inplace_ ? "dx" : "dy");
    for (size_t i = 0; i < dy.size(); i++)
      o.want("dx")[i] = dy[i] * gelu_slope(o.in("x")[i], args.tanh_approx);
  }
  std::vector<GradPair> gradients() const override { return {{"x", "dx"}}; }
  double objective(const Operands& o) const override {
    double s = 0;
    for (size_t i = 0; i < o.in("x").size(); i++)
      s += o.in("dy")[i] * gelu_of(o.in("x")[i], args.tanh_approx);
    return s;
  }

 private:
  bool inplace_ = false;
};

// a b^T + bias or a b, of a deviation that meets both of gelu's tails.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t n,
                            int64_t k, bool trans_b) {
  std::vector<double> c(size_t(m * n));
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++)
      for (int64_t l = 0; l < k; l++)
        c[size_t(i * n + j)] += a[size_t(i * k + l)] * b[size_t(trans_b ? j * k + l : l * n + j)];
  return c;
}

class MatmulGeluCase final : public CaseOf<MatmulGeluArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    m_ = p.size("m"), n_ = p.size("n"), k_ = p.size("k");
    args = {};
    args.trans_b = p.flag("trans_b");
    args.a = b.matrix(Role::in, "a", {m_, k_}, p.dtype());
    args.b = b.matrix(Role::in, "b", args.trans_b ? Shape{n_, k_} : Shape{k_, n_}, p.dtype(),
                      b.gaussian("b", p.number("scale", 2) / std::sqrt(double(k_))));
    args.c = b.matrix(Role::out, "c", {m_, n_}, p.dtype());
    args.y = b.matrix(Role::out, "y", {m_, n_}, p.dtype());
    if (p.flag("bias")) args.bias = b.dense(Role::in, "bias", {n_}, p.dtype());
  }
  void reference(Operands& o) const override {
    o.want("c") = product(o.in("a"), o.in("b"), m_, n_, k_, args.trans_b);
    for (size_t i = 0; i < o.want("c").size(); i++) {
      if (args.bias) o.want("c")[i] += o.in("bias")[i % size_t(n_)];
      o.want("y")[i] = gelu_of(o.want("c")[i], true);
    }
  }
  bool same_bits_for_any_threads(std::string_view) const override { return false; }  // as matmul

 private:
  int64_t m_ = 0, n_ = 0, k_ = 0;
};

class MatmulGeluBackwardCase final : public CaseOf<MatmulGeluBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    m_ = p.size("m"), n_ = p.size("n"), k_ = p.size("k");
    args = {};
    args.trans_b = p.flag("trans_b");
    args.a = b.matrix(Role::in, "a", {m_, k_}, p.dtype());
    args.b = b.matrix(Role::in, "b", args.trans_b ? Shape{n_, k_} : Shape{k_, n_}, p.dtype());
    args.x = b.matrix(Role::in, "x", {m_, n_}, p.dtype(), b.gaussian("x", p.number("scale", 3)));
    args.c = b.matrix(Role::out, "c", {m_, n_}, p.dtype());
  }
  void reference(Operands& o) const override {
    const auto dy = product(o.in("a"), o.in("b"), m_, n_, k_, args.trans_b);
    for (size_t i = 0; i < dy.size(); i++) o.want("c")[i] = dy[i] * gelu_slope(o.in("x")[i], true);
  }
  std::vector<GradPair> gradients() const override { return {{"x", "c"}}; }
  double objective(const Operands& o) const override {
    const auto dy = product(o.in("a"), o.in("b"), m_, n_, k_, args.trans_b);
    double s = 0;
    for (size_t i = 0; i < dy.size(); i++) s += dy[i] * gelu_of(o.in("x")[i], true);
    return s;
  }
  bool same_bits_for_any_threads(std::string_view) const override { return false; }

 private:
  int64_t m_ = 0, n_ = 0, k_ = 0;
};

class SwigluCase final : public CaseOf<SwigluArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n"), p.size("c")};
    args = {};
    args.gate = b.matrix(Role::in, "gate", shape, p.dtype(), b.gaussian("gate", p.number("scale", 3)));
    args.up = b.matrix(Role::in, "up", shape, p.dtype());
    args.y = b.matrix(Role::out, "y", shape, p.dtype());
  }
  void reference(Operands& o) const override {
    for (size_t i = 0; i < o.in("gate").size(); i++) o.want("y")[i] = silu(o.in("gate")[i]) * o.in("up")[i];
  }
};

class SwigluBackwardCase final : public CaseOf<SwigluBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n"), p.size("c")};
    inplace_ = p.flag("inplace");
    args = {};
    auto gate = b.gaussian("gate", p.number("scale", 3)), up = b.gaussian("up");
    args.dy = b.matrix(Role::in, "dy", shape, p.dtype());
    args.dgate = b.matrix(inplace_ ? Role::inout : Role::out, "dgate", shape, p.dtype(), gate);
    args.dup = b.matrix(inplace_ ? Role::inout : Role::out, "dup", shape, p.dtype(), up);
    args.gate = inplace_ ? args.dgate : b.matrix(Role::in, "gate", shape, p.dtype(), gate);
    args.up = inplace_ ? args.dup : b.matrix(Role::in, "up", shape, p.dtype(), up);
  }
  void reference(Operands& o) const override {
    const auto &gate = o.in(inplace_ ? "dgate" : "gate"), &up = o.in(inplace_ ? "dup" : "up"),
               &dy = o.in("dy");
    for (size_t i = 0; i < dy.size(); i++) {
      o.want("dgate")[i] = dy[i] * up[i] * silu_slope(gate[i]);
      o.want("dup")[i] = dy[i] * silu(gate[i]);
    }
  }
  std::vector<GradPair> gradients() const override { return {{"gate", "dgate"}, {"up", "dup"}}; }
  double objective(const Operands& o) const override {
    double s = 0;
    for (size_t i = 0; i < o.in("gate").size(); i++)
      s += o.in("dy")[i] * silu(o.in("gate")[i]) * o.in("up")[i];
    return s;
  }

 private:
  bool inplace_ = false;
};

}  // namespace

std::unique_ptr<Case> make_gelu() {
  return std::make_unique<GeluCase>();
}
std::unique_ptr<Case> make_gelu_backward() {
  return std::make_unique<GeluBackwardCase>();
}
std::unique_ptr<Case> make_matmul_gelu() {
  return std::make_unique<MatmulGeluCase>();
}
std::unique_ptr<Case> make_matmul_gelu_backward() {
  return std::make_unique<MatmulGeluBackwardCase>();
}
std::unique_ptr<Case> make_swiglu() {
  return std::make_unique<SwigluCase>();
}
std::unique_ptr<Case> make_swiglu_backward() {
  return std::make_unique<SwigluBackwardCase>();
}

}  // namespace trireme::harness
