// embedding: y (+)= table[ids]. embedding_backward: dtable (+)= scatter of dy by ids.
// Keys: n ids, v rows of the table, c columns, accumulate, dtype, out = type of dtable; whole = rows of a
// table that this one is a part of, from row `first` on (v when absent). Low ids come more often, as frequent
// tokens do; common: the share of one more id.
#include <algorithm>

#include "base/rng.h"
#include "cases.h"

namespace trireme::harness {
namespace {

Tensor skewed_ids(Builder& b, int64_t n, int64_t v) {
  uint64_t key = rng_key(uint64_t(b.problem.size("seed", 1)), 0, "ids");
  const double common = b.problem.number("common", 0);
  return b.dense(Role::in, "ids", {n}, DType::i32, [=](int64_t i) {
    double u = uniform(key, uint64_t(i));
    if (u < common) return double(v / 3);
    return double(int64_t(double(v) * u * u));
  });
}

class EmbeddingCase final : public CaseOf<EmbeddingArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), v = p.size("v"), c = p.size("c");
    args = {};
    args.accumulate = p.flag("accumulate");
    args.vocab = p.size("whole", 0), args.first = p.size("first", 0);
    args.ids = skewed_ids(b, n, args.vocab ? args.vocab : v);
    args.table = b.matrix(Role::in, "table", {v, c}, p.dtype());
    args.y = b.matrix(args.accumulate ? Role::inout : Role::out, "y", {n, c}, p.dtype());
  }
  void reference(Operands& o) const override {
    int64_t n = args.y.shape[0], c = args.y.shape[1];
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < c; j++) {
        double before = args.accumulate ? o.in("y")[size_t(i * c + j)] : 0;
        const int64_t row = int64_t(o.in("ids")[size_t(i)]) - args.first;
        const bool here = row >= 0 && row < args.table.shape[0];
        o.want("y")[size_t(i * c + j)] = before + (here ? o.in("table")[size_t(row * c + j)] : 0);
      }
  }
};

class EmbeddingBackwardCase final : public CaseOf<EmbeddingBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), v = p.size("v"), c = p.size("c");
    args = {};
    args.accumulate = p.flag("accumulate");
    args.vocab = p.size("whole", 0), args.first = p.size("first", 0);
    args.ids = skewed_ids(b, n, args.vocab ? args.vocab : v);
    args.dy = b.matrix(Role::in, "dy", {n, c}, p.dtype());
    args.dtable = b.matrix(args.accumulate ? Role::inout : Role::out, "dtable", {v, c},
                           p.has("out") ? p.dtype("out") : p.dtype());
    if (p.is_for("grad")) b.dense(Role::in, "table", {v, c}, DType::f32);  // of the forward pass
  }
  void reference(Operands& o) const override {
    int64_t n = args.dy.shape[0], c = args.dy.shape[1];
    std::vector<double>& d = o.want("dtable");
    d.assign(d.size(), 0.0);
    if (args.accumulate) d = o.in("dtable");
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < c; j++)
        if (const int64_t row = row_of(o, i); row >= 0)
          d[size_t(row * c + j)] += o.in("dy")[size_t(i * c + j)];
  }
  std::vector<GradPair> gradients() const override { return {{"table", "dtable"}}; }
  double objective(const Operands& o) const override {
    int64_t n = args.dy.shape[0], c = args.dy.shape[1];
    double s = 0;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < c; j++)
        if (const int64_t row = row_of(o, i); row >= 0)
          s += o.in("dy")[size_t(i * c + j)] * o.in("table")[size_t(row * c + j)];
    return s;
  }

 private:
  int64_t row_of(const Operands& o, int64_t i) const {  // -1: in another part
    const int64_t row = int64_t(o.in("ids")[size_t(i)]) - args.first;
    return row < args.dtable.shape[0] ? std::max<int64_t>(row, -1) : -1;
  }
};

}  // namespace

std::unique_ptr<Case> make_embedding() {
  return std::make_unique<EmbeddingCase>();
}
std::unique_ptr<Case> make_embedding_backward() {
  return std::make_unique<EmbeddingBackwardCase>();
}

}  // namespace trireme::harness
