// layernorm and rmsnorm, forward and backward. Keys: n rows, c columns, dtype; backward also add (the
// residual branch's gradient), inplace=1: add is dx itself, over=1: dx is dy itself. rmsnorm also heads: rows
// [n, heads, c] as columns of a matrix of 5 columns more. x has mean 0.5 and deviation 2, so that a forgotten
// mean shows.
#include <cmath>

#include "cases.h"

namespace trireme::harness {
namespace {

template <class Args>
constexpr bool kCentered = requires(const Args& a) {
  a.mean;
};

struct Moments {
  double mean = 0, rstd = 0;
};
Moments moments(const double* x, int64_t c, double eps, bool centered) {
  Moments m;
  double square = 0;
  if (centered)
    for (int64_t j = 0; j < c; j++) m.mean += x[j] / double(c);
  for (int64_t j = 0; j < c; j++) square += (x[j] - m.mean) * (x[j] - m.mean) / double(c);
  m.rstd = 1 / std::sqrt(square + eps);
  return m;
}

Builder::Fill x_fill(const Builder& b) {
  return b.gaussian("x", 2, 0.5);
}

// [n, c], or [n, heads, c].
Tensor rows(Builder& b, Role role, std::string name, DType type, Builder::Fill fill = {}) {
  int64_t n = b.problem.size("n"), c = b.problem.size("c"), heads = b.problem.size("heads", 0);
  if (heads == 0) return b.matrix(role, std::move(name), {n, c}, type, std::move(fill));
  int64_t row = heads * c + 5 + b.problem.size("pad", 0);
  return b.strided(role, std::move(name), {n, heads, c}, {row, c, 1}, type, std::move(fill));
}
int64_t columns(const Tensor& x) {
  return x.shape[x.shape.rank - 1];
}
int64_t rows_in(const Tensor& x) {
  return x.numel() / columns(x);
}

template <class Args>
class NormCase final : public CaseOf<Args> {
 public:
  void build(Builder& b) override {
    Args& a = this->args;
    const Problem& p = b.problem;
    int64_t c = p.size("c");
    DType type = p.dtype();
    a = {};
    a.x = rows(b, Role::in, "x", type, x_fill(b));
    int64_t n = rows_in(a.x);
    a.weight = b.dense(Role::in, "weight", {c}, type, b.gaussian("weight", 0.5, 1));
    if constexpr (kCentered<Args>) a.bias = b.dense(Role::in, "bias", {c}, type);
    a.y = rows(b, Role::out, "y", type);
    if constexpr (kCentered<Args>) a.mean = b.dense(Role::out, "mean", {n}, DType::f32);
    a.rstd = b.dense(Role::out, "rstd", {n}, DType::f32);
  }
  void reference(Operands& o) const override {
    const Args& a = this->args;
    int64_t n = rows_in(a.x), c = columns(a.x);
    for (int64_t i = 0; i < n; i++) {
      const double* x = &o.in("x")[size_t(i * c)];
      Moments m = moments(x, c, double(a.eps), kCentered<Args>);
      if (kCentered<Args>) o.want("mean")[size_t(i)] = m.mean;
      o.want("rstd")[size_t(i)] = m.rstd;
      for (int64_t j = 0; j < c; j++)
        o.want("y")[size_t(i * c + j)] = (x[j] - m.mean) * m.rstd * o.in("weight")[size_t(j)] +
                                         (kCentered<Args> ? o.in("bias")[size_t(j)] : 0);
    }
  }
};

template <class Args>
class NormBackwardCase final : public CaseOf<Args> {
 public:
  void build(Builder& b) override {
    Args& a = this->args;
    const Problem& p = b.problem;
    int64_t c = p.size("c");
    DType type = p.dtype();
    inplace_ = p.flag("inplace"), over_ = p.flag("over");
    a = {};
    a.dy = rows(b, over_ ? Role::inout : Role::in, "dy", type);
    a.x = rows(b, Role::in, "x", type, x_fill(b));
    int64_t n = rows_in(a.x);
    a.weight = b.dense(Role::in, "weight", {c}, type, b.gaussian("weight", 0.5, 1));
    if constexpr (kCentered<Args>)
      a.mean = b.dense(Role::in, "mean", {n}, DType::f32, of_row(b, type, c, &Moments::mean));
    a.rstd = b.dense(Role::in, "rstd", {n}, DType::f32, of_row(b, type, c, &Moments::rstd));
    if (p.flag("add") && !inplace_) a.add = rows(b, Role::in, "add", type);
    a.dx = over_ ? a.dy : rows(b, inplace_ ? Role::inout : Role::out, "dx", type);
    if (inplace_) a.add = a.dx;
    a.dweight = b.dense(Role::out, "dweight", {c}, DType::f32);
    if constexpr (kCentered<Args>) a.dbias = b.dense(Role::out, "dbias", {c}, DType::f32);
    if (p.is_for("grad") && kCentered<Args>)
      b.dense(Role::in, "bias", {c}, DType::f32);  // of the forward pass
  }

