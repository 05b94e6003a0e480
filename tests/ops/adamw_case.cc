// adamw: one step over a flat range. Keys: n, grad = type of the gradient, weight=1: with a copy of type to
// (bf16 when absent), step (bias corrections), lr, beta2, eps, weight_decay, grad_scale. The reference takes
// the hyperparameters as the op does: f32.
#include <cmath>

#include "cases.h"

namespace trireme::harness {
namespace {

class AdamWCase final : public CaseOf<AdamWArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Shape shape{p.size("n")};
    args = {};
    args.lr = float(p.number("lr", 1e-3)), args.beta1 = 0.9f, args.beta2 = float(p.number("beta2", 0.95));
    args.eps = float(p.number("eps", 1e-8)), args.weight_decay = float(p.number("weight_decay", 0.1));
    args.grad_scale = float(p.number("grad_scale", 1));
    args.bias1 = float(1 - std::pow(double(args.beta1), p.number("step", 3)));
    args.bias2 = float(1 - std::pow(double(args.beta2), p.number("step", 3)));
    auto square = b.gaussian("exp_avg_sq", 0.1);
    args.master = b.dense(Role::inout, "master", shape, DType::f32);
    args.exp_avg = b.dense(Role::inout, "exp_avg", shape, DType::f32, b.gaussian("exp_avg", 0.1));
    args.exp_avg_sq = b.dense(Role::inout, "exp_avg_sq", shape, DType::f32,
                              [=](int64_t i) { return square(i) * square(i); });
    args.grad = b.dense(Role::in, "grad", shape, p.dtype("grad"));
    if (p.flag("weight"))
      args.weight = b.dense(Role::out, "weight", shape, p.has("to") ? p.dtype("to") : DType::bf16);
  }

  void reference(Operands& o) const override {
    double lr = double(args.lr), b1 = double(args.beta1), b2 = double(args.beta2);
    for (size_t i = 0; i < o.in("master").size(); i++) {
      double g = o.in("grad")[i] * double(args.grad_scale), w = o.in("master")[i];
      double m = b1 * o.in("exp_avg")[i] + (1 - b1) * g, v = b2 * o.in("exp_avg_sq")[i] + (1 - b2) * g * g;
      w -= lr * double(args.weight_decay) * w;
      w -= lr * (m / double(args.bias1)) / (std::sqrt(v / double(args.bias2)) + double(args.eps));
      o.want("exp_avg")[i] = m, o.want("exp_avg_sq")[i] = v, o.want("master")[i] = w;
      if (args.weight) o.want("weight")[i] = w;
    }
  }
};

}  // namespace

std::unique_ptr<Case> make_adamw() {
  return std::make_unique<AdamWCase>();
}

}  // namespace trireme::harness
