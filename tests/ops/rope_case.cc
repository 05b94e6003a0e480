// rope: in place on x [n, h, d]. Keys: n rows, h heads, d head size, positions = rows of the table, inverse
// (0 or 1), interleaved (0 or 1), dtype; pad lengthens the row stride, gap that of heads. The tables are not
// those of real angles: the op must not care.
#include <cmath>

#include "cases.h"

namespace trireme::harness {
namespace {

class RopeCase final : public CaseOf<RopeArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), h = p.size("h"), d = p.size("d"), rows = p.size("positions", 64);
    args = {};
    args.inverse = p.flag("inverse");
    args.interleaved = p.flag("interleaved");
    const int64_t head = d + p.size("gap", 0);
    args.x = b.strided(Role::inout, "x", {n, h, d}, {h * head + p.size("pad", 0), head, 1}, p.dtype());
    args.cos = b.matrix(Role::in, "cos", {rows, d / 2}, DType::f32);
    args.sin = b.matrix(Role::in, "sin", {rows, d / 2}, DType::f32);
    args.positions = b.dense(Role::in, "positions", {n}, DType::i32,
                             [=](int64_t i) { return double((5 * i + 2) % rows); });
    // What the forward pass rotated; the gradient with respect to it is the inverse rotation of x.
    if (p.is_for("grad")) b.dense(Role::in, "source", {n, h, d}, DType::f32);
  }
  void reference(Operands& o) const override { o.want("x") = rotated(o, o.in("x"), args.inverse); }

  std::vector<GradPair> gradients() const override { return {{"source", "x"}}; }
  double objective(const Operands& o) const override {
    std::vector<double> y = rotated(o, o.in("source"), !args.inverse);
    double s = 0;
    for (size_t i = 0; i < y.size(); i++) s += y[i] * o.in("x")[i];
    return s;
  }

 private:
  std::vector<double> rotated(const Operands& o, const std::vector<double>& x, bool inverse) const {
    int64_t n = args.x.shape[0], h = args.x.shape[1], half = args.x.shape[2] / 2;
    std::vector<double> y(x.size());
    for (int64_t i = 0; i < n * h; i++)
      for (int64_t j = 0; j < half; j++) {
        size_t at = size_t(int64_t(o.in("positions")[size_t(i / h)]) * half + j);
        size_t lower = size_t(i * 2 * half + (args.interleaved ? 2 * j : j));
        size_t upper = lower + size_t(args.interleaved ? 1 : half);
        double c = o.in("cos")[at], s = o.in("sin")[at] * (inverse ? -1 : 1);
        y[lower] = x[lower] * c - x[upper] * s;
        y[upper] = x[upper] * c + x[lower] * s;
      }
    return y;
  }
};

}  // namespace

std::unique_ptr<Case> make_rope() {
  return std::make_unique<RopeCase>();
}

}  // namespace trireme::harness