  void reference(Operands& o) const override {
    const Args& a = this->args;
    int64_t n = rows_in(a.x), c = columns(a.x);
    o.want("dweight").assign(size_t(c), 0.0);
    if (kCentered<Args>) o.want("dbias").assign(size_t(c), 0.0);
    for (int64_t i = 0; i < n; i++) {
      const double *x = &o.in("x")[size_t(i * c)], *dy = &o.in("dy")[size_t(i * c)];
      const std::vector<double>& w = o.in("weight");
      Moments m = moments(x, c, kEps, kCentered<Args>);
      double mean_g = 0, mean_gh = 0;
      for (int64_t j = 0; j < c; j++) {
        double g = dy[j] * w[size_t(j)], h = (x[j] - m.mean) * m.rstd;
        if (kCentered<Args>) mean_g += g / double(c), o.want("dbias")[size_t(j)] += dy[j];
        mean_gh += g * h / double(c);
        o.want("dweight")[size_t(j)] += dy[j] * h;
      }
      for (int64_t j = 0; j < c; j++) {
        double h = (x[j] - m.mean) * m.rstd, add = 0;
        if (a.add) add = o.in(inplace_ ? "dx" : "add")[size_t(i * c + j)];
        o.want(over_ ? "dy" : "dx")[size_t(i * c + j)] =
            m.rstd * (dy[j] * w[size_t(j)] - mean_g - h * mean_gh) + add;
      }
    }
  }

  std::vector<GradPair> gradients() const override {
    if (kCentered<Args>) return {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}};
    return {{"x", "dx"}, {"weight", "dweight"}};
  }
  double objective(const Operands& o) const override {
    const Args& a = this->args;
    int64_t n = rows_in(a.x), c = columns(a.x);
    double s = 0;
    for (int64_t i = 0; i < n; i++) {
      const double *x = &o.in("x")[size_t(i * c)], *dy = &o.in("dy")[size_t(i * c)];
      Moments m = moments(x, c, kEps, kCentered<Args>);
      for (int64_t j = 0; j < c; j++) {
        double y = (x[j] - m.mean) * m.rstd * o.in("weight")[size_t(j)];
        if (kCentered<Args>) y += o.in("bias")[size_t(j)];
        s += y * dy[j];
        if (a.add) s += x[j] * o.in("add")[size_t(i * c + j)];
      }
    }
    return s;
  }

 private:
  static constexpr double kEps = 1e-5;

  // mean or rstd of a row of x as the operand holds it.
  static Builder::Fill of_row(const Builder& b, DType type, int64_t c, double Moments::*which) {
    if (!b.problem.is_for("test") && b.problem.is_for("perf"))
      return [](int64_t) { return 0.5; };  // nearly so, and drawn at once
    Builder::Fill fill = x_fill(b);
    return [=](int64_t i) {
      std::vector<double> x;
      for (int64_t j = 0; j < c; j++) {
        float v = float(fill(i * c + j));
        x.push_back(double(type == DType::bf16 ? float(bf16(v)) : type == DType::f16 ? float(f16(v)) : v));
      }
      return moments(x.data(), c, kEps, kCentered<Args>).*which;
    };
  }

  bool inplace_ = false, over_ = false;
};

}  // namespace

std::unique_ptr<Case> make_layernorm() {
  return std::make_unique<NormCase<LayerNormArgs>>();
}
std::unique_ptr<Case> make_layernorm_backward() {
  return std::make_unique<NormBackwardCase<LayerNormBackwardArgs>>();
}
std::unique_ptr<Case> make_rmsnorm() {
  return std::make_unique<NormCase<RmsNormArgs>>();
}
std::unique_ptr<Case> make_rmsnorm_backward() {
  return std::make_unique<NormBackwardCase<RmsNormBackwardArgs>>();
}

}  // namespace trireme::harness
