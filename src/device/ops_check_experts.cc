// check() of the ops of experts: routes, rows on their way, products by expert.
#include "device/ops.h"
#include "device/ops_checker.h"

namespace trireme {

namespace {
// ids or places i32 [N, k], k at least 1.
void check_choices(const Checker& c, std::string_view name, const Tensor& t) {
  c.type(name, t, DType::i32);
  c.that(t.shape.rank == 2 && t.shape[1] > 0 && t.contiguous(), name, t, "[N, k], contiguous, k at least 1");
}
void check_weights(const Checker& c, std::string_view name, const Tensor& t, const Tensor& choices) {
  c.vector(name, t, choices.numel(), DType::f32);
  c.shape(name, t, {choices.shape[0], choices.shape[1]});
}
// f32 [N, E], dense.
void check_logits(const Checker& c, std::string_view name, const Tensor& t, int64_t n, int64_t e) {
  c.matrix(name, t, n, e, DType::f32);
  c.that(t.contiguous(), name, t, "contiguous");
}
// Has each of n tokens, the first of which is number `first`, its unit?
bool units_hold(int64_t unit, int64_t first, int64_t n, int64_t units) {
  return unit > 0 && first >= 0 && (n == 0 || (first + n - 1) / unit < units);
}
}  // namespace

void check(const RouteArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, DType::f32);
  const int64_t n = p.logits.shape[0], e = p.logits.shape[1];
  check_logits(c, "logits", p.logits, n, e);
  if (p.bias) c.vector("bias", p.bias, e, DType::f32);
  check_choices(c, "ids", p.ids);
  const int64_t k = p.ids.shape[1];
  c.shape("ids", p.ids, {n, k});
  check_weights(c, "weights", p.weights, p.ids);
  c.that(p.groups >= 1 && e % p.groups == 0 && p.top_groups >= 1 && p.top_groups <= p.groups, "logits",
         p.logits, "of a number of experts that `groups` divides, top_groups in [1, groups]");
  c.that(k <= e / p.groups * p.top_groups, "ids", p.ids, "of at most as many choices as candidates");
  c.that(!p.group_pairs || e / p.groups >= 2, "logits", p.logits, "of at least two experts a group");
}
void check(const RouteBackwardArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, DType::f32);
  const int64_t n = p.logits.shape[0], e = p.logits.shape[1];
  check_logits(c, "logits", p.logits, n, e);
  check_logits(c, "dlogits", p.dlogits, n, e);
  check_choices(c, "ids", p.ids);
  c.shape("ids", p.ids, {n, p.ids.shape[1]});
  check_weights(c, "dweights", p.dweights, p.ids);
  if (!p.balance) return;
  c.matrix("balance", p.balance, DType::f32);
  check_logits(c, "balance", p.balance, p.balance.shape[0], e);
  const int64_t units = p.balance.shape[0];
  if (p.unit == 0)
    c.that(units > 0 && n % units == 0, "balance", p.balance, "of a number of units that divides the tokens");
  else
    c.that(units_hold(p.unit, p.first, n, units), "balance", p.balance, "of a unit for every token");
}
void check(const RouteSharesArgs& p) {
  Checker c(p.kName);
  c.matrix("logits", p.logits, DType::f32);
  const int64_t n = p.logits.shape[0], e = p.logits.shape[1];
  check_logits(c, "logits", p.logits, n, e);
  check_choices(c, "ids", p.ids);
  c.shape("ids", p.ids, {n, p.ids.shape[1]});
  c.matrix("choices", p.choices, DType::f32);
  const int64_t units = p.choices.shape[0];
  check_logits(c, "choices", p.choices, units, e);
  check_logits(c, "shares", p.shares, units, e);
  c.vector("squares", p.squares, units, DType::f32);
  c.that(units_hold(p.unit, p.first, n, units), "choices", p.choices, "of a unit for every token");
}
void check(const RouteOrderArgs& p) {
  Checker c(p.kName);
  check_choices(c, "ids", p.ids);
  c.vector("load", p.load, p.load.numel(), DType::i32);
  c.vector("offsets", p.offsets, p.load.numel() + 1, DType::i32);
  c.vector("place", p.place, p.ids.numel(), DType::i32);
  c.vector("source", p.source, p.ids.numel(), DType::i32);
  c.that(p.capacity == 0 || (p.capacity > 0 && p.unit > 0 && p.ids.shape[0] % p.unit == 0), "ids", p.ids,
         "of whole units of tokens, where there is a capacity");
}
void check(const PermuteRowsArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.matrix("x", p.x, type);
  c.vector("source", p.source, p.source.numel(), DType::i32);
  const int64_t n = p.x.shape[0], r = p.source.numel();
  c.that(n > 0 ? r % n == 0 : r == 0, "source", p.source, "of a multiple of x's rows");
  c.matrix("y", p.y, r, p.x.shape[1], type);
}
void check(const CombineRowsArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  check_choices(c, "place", p.place);
  const int64_t n = p.place.shape[0];
  c.matrix("x", p.x, type);
  c.matrix("x", p.x, p.place.numel(), p.x.shape[1], type);
  if (p.weights) check_weights(c, "weights", p.weights, p.place);
  if (p.add) c.matrix("add", p.add, n, p.x.shape[1], type);
  c.matrix("y", p.y, n, p.x.shape[1], type);
}
void check(const CombineRowsBackwardArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("dy", p.dy);
  check_choices(c, "place", p.place);
  c.matrix("dy", p.dy, type);
  const int64_t n = p.place.shape[0], r = p.place.numel(), cols = p.dy.shape[1];
  c.matrix("dy", p.dy, n, cols, type);
  c.matrix("x", p.x, r, cols, type);
  c.vector("source", p.source, r, DType::i32);
  check_weights(c, "weights", p.weights, p.place);
  c.matrix("dx", p.dx, r, cols, type);
  check_weights(c, "dweights", p.dweights, p.place);
}

namespace {
// [E, a, b], dense.
void check_experts(const Checker& c, std::string_view name, const Tensor& t) {
  c.that(present(t), name, t, "present");
  c.that(t.shape.rank == 3 && t.contiguous() && t.shape[0] > 0, name, t,
         "three dims, contiguous, of at least one expert");
}
}  // namespace
void check(const GroupedMatmulArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("x", p.x);
  c.matrix("x", p.x, type);
  check_experts(c, "w", p.w);
  c.type("w", p.w, type);
  const int64_t k = p.w.shape[p.trans_w ? 2 : 1], n = p.w.shape[p.trans_w ? 1 : 2];
  c.that(k > 0, "w", p.w, "of at least one element to sum over (K > 0)");
  c.matrix("x", p.x, p.x.shape[0], k, type);
  c.vector("offsets", p.offsets, p.w.shape[0] + 1, DType::i32);
  c.matrix("y", p.y, p.x.shape[0], n, type);
}
void check(const GroupedMatmulWeightArgs& p) {
  Checker c(p.kName);
  DType type = c.compute_type("dy", p.dy);
  c.matrix("dy", p.dy, type);
  check_experts(c, "dw", p.dw);
  c.type("dw", p.dw, type, DType::f32);
  c.matrix("dy", p.dy, p.dy.shape[0], p.dw.shape[1], type);
  c.matrix("x", p.x, p.dy.shape[0], p.dw.shape[2], type);
  c.vector("offsets", p.offsets, p.dw.shape[0] + 1, DType::i32);
}

}  // namespace trireme
