// softmax_stats: of a row's columns on one rank. split_cross_entropy: loss and, with backward=1, the gradient
// of a rank's columns from the stats of all. Keys: n rows; v columns of the rank, vocab of them real (v when
// absent), first = id of column 0, whole = ids of all ranks (first + vocab when absent), ranks (of the rest,
// their stats are drawn), rank, backward, grad_scale, scale = deviation of the logits, shift = their mean,
// dtype. One target in five is -1, one in three is another rank's where there are others.
#include <cmath>

#include "base/rng.h"
#include "cases.h"

namespace trireme::harness {
namespace {

struct Columns {
  int64_t n, v, vocab, first, whole;
  uint64_t key;

  explicit Columns(const Problem& p)
      : n(p.size("n")),
        v(p.size("v")),
        vocab(p.size("vocab", v)),
        first(p.size("first", 0)),
        whole(p.size("whole", first + vocab)),
        key(rng_key(uint64_t(p.size("seed", 1)), 0, "targets")) {}

  double target(int64_t i) const {
    if (i % 5 == 3) return -1;
    if (i % 3 == 1) return double(below(key, uint64_t(i), uint64_t(whole)));
    return double(first) + double(below(key, uint64_t(i), uint64_t(vocab)));
  }
  Tensor targets(Builder& b) const {
    return b.dense(Role::in, "targets", {n}, DType::i32, [*this](int64_t i) { return target(i); });
  }
  bool here(double target) const { return target >= double(first) && target < double(first + vocab); }
};

class SoftmaxStatsCase final : public CaseOf<SoftmaxStatsArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    const Columns c(p);
    args = {};
    args.vocab = c.vocab, args.first = c.first;
    args.logits = b.matrix(Role::in, "logits", {c.n, c.v}, p.dtype(),
                           b.gaussian("logits", p.number("scale", 2), p.number("shift", 0)));
    args.targets = c.targets(b);
    args.stats = b.dense(Role::out, "stats", {3 * c.n}, DType::f32);
  }
  void reference(Operands& o) const override {
    const int64_t n = args.logits.shape[0], v = args.logits.shape[1];
    std::vector<double>& stats = o.want("stats");
    for (int64_t i = 0; i < n; i++) {
      const double* x = &o.in("logits")[size_t(i * v)];
      double m = x[0], z = 0, t = o.in("targets")[size_t(i)] - double(args.first);
      for (int64_t j = 0; j < args.vocab; j++) m = std::max(m, x[j]);
      for (int64_t j = 0; j < args.vocab; j++) z += std::exp(x[j] - m);
      stats[size_t(i)] = m, stats[size_t(n + i)] = z;
      const bool ignored = o.in("targets")[size_t(i)] < 0;
      stats[size_t(2 * n + i)] = !ignored && t >= 0 && t < double(args.vocab) ? x[int64_t(t)] : 0;
    }
  }
};

