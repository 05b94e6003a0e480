// matmul: c (+)= op(a) op(b) + bias + residual. Keys: m n k, trans_a trans_b bias residual accumulate (0 or
// 1), dtype = type of a, b and bias, out = type of c (dtype's when absent), inplace=1: the residual is c
// itself; lda, ldc = elements between rows of a and of c, residual included (else their columns + pad).
#include "cases.h"

namespace trireme::harness {
namespace {

class MatmulCase final : public CaseOf<MatmulArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    m_ = p.size("m"), n_ = p.size("n"), k_ = p.size("k");
    DType type = p.dtype(), out = p.has("out") ? p.dtype("out") : type;
    bool residual = p.flag("residual");
    inplace_ = p.flag("inplace");
    args = {};
    args.trans_a = p.flag("trans_a"), args.trans_b = p.flag("trans_b"),
    args.accumulate = p.flag("accumulate");
    auto rows = [&](Role role, const char* name, const Shape& shape, DType t, const char* key) {
      return p.has(key) ? b.strided(role, name, shape, {p.size(key), 1}, t) : b.matrix(role, name, shape, t);
    };
    args.a = rows(Role::in, "a", args.trans_a ? Shape{k_, m_} : Shape{m_, k_}, type, "lda");
    args.b = b.matrix(Role::in, "b", args.trans_b ? Shape{n_, k_} : Shape{k_, n_}, type);
    args.c = rows(args.accumulate || inplace_ ? Role::inout : Role::out, "c", {m_, n_}, out, "ldc");
    if (p.flag("bias")) args.bias = b.dense(Role::in, "bias", {n_}, type);
    if (residual) args.residual = inplace_ ? args.c : rows(Role::in, "residual", {m_, n_}, out, "ldc");
    if (p.is_for("grad")) b.dense(Role::in, "variable", {m_, n_}, DType::f32);  // x of dx, w of dw
  }

  void reference(Operands& o) const override {
    const auto &a = o.in("a"), &b = o.in("b");
    auto& c = o.want("c");
    for (int64_t i = 0; i < m_; i++)
      for (int64_t j = 0; j < n_; j++) {
        double s = 0;
        for (int64_t k = 0; k < k_; k++)
          s += a[size_t(args.trans_a ? k * m_ + i : i * k_ + k)] *
               b[size_t(args.trans_b ? j * k_ + k : k * n_ + j)];
        if (args.bias) s += o.in("bias")[size_t(j)];
        if (args.residual) s += o.in(inplace_ ? "c" : "residual")[size_t(i * n_ + j)];
        if (args.accumulate) s += o.in("c")[size_t(i * n_ + j)];
        c[size_t(i * n_ + j)] = s;
      }
  }

  std::vector<GradPair> gradients() const override { return {{"variable", "c"}}; }
  // <dy, x w^T>: dy is operand a; the other operand of y is b.
  double objective(const Operands& o) const override {
    const auto &dy = o.in("a"), &other = o.in("b"), &variable = o.in("variable");
    int64_t tokens = args.trans_a ? k_ : m_, outs = args.trans_a ? m_ : k_, ins = n_;
    const auto &x = args.trans_a ? other : variable, &w = args.trans_a ? variable : other;
    double loss = 0;
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t u = 0; u < outs; u++) {
        double y = 0;
        for (int64_t i = 0; i < ins; i++) y += x[size_t(t * ins + i)] * w[size_t(u * ins + i)];
        loss += dy[size_t(t * outs + u)] * y;
      }
    return loss;
  }

  // Matrix libraries split long sums by thread count (DESIGN.md section 4 asks for equal threads).
  bool same_bits_for_any_threads(std::string_view) const override { return false; }

 private:
  int64_t m_ = 0, n_ = 0, k_ = 0;
  bool inplace_ = false;
};

}  // namespace

std::unique_ptr<Case> make_matmul() {
  return std::make_unique<MatmulCase>();
}

}  // namespace trireme::harness
