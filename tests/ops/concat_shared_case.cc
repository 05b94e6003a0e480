// concat_shared and its backward pass. Keys: n rows, h heads, a columns of a head's own, b of what all share,
// dtype; gap lengthens heads of a and da (columns of a matrix that holds more), pad the rows of all matrices.
#include "cases.h"

namespace trireme::harness {
namespace {

using Values = std::vector<double>;

struct SharedSizes {
  int64_t n, h, a, b;
  explicit SharedSizes(const Problem& p) : n(p.size("n")), h(p.size("h")), a(p.size("a")), b(p.size("b")) {}
  Tensor own(Builder& builder, Role role, std::string name) const {
    const Problem& p = builder.problem;
    const int64_t head = a + p.size("gap", 0), row = h * head + p.size("pad", 0);
    return builder.strided(role, std::move(name), {n, h, a}, {row, head, 1}, p.dtype());
  }
  Tensor all(Builder& builder, Role role, std::string name) const {
    const int64_t row = h * (a + b) + builder.problem.size("pad", 0);
    return builder.strided(role, std::move(name), {n, h, a + b}, {row, a + b, 1}, builder.problem.dtype());
  }
};

class ConcatSharedCase final : public CaseOf<ConcatSharedArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<SharedSizes>(b.problem);
    args.a = z_->own(b, Role::in, "a");
    args.b = b.matrix(Role::in, "b", {z_->n, z_->b}, b.problem.dtype());
    args.y = z_->all(b, Role::out, "y");
  }
  void reference(Operands& o) const override {
    Values y;
    for (int64_t i = 0; i < z_->n * z_->h; i++) {
      auto own = o.in("a").begin() + i * z_->a, shared = o.in("b").begin() + i / z_->h * z_->b;
      y.insert(y.end(), own, own + z_->a);
      y.insert(y.end(), shared, shared + z_->b);
    }
    o.want("y") = std::move(y);
  }

 private:
  std::unique_ptr<SharedSizes> z_;
};

class ConcatSharedBackwardCase final : public CaseOf<ConcatSharedBackwardArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<SharedSizes>(b.problem);
    args.dy = z_->all(b, Role::in, "dy");
    args.da = z_->own(b, Role::out, "da");
    args.db = b.matrix(Role::out, "db", {z_->n, z_->b}, b.problem.dtype());
    if (!b.problem.is_for("grad")) return;
    b.dense(Role::in, "a", {z_->n, z_->h, z_->a}, DType::f32);
    b.dense(Role::in, "b", {z_->n, z_->b}, DType::f32);
  }
  void reference(Operands& o) const override {
    Values da, db(size_t(z_->n * z_->b));
    for (int64_t i = 0; i < z_->n * z_->h; i++) {
      auto row = o.in("dy").begin() + i * (z_->a + z_->b);
      da.insert(da.end(), row, row + z_->a);
      for (int64_t j = 0; j < z_->b; j++) db[size_t(i / z_->h * z_->b + j)] += row[z_->a + j];
    }
    o.want("da") = std::move(da), o.want("db") = std::move(db);
  }
  std::vector<GradPair> gradients() const override { return {{"a", "da"}, {"b", "db"}}; }
  double objective(const Operands& o) const override {
    double s = 0;
    for (int64_t i = 0; i < z_->n * z_->h; i++) {
      auto g = o.in("dy").begin() + i * (z_->a + z_->b);
      for (int64_t j = 0; j < z_->a; j++) s += g[j] * o.in("a")[size_t(i * z_->a + j)];
      for (int64_t j = 0; j < z_->b; j++) s += g[z_->a + j] * o.in("b")[size_t(i / z_->h * z_->b + j)];
    }
    return s;
  }

 private:
  std::unique_ptr<SharedSizes> z_;
};

}  // namespace

std::unique_ptr<Case> make_concat_shared() {
  return std::make_unique<ConcatSharedCase>();
}
std::unique_ptr<Case> make_concat_shared_backward() {
  return std::make_unique<ConcatSharedBackwardCase>();
}

}  // namespace trireme::harness
