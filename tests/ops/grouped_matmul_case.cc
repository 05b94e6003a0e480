// grouped_matmul and grouped_matmul_weight. Keys: those of routing.h (n tokens, e experts, k choices: n k
// rows), depth = K and c = columns of y (of dy), trans_w, accumulate, dtype, out = type of dw.
#include "cases.h"
#include "routing.h"

namespace trireme::harness {
namespace {

class GroupedMatmulCase final : public CaseOf<GroupedMatmulArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    r_ = routing_of(p), rows_ = r_.n * r_.k, k_ = p.size("depth"), n_ = p.size("c");
    args = {};
    args.trans_w = p.flag("trans_w");
    args.x = b.matrix(Role::in, "x", {rows_, k_}, p.dtype());
    args.w = b.dense(Role::in, "w", args.trans_w ? Shape{r_.e, n_, k_} : Shape{r_.e, k_, n_}, p.dtype());
    args.offsets = b.dense(Role::in, "offsets", {r_.e + 1}, DType::i32, numbers(r_.offsets));
    args.y = b.matrix(Role::out, "y", {rows_, n_}, p.dtype());
    if (p.is_for("grad")) b.dense(Role::in, "variable", {rows_, n_}, DType::f32);
  }
  void reference(Operands& o) const override {
    o.want("y").assign(size_t(rows_ * n_), 0);
    each([&](int64_t e, int64_t r, int64_t i, int64_t j) {
      o.want("y")[size_t(r * n_ + j)] += o.in("x")[size_t(r * k_ + i)] * o.in("w")[weight(e, i, j)];
    });
  }
  // x is the gradient dy of variable . w^T: then y is the variable's.
  std::vector<GradPair> gradients() const override { return {{"variable", "y"}}; }
  double objective(const Operands& o) const override {
    double loss = 0;
    each([&](int64_t e, int64_t r, int64_t i, int64_t j) {
      loss +=
          o.in("x")[size_t(r * k_ + i)] * o.in("variable")[size_t(r * n_ + j)] * o.in("w")[weight(e, i, j)];
    });
    return loss;
  }
  bool same_bits_for_any_threads(std::string_view) const override { return false; }  // as matmul

 private:
  template <class F>
  void each(const F& f) const {
    for (int64_t e = 0; e < r_.e; e++)
      for (int64_t r = r_.offsets[size_t(e)]; r < r_.offsets[size_t(e + 1)]; r++)
        for (int64_t i = 0; i < k_; i++)
          for (int64_t j = 0; j < n_; j++) f(e, r, i, j);
  }
  size_t weight(int64_t e, int64_t i, int64_t j) const {
    return size_t(args.trans_w ? (e * n_ + j) * k_ + i : (e * k_ + i) * n_ + j);
  }
  Routing r_;
  int64_t rows_ = 0, k_ = 0, n_ = 0;
};

class GroupedMatmulWeightCase final : public CaseOf<GroupedMatmulWeightArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    r_ = routing_of(p), rows_ = r_.n * r_.k, k_ = p.size("depth"), n_ = p.size("c");
    const DType out = p.has("out") ? p.dtype("out") : p.dtype();
    args = {};
    args.accumulate = p.flag("accumulate");
    args.dy = b.matrix(Role::in, "dy", {rows_, n_}, p.dtype());
    args.x = b.matrix(Role::in, "x", {rows_, k_}, p.dtype());
    args.offsets = b.dense(Role::in, "offsets", {r_.e + 1}, DType::i32, numbers(r_.offsets));
    args.dw = b.dense(args.accumulate ? Role::inout : Role::out, "dw", {r_.e, n_, k_}, out);
    if (p.is_for("grad")) b.dense(Role::in, "w", {r_.e, n_, k_}, DType::f32);
  }
  void reference(Operands& o) const override {
    std::vector<double>& dw = o.want("dw");
    dw.assign(size_t(r_.e * n_ * k_), 0);
    if (args.accumulate) dw = o.in("dw");
    each([&](size_t w, size_t dy, size_t x) { dw[w] += o.in("dy")[dy] * o.in("x")[x]; });
  }
  std::vector<GradPair> gradients() const override { return {{"w", "dw"}}; }
  double objective(const Operands& o) const override {
    double loss = 0;
    each([&](size_t w, size_t dy, size_t x) { loss += o.in("dy")[dy] * o.in("x")[x] * o.in("w")[w]; });
    return loss;
  }
  bool same_bits_for_any_threads(std::string_view) const override { return false; }

 private:
  template <class F>
  void each(const F& f) const {
    for (int64_t e = 0; e < r_.e; e++)
      for (int64_t r = r_.offsets[size_t(e)]; r < r_.offsets[size_t(e + 1)]; r++)
        for (int64_t j = 0; j < n_; j++)
          for (int64_t i = 0; i < k_; i++)
            f(size_t((e * n_ + j) * k_ + i), size_t(r * n_ + j), size_t(r * k_ + i));
  }
  Routing r_;
  int64_t rows_ = 0, k_ = 0, n_ = 0;
};

}  // namespace

std::unique_ptr<Case> make_grouped_matmul() {
  return std::make_unique<GroupedMatmulCase>();
}
std::unique_ptr<Case> make_grouped_matmul_weight() {
  return std::make_unique<GroupedMatmulWeightCase>();
}

}  // namespace trireme::harness
