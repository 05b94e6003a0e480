// cross_entropy: loss, and with backward=1 the gradient in place of the logits. Keys: n rows, v columns,
// vocab (v when absent: no padding), backward, grad_scale, scale = deviation of the logits, shift = their
// mean, dtype. One target in five is -1.
#include <cmath>

#include "base/rng.h"
#include "cases.h"

namespace trireme::harness {
namespace {

class CrossEntropyCase final : public CaseOf<CrossEntropyArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), v = p.size("v"), vocab = p.size("vocab", v);
    uint64_t key = rng_key(uint64_t(p.size("seed", 1)), 0, "targets");
    args = {};
    args.vocab = vocab;
    args.backward = p.flag("backward");
    args.grad_scale = float(p.number("grad_scale", 1));
    args.logits = b.matrix(args.backward ? Role::inout : Role::in, "logits", {n, v}, p.dtype(),
                           b.gaussian("logits", p.number("scale", 2), p.number("shift", 0)));
    args.targets = b.dense(Role::in, "targets", {n}, DType::i32, [=](int64_t i) {
      return i % 5 == 3 ? -1.0 : double(below(key, uint64_t(i), uint64_t(vocab)));
    });
    args.loss = b.dense(Role::out, "loss", {n}, DType::f32);
  }

  void reference(Operands& o) const override {
    int64_t n = args.logits.shape[0], v = args.logits.shape[1];
    for (int64_t i = 0; i < n; i++) {
      const double* x = &o.in("logits")[size_t(i * v)];
      int64_t target = int64_t(o.in("targets")[size_t(i)]);
      double lse = logsumexp(x);
      o.want("loss")[size_t(i)] = target < 0 ? 0 : lse - x[target];
      for (int64_t j = 0; args.backward && j < v; j++) {
        double g = j < args.vocab ? std::exp(x[j] - lse) - (j == target) : 0;
        o.want("logits")[size_t(i * v + j)] = target < 0 ? 0 : g * double(args.grad_scale);
      }
    }
  }

  std::vector<GradPair> gradients() const override { return {{"logits", "logits"}}; }
  double objective(const Operands& o) const override {
    int64_t n = args.logits.shape[0], v = args.logits.shape[1];
    double s = 0;
    for (int64_t i = 0; i < n; i++) {
      const double* x = &o.in("logits")[size_t(i * v)];
      int64_t target = int64_t(o.in("targets")[size_t(i)]);
      if (target >= 0) s += (logsumexp(x) - x[target]) * double(args.grad_scale);
    }
    return s;
  }

 private:
  double logsumexp(const double* x) const {
    double m = x[0], z = 0;
    for (int64_t j = 0; j < args.vocab; j++) m = std::max(m, x[j]);
    for (int64_t j = 0; j < args.vocab; j++) z += std::exp(x[j] - m);
    return m + std::log(z);
  }
};

}  // namespace

std::unique_ptr<Case> make_cross_entropy() {
  return std::make_unique<CrossEntropyCase>();
}

}  // namespace trireme::harness
