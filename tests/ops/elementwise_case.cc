// add (keys n, a, b, y = their types, inplace=1: y is a), cast (n, from, to; rows: of rows that
// lie apart), zero (n, dtype), column_sum (n,
// c, dtype, out, accumulate), square_sums (n, dtype), count_nonfinite (n, c, dtype; every seventh element is
// not finite).
#include <cmath>

#include "cases.h"
#include "mesh/shard.h"

namespace trireme::harness {
namespace {

class AddCase final : public CaseOf<AddArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n");
    inplace_ = p.flag("inplace");
    args = {};
    args.y = b.dense(inplace_ ? Role::inout : Role::out, "y", {n}, p.dtype("y"));
    DType a = p.dtype("a");
    args.a = inplace_ ? args.y : b.dense(Role::in, "a", {n}, a);
    args.b = b.dense(Role::in, "b", {n}, p.dtype("b"));
  }
  void reference(Operands& o) const override {
    for (size_t i = 0; i < o.in("b").size(); i++)
      o.want("y")[i] = o.in(inplace_ ? "y" : "a")[i] + o.in("b")[i];
  }

 private:
  bool inplace_ = false;
};

class CastCase final : public CaseOf<CastArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    args = {};
    if (p.has("rows")) {  // [rows, 3, n] whose rows lie apart: pad
      const Shape shape{p.size("rows"), 3, p.size("n")};
      args.src = b.matrix(Role::in, "src", shape, p.dtype("from"));
      args.dst = p.flag("dense") ? b.dense(Role::out, "dst", shape, p.dtype("to"))
                                 : b.matrix(Role::out, "dst", shape, p.dtype("to"));
      return;
    }
    args.src = b.dense(Role::in, "src", {p.size("n")}, p.dtype("from"));
    args.dst = b.dense(Role::out, "dst", {p.size("n")}, p.dtype("to"));
  }
  void reference(Operands& o) const override {
    o.want("dst") = o.in("src");
    if (args.dst.dtype == DType::bf16)
      for (double& v : o.want("dst")) v = double(float(bf16(float(v))));
    if (args.dst.dtype == DType::f16)
      for (double& v : o.want("dst")) v = double(float(f16(float(v))));
  }
};

class ZeroCase final : public CaseOf<ZeroArgs> {
 public:
  void build(Builder& b) override {
    args = {};
    args.y = b.dense(Role::out, "y", {b.problem.size("n")}, b.problem.dtype());
  }
  void reference(Operands& o) const override { o.want("y").assign(o.want("y").size(), 0.0); }
};

class ColumnSumCase final : public CaseOf<ColumnSumArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), c = p.size("c");
    args = {};
    args.accumulate = p.flag("accumulate");
    args.dy = b.matrix(Role::in, "dy", {n, c}, p.dtype(), b.gaussian("dy", 1, 0.25));
    args.db = b.dense(args.accumulate ? Role::inout : Role::out, "db", {c},
                      p.has("out") ? p.dtype("out") : p.dtype());
  }
  void reference(Operands& o) const override {
    int64_t n = args.dy.shape[0], c = args.dy.shape[1];
    o.want("db").assign(size_t(c), 0.0);
    if (args.accumulate) o.want("db") = o.in("db");
    for (int64_t i = 0; i < n * c; i++) o.want("db")[size_t(i % c)] += o.in("dy")[size_t(i)];
  }
};

class SquareSumsCase final : public CaseOf<SquareSumsArgs> {
 public:
  void build(Builder& b) override {
    int64_t n = b.problem.size("n");
    args = {};
    args.x = b.dense(Role::in, "x", {n}, b.problem.dtype());
    args.sums = b.dense(Role::out, "sums", {(n + kFlatBlock - 1) / kFlatBlock}, DType::f64);
  }
  void reference(Operands& o) const override {
    o.want("sums").assign(o.want("sums").size(), 0.0);
    for (size_t i = 0; i < o.in("x").size(); i++)
      o.want("sums")[i / size_t(kFlatBlock)] += o.in("x")[i] * o.in("x")[i];
  }
};

class CountNonfiniteCase final : public CaseOf<CountNonfiniteArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    args = {};
    auto finite = b.gaussian("x");
    args.x = b.matrix(Role::in, "x", {p.size("n"), p.size("c")}, p.dtype(), [=](int64_t i) {
      const double bad[] = {std::nan(""), HUGE_VAL, -HUGE_VAL};
      return i % 7 == 6 ? bad[i / 7 % 3] : finite(i);
    });
    args.count = b.dense(Role::inout, "count", {1}, DType::i64, [](int64_t) { return 40.0; });
  }
  void reference(Operands& o) const override {
    double& count = o.want("count")[0];
    count = o.in("count")[0];
    for (double v : o.in("x")) count += !std::isfinite(v);
  }
};

}  // namespace

std::unique_ptr<Case> make_add() {
  return std::make_unique<AddCase>();
}
std::unique_ptr<Case> make_cast() {
  return std::make_unique<CastCase>();
}
std::unique_ptr<Case> make_zero() {
  return std::make_unique<ZeroCase>();
}
std::unique_ptr<Case> make_column_sum() {
  return std::make_unique<ColumnSumCase>();
}
std::unique_ptr<Case> make_square_sums() {
  return std::make_unique<SquareSumsCase>();
}
std::unique_ptr<Case> make_count_nonfinite() {
  return std::make_unique<CountNonfiniteCase>();
}

}  // namespace trireme::harness
