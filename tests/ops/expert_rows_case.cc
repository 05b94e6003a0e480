// permute_rows, combine_rows and its backward. Keys: those of routing.h, c columns, dtype; combine_rows:
// weights (1), add, inplace=1: y is add; combine_rows_backward: inplace=1: dx is x.
#include "cases.h"
#include "routing.h"

namespace trireme::harness {
namespace {

class PermuteRowsCase final : public CaseOf<PermuteRowsArgs> {
 public:
  void build(Builder& b) override {
    r_ = routing_of(b.problem), c_ = b.problem.size("c");
    args = {};
    args.x = b.matrix(Role::in, "x", {r_.n, c_}, b.problem.dtype());
    args.source = b.dense(Role::in, "source", {r_.n * r_.k}, DType::i32, numbers(r_.source));
    args.y = b.matrix(Role::out, "y", {r_.n * r_.k, c_}, b.problem.dtype());
  }
  void reference(Operands& o) const override {
    for (int64_t r = 0; r < r_.n * r_.k; r++)
      for (int64_t j = 0; j < c_; j++) {
        const int64_t from = r_.source[size_t(r)];
        o.want("y")[size_t(r * c_ + j)] = from < 0 ? 0 : o.in("x")[size_t(from / r_.k * c_ + j)];
      }
  }

 private:
  Routing r_;
  int64_t c_ = 0;
};

class CombineRowsCase final : public CaseOf<CombineRowsArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    r_ = routing_of(p), c_ = p.size("c"), inplace_ = p.flag("inplace");
    args = {};
    args.x = b.matrix(Role::in, "x", {r_.n * r_.k, c_}, p.dtype());
    args.place = b.dense(Role::in, "place", {r_.n, r_.k}, DType::i32, numbers(r_.place));
    if (p.size("weights", 1) != 0) args.weights = b.dense(Role::in, "weights", {r_.n, r_.k}, DType::f32);
    args.y = b.matrix(inplace_ ? Role::inout : Role::out, "y", {r_.n, c_}, p.dtype());
    if (p.flag("add")) args.add = inplace_ ? args.y : b.matrix(Role::in, "add", {r_.n, c_}, p.dtype());
  }
  void reference(Operands& o) const override {
    for (int64_t n = 0; n < r_.n; n++)
      for (int64_t c = 0; c < c_; c++) {
        double s = args.add ? o.in(inplace_ ? "y" : "add")[size_t(n * c_ + c)] : 0;
        for (int64_t i = n * r_.k; i < (n + 1) * r_.k; i++)
          if (r_.place[size_t(i)] >= 0)
            s += (args.weights ? o.in("weights")[size_t(i)] : 1) *
                 o.in("x")[size_t(r_.place[size_t(i)] * c_ + c)];
        o.want("y")[size_t(n * c_ + c)] = s;
      }
  }

 private:
  Routing r_;
  int64_t c_ = 0;
  bool inplace_ = false;
};

class CombineRowsBackwardCase final : public CaseOf<CombineRowsBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    r_ = routing_of(p), c_ = p.size("c"), inplace_ = p.flag("inplace");
    args = {};
    args.dy = b.matrix(Role::in, "dy", {r_.n, c_}, p.dtype());
    args.dx = b.matrix(inplace_ ? Role::inout : Role::out, "dx", {r_.n * r_.k, c_}, p.dtype());
    args.x = inplace_ ? args.dx : b.matrix(Role::in, "x", {r_.n * r_.k, c_}, p.dtype());
    args.place = b.dense(Role::in, "place", {r_.n, r_.k}, DType::i32, numbers(r_.place));
    args.source = b.dense(Role::in, "source", {r_.n * r_.k}, DType::i32, numbers(r_.source));
    args.weights = b.dense(Role::in, "weights", {r_.n, r_.k}, DType::f32);
    args.dweights = b.dense(Role::out, "dweights", {r_.n, r_.k}, DType::f32);
  }
  void reference(Operands& o) const override {
    o.want("dx").assign(size_t(r_.n * r_.k * c_), 0);
    const std::vector<double>& x = o.in(inplace_ ? "dx" : "x");
    for (int64_t i = 0; i < r_.n * r_.k; i++) {
      const int64_t r = r_.place[size_t(i)];
      double dot = 0;
      for (int64_t c = 0; c < c_ && r >= 0; c++) {
        const double dy = o.in("dy")[size_t(i / r_.k * c_ + c)];
        o.want("dx")[size_t(r * c_ + c)] = o.in("weights")[size_t(i)] * dy;
        dot += dy * x[size_t(r * c_ + c)];
      }
      o.want("dweights")[size_t(i)] = dot;
    }
  }
  std::vector<GradPair> gradients() const override { return {{"x", "dx"}, {"weights", "dweights"}}; }
  double objective(const Operands& o) const override {
    double loss = 0;
    for (int64_t i = 0; i < r_.n * r_.k; i++)
      for (int64_t c = 0; c < c_ && r_.place[size_t(i)] >= 0; c++)
        loss += o.in("dy")[size_t(i / r_.k * c_ + c)] * o.in("weights")[size_t(i)] *
                o.in("x")[size_t(r_.place[size_t(i)] * c_ + c)];
    return loss;
  }

 private:
  Routing r_;
  int64_t c_ = 0;
  bool inplace_ = false;
};

}  // namespace

std::unique_ptr<Case> make_permute_rows() {
  return std::make_unique<PermuteRowsCase>();
}
std::unique_ptr<Case> make_combine_rows() {
  return std::make_unique<CombineRowsCase>();
}
std::unique_ptr<Case> make_combine_rows_backward() {
  return std::make_unique<CombineRowsBackwardCase>();
}

}  // namespace trireme::harness