class SplitCrossEntropyCase final : public CaseOf<SplitCrossEntropyArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    const Columns c(p);
    const int64_t ranks = p.size("ranks", 1), rank = rank_ = p.size("rank", 0);
    args = {};
    args.vocab = c.vocab, args.first = c.first;
    args.backward = p.flag("backward");
    args.grad_scale = float(p.number("grad_scale", 1));
    auto value = b.gaussian("logits", p.number("scale", 2), p.number("shift", 0));
    auto rounded = [value, type = p.dtype()](int64_t i) {
      const float x = float(value(i));
      return type == DType::bf16  ? double(float(bf16(x)))
             : type == DType::f16 ? double(float(f16(x)))
                                  : double(x);
    };
    args.logits = b.matrix(args.backward ? Role::inout : Role::in, "logits", {c.n, c.v}, p.dtype(), rounded);
    args.targets = c.targets(b);
    // The rank's own stats are those of its logits; another's, of other numbers.
    auto other = b.gaussian("others", 1, p.number("shift", 0) + 3);
    args.stats = b.dense(Role::in, "stats", {ranks, 3, c.n}, DType::f32, [=](int64_t at) {
      const int64_t r = at / (3 * c.n), what = at / c.n % 3, i = at % c.n;
      const double target = c.target(i);
      if (r != rank) {
        if (what == 0) return other(at);
        if (what == 1) return 2 + std::sin(double(at));
        // The first of the others has the target that is not here.
        return target >= 0 && !c.here(target) && r == (rank == 0 ? 1 : 0) ? other(at) - 2 : 0.0;
      }
      double m = rounded(i * c.v), z = 0;
      for (int64_t j = 0; j < c.vocab; j++) m = std::max(m, rounded(i * c.v + j));
      for (int64_t j = 0; j < c.vocab; j++) z += std::exp(rounded(i * c.v + j) - m);
      if (what < 2) return what == 0 ? m : z;
      return c.here(target) ? rounded(i * c.v + int64_t(target) - c.first) : 0.0;
    });
    args.loss = b.dense(Role::out, "loss", {c.n}, DType::f32);
  }

  void reference(Operands& o) const override {
    const int64_t n = args.logits.shape[0], v = args.logits.shape[1];
    for (int64_t i = 0; i < n; i++) {
      const double* x = &o.in("logits")[size_t(i * v)];
      const double target = o.in("targets")[size_t(i)];
      const double lse = logsumexp(o, i);
      double at_target = 0;
      for (int64_t r = 0; r < args.stats.shape[0]; r++)
        at_target += o.in("stats")[size_t((r * 3 + 2) * n + i)];
      o.want("loss")[size_t(i)] = target < 0 ? 0 : lse - at_target;
      for (int64_t j = 0; args.backward && j < v; j++) {
        const double g = std::exp(x[j] - lse) - (double(args.first + j) == target);
        o.want("logits")[size_t(i * v + j)] = target < 0 || j >= args.vocab ? 0 : g * double(args.grad_scale);
      }
    }
  }

  // As a function of one rank's logits; its stats move with them, the others' stay.
  std::vector<GradPair> gradients() const override { return {{"logits", "logits"}}; }
  double objective(const Operands& o) const override {
    const int64_t n = args.logits.shape[0], v = args.logits.shape[1], ranks = args.stats.shape[0];
    double s = 0;
    for (int64_t i = 0; i < n; i++) {
      const double target = o.in("targets")[size_t(i)];
      if (target < 0) continue;
      const double* x = &o.in("logits")[size_t(i * v)];
      const int64_t t = int64_t(target) - args.first;
      double z = 0, at_target = t >= 0 && t < args.vocab ? x[t] : 0;
      for (int64_t j = 0; j < args.vocab; j++) z += std::exp(x[j]);
      for (int64_t r = 0; r < ranks; r++) {
        if (r == rank_) continue;
        z += o.in("stats")[size_t((r * 3 + 1) * n + i)] * std::exp(o.in("stats")[size_t(r * 3 * n + i)]);
        at_target += o.in("stats")[size_t((r * 3 + 2) * n + i)];
      }
      s += (std::log(z) - at_target) * double(args.grad_scale);
    }
    return s;
  }

 private:
  double logsumexp(const Operands& o, int64_t i) const {
    const int64_t n = args.logits.shape[0], ranks = args.stats.shape[0];
    double m = -HUGE_VAL, z = 0;
    auto stat = [&](int64_t r, int64_t what) { return o.in("stats")[size_t((r * 3 + what) * n + i)]; };
    for (int64_t r = 0; r < ranks; r++) m = std::max(m, stat(r, 0));
    for (int64_t r = 0; r < ranks; r++) z += stat(r, 1) * std::exp(stat(r, 0) - m);
    return m + std::log(z);
  }
  int64_t rank_ = 0;
};

}  // namespace

std::unique_ptr<Case> make_softmax_stats() {
  return std::make_unique<SoftmaxStatsCase>();
}
std::unique_ptr<Case> make_split_cross_entropy() {
  return std::make_unique<SplitCrossEntropyCase>();
}

}  // namespace trireme::harness
