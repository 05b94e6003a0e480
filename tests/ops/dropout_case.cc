// dropout. Keys: n elements, rate, dtype, residual=1, first (global index of element 0), inplace=1: y is x.
// The reference asks the scalar mask for each element.
#include "cases.h"

namespace trireme::harness {
namespace {

class DropoutCase final : public CaseOf<DropoutArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n");
    inplace_ = p.flag("inplace");
    args = {};
    args.x = b.dense(inplace_ ? Role::inout : Role::in, "x", {n}, p.dtype());
    if (p.flag("residual")) args.residual = b.dense(Role::in, "residual", {n}, p.dtype());
    args.y = inplace_ ? args.x : b.dense(Role::out, "y", {n}, p.dtype());
    args.mask = {.rate = p.number("rate", 0.1),
                 .key = rng_key(uint64_t(p.size("seed", 1)), 7, "mask"),
                 .first = p.size("first", 0)};
  }
  void reference(Operands& o) const override {
    std::vector<double>& y = o.want(inplace_ ? "x" : "y");
    for (size_t i = 0; i < y.size(); i++) {
      y[i] = args.mask.keeps(int64_t(i)) ? o.in("x")[i] * args.mask.scale() : 0;
      if (args.residual) y[i] += o.in("residual")[i];
    }
  }

 private:
  bool inplace_ = false;
};

}  // namespace

std::unique_ptr<Case> make_dropout() {
  return std::make_unique<DropoutCase>();
}

}  // namespace trireme::harness
