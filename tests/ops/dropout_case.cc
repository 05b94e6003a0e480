// dropout. Keys: n elements, rate, dtype, residual=1, first (global index of element 0), inplace=1: y is x.
// With ranks: rows of c elements, from row `from` of rank `rank` on, which has a part of every sequence of
// `whole` rows (placement 0, 1, 2: contiguous, zigzag, striped). The reference asks the scalar mask for each
// element.
#include "cases.h"

namespace trireme::harness {
namespace {

class DropoutCase final : public CaseOf<DropoutArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    int64_t n = p.size("n"), c = p.size("c", 1);
    const Shape shape = p.size("ranks", 1) > 1 ? Shape{n / c, c} : Shape{n};
    inplace_ = p.flag("inplace");
    args = {};
    args.x = b.dense(inplace_ ? Role::inout : Role::in, "x", shape, p.dtype());
    if (p.flag("residual")) args.residual = b.dense(Role::in, "residual", shape, p.dtype());
    args.y = inplace_ ? args.x : b.dense(Role::out, "y", shape, p.dtype());
    args.mask = {.rate = p.number("rate", 0.1),
                 .key = rng_key(uint64_t(p.size("seed", 1)), 7, "mask"),
                 .first = p.size("first", 0)};
    const ContextPlace place{.size = int(p.size("ranks", 1)),
                             .rank = int(p.size("rank", 0)),
                             .placement = ContextPlacement(p.size("placement", 0))};
    if (place.size == 1) return;
    DropoutMask& m = args.mask;
    m.seq = p.size("whole"), m.part = m.seq / place.size;
    m.rows = place.runs(m.seq, place.rank).from(p.size("from", 0));
    for (int64_t i = 0; i < n; i++) {
      const int64_t row = i / c + m.rows.first;
      numbers_.push_back((row / m.part * m.seq + place.position(row % m.part, m.seq, place.rank)) * c +
                         i % c);
    }
  }
  void reference(Operands& o) const override {
    std::vector<double>& y = o.want(inplace_ ? "x" : "y");
    for (size_t i = 0; i < y.size(); i++) {
      y[i] =
          args.mask.keeps(numbers_.empty() ? int64_t(i) : numbers_[i]) ? o.in("x")[i] * args.mask.scale() : 0;
      if (args.residual) y[i] += o.in("residual")[i];
    }
  }

 private:
  bool inplace_ = false;
  std::vector<int64_t> numbers_;  // of elements, where they are not consecutive
};

}  // namespace

std::unique_ptr<Case> make_dropout() {
  return std::make_unique<DropoutCase>();
}

}  // namespace trireme::harness
