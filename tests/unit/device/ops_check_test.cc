// Every op refuses every operand that breaks the contract, by the name of the op and the operand, and no data
// is looked at: all addresses here are fake.
#include <gtest/gtest.h>

#include <functional>

#include "device/ops.h"

namespace trireme {
namespace {

Tensor fake(const Shape& s, DType t) {
  return Tensor(reinterpret_cast<void*>(uintptr_t(1) << 40), s, t);
}

template <class A>
std::string refusal(const A& args) {
  try {
    check(args);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run);
    return e.what();
  }
}

template <class A>
struct Member {
  const char* name;
  Tensor A::*tensor;
  bool optional = false;
};

// The valid args pass; then each operand alone is made absent, of another type, of another shape.
template <class A>
void expect_guarded(const A& good, const std::vector<Member<A>>& members) {
  EXPECT_EQ(refusal(good), "");
  auto names_it = [&](const A& bad, const Member<A>& m, const char* how) {
    std::string text = refusal(bad);
    EXPECT_NE(text.find(A::kName), std::string::npos)
        << A::kName << "." << m.name << " " << how << ": " << text;
    // Another operand may be named when it is the one that no longer fits; the sizes are in the message
    // either way.
    EXPECT_NE(text.find("operand '"), std::string::npos)
        << A::kName << "." << m.name << " " << how << ": " << text;
  };
  for (const Member<A>& m : members) {
    A bad = good;
    bad.*m.tensor = Tensor();
    if (m.optional)
      EXPECT_EQ(refusal(bad), "") << A::kName << "." << m.name;
    else
      names_it(bad, m, "absent");
    bad = good;
    (bad.*m.tensor).dtype = DType::u16;
    names_it(bad, m, "of type u16");
    EXPECT_NE(refusal(bad).find(fmt::format("'{}'", m.name)), std::string::npos) << refusal(bad);
    bad = good;
    Shape longer = (good.*m.tensor).shape;
    longer.dim[size_t(longer.rank - 1)] += 2;
    bad.*m.tensor = fake(longer, (good.*m.tensor).dtype);
    names_it(bad, m, "of a longer last dim");
  }
}

constexpr int64_t N = 5, C = 6, V = 11;

TEST(OpsCheck, Matmul) {
  MatmulArgs p{.a = fake({N, C}, DType::bf16), .b = fake({C, V}, DType::bf16), .c = fake({N, V}, DType::f32)};
  p.bias = fake({V}, DType::bf16), p.residual = fake({N, V}, DType::f32);
  using M = Member<MatmulArgs>;
  expect_guarded(p, {M{"a", &MatmulArgs::a}, M{"b", &MatmulArgs::b}, M{"c", &MatmulArgs::c},
                     M{"bias", &MatmulArgs::bias, true}, M{"residual", &MatmulArgs::residual, true}});
  MatmulArgs empty = p;
  empty.a = fake({N, 0}, DType::bf16), empty.b = fake({0, V}, DType::bf16);
  EXPECT_NE(refusal(empty).find("K > 0"), std::string::npos);
  MatmulArgs overlapping = p;
  overlapping.c.stride[0] = V - 1;
  EXPECT_NE(refusal(overlapping).find("'c'"), std::string::npos);
  MatmulArgs columns = p;
  columns.a.stride = {1, N};
  EXPECT_NE(refusal(columns).find("'a'"), std::string::npos);
  MatmulArgs wide = p;
  wide.a.stride[0] = C + 7;
  EXPECT_EQ(refusal(wide), "");
  MatmulArgs transposed{
      .a = fake({C, N}, DType::f32), .b = fake({V, C}, DType::f32), .c = fake({N, V}, DType::f32)};
  EXPECT_NE(refusal(transposed), "");
  transposed.trans_a = transposed.trans_b = true;
  EXPECT_EQ(refusal(transposed), "");
  MatmulArgs mixed{
      .a = fake({N, C}, DType::f32), .b = fake({C, V}, DType::f32), .c = fake({N, V}, DType::bf16)};
  EXPECT_NE(refusal(mixed).find("'c'"), std::string::npos);
}

TEST(OpsCheck, NormsAndElementwise) {
  Tensor x = fake({N, C}, DType::bf16), w = fake({C}, DType::bf16), row = fake({N}, DType::f32),
         dw = fake({C}, DType::f32);
  using L = LayerNormArgs;
  expect_guarded<L>({x, w, w, x, row, row}, {{"x", &L::x},
                                             {"weight", &L::weight},
                                             {"bias", &L::bias},
                                             {"y", &L::y},
                                             {"mean", &L::mean},
                                             {"rstd", &L::rstd}});
  using LB = LayerNormBackwardArgs;
  expect_guarded<LB>({x, x, w, row, row, x, x, dw, dw}, {{"dy", &LB::dy},
                                                         {"x", &LB::x},
                                                         {"weight", &LB::weight},
                                                         {"mean", &LB::mean},
                                                         {"rstd", &LB::rstd},
                                                         {"add", &LB::add, true},
                                                         {"dx", &LB::dx},
                                                         {"dweight", &LB::dweight},
                                                         {"dbias", &LB::dbias}});
  using R = RmsNormArgs;
  expect_guarded<R>({x, w, x, row}, {{"x", &R::x}, {"weight", &R::weight}, {"y", &R::y}, {"rstd", &R::rstd}});
  using RB = RmsNormBackwardArgs;
  expect_guarded<RB>({x, x, w, row, x, x, dw}, {{"dy", &RB::dy},
                                                {"x", &RB::x},
                                                {"weight", &RB::weight},
                                                {"rstd", &RB::rstd},
                                                {"add", &RB::add, true},
                                                {"dx", &RB::dx},
                                                {"dweight", &RB::dweight}});
  using G = GeluArgs;
  expect_guarded<G>({x, x}, {{"x", &G::x}, {"y", &G::y}});
  using GB = GeluBackwardArgs;
  expect_guarded<GB>({x, x, x}, {{"x", &GB::x}, {"dy", &GB::dy}, {"dx", &GB::dx}});
  using S = SwigluArgs;
  expect_guarded<S>({x, x, x}, {{"gate", &S::gate}, {"up", &S::up}, {"y", &S::y}});
  using SB = SwigluBackwardArgs;
  expect_guarded<SB>(
      {x, x, x, x, x},
      {{"gate", &SB::gate}, {"up", &SB::up}, {"dy", &SB::dy}, {"dgate", &SB::dgate}, {"dup", &SB::dup}});
  using A = AddArgs;
  expect_guarded<A>({x, x, x}, {{"a", &A::a}, {"b", &A::b}, {"y", &A::y}});
  using CS = ColumnSumArgs;
  expect_guarded<CS>({x, dw}, {{"dy", &CS::dy}, {"db", &CS::db}});
  EXPECT_EQ(refusal(CastArgs{fake({7}, DType::i32), fake({7}, DType::i32)}), "");
  EXPECT_NE(refusal(CastArgs{fake({7}, DType::i32), fake({7}, DType::f32)}), "");
  EXPECT_NE(refusal(CastArgs{fake({7}, DType::f32), fake({8}, DType::bf16)}), "");
  EXPECT_NE(refusal(ZeroArgs{}), "");
}

TEST(OpsCheck, EmbeddingRopeLossAndOptimizer) {
  Tensor ids = fake({1, N}, DType::i32), y = fake({N, C}, DType::bf16), table = fake({V, C}, DType::bf16);
  using E = EmbeddingArgs;
  expect_guarded<E>({ids, table, y}, {{"ids", &E::ids}, {"table", &E::table}, {"y", &E::y}});
  using EB = EmbeddingBackwardArgs;
  expect_guarded<EB>({ids, y, fake({V, C}, DType::f32)},
                     {{"ids", &EB::ids}, {"dy", &EB::dy}, {"dtable", &EB::dtable}});
  Tensor angle = fake({9, 3}, DType::f32);
  using R = RopeArgs;
  RopeArgs rope{fake({N, 2, 6}, DType::f32), angle, angle, fake({N}, DType::i32)};
  expect_guarded<R>(rope, {{"x", &R::x}, {"cos", &R::cos}, {"sin", &R::sin}, {"positions", &R::positions}});
  rope.x.stride[1] = 7;  // columns of heads
  EXPECT_EQ(refusal(rope), "");
  rope.x.stride[1] = 5;  // heads that overlap
  EXPECT_NE(refusal(rope).find("'x'"), std::string::npos);
  using X = CrossEntropyArgs;
  CrossEntropyArgs ce{fake({N, V}, DType::f32), fake({N}, DType::i32), fake({N}, DType::f32), V};
  EXPECT_EQ(refusal(ce), "");
  for (int64_t vocab : {int64_t(0), V + 1}) {
    X bad = ce;
    bad.vocab = vocab;
    EXPECT_NE(refusal(bad).find("vocab"), std::string::npos);
  }
  Tensor flat = fake({40}, DType::f32);
  using W = AdamWArgs;
  expect_guarded<W>({flat, flat, flat, flat, fake({40}, DType::bf16)}, {{"master", &W::master},
                                                                        {"exp_avg", &W::exp_avg},
                                                                        {"exp_avg_sq", &W::exp_avg_sq},
                                                                        {"grad", &W::grad},
                                                                        {"weight", &W::weight, true}});
  EXPECT_EQ(refusal(SquareSumsArgs{fake({4097}, DType::bf16), fake({2}, DType::f64)}), "");
  EXPECT_NE(refusal(SquareSumsArgs{fake({4097}, DType::bf16), fake({1}, DType::f64)}), "");
  EXPECT_EQ(refusal(AdamWArgs{fake({0}, DType::f32),
                              fake({0}, DType::f32),
                              fake({0}, DType::f32),
                              Tensor(nullptr, {0}, DType::f32),
                              {}}),
            "");
}

// N = 4 tokens, 6 experts, 2 choices: 8 rows.
TEST(OpsCheck, Experts) {
  Tensor logits = fake({4, 6}, DType::f32), ids = fake({4, 2}, DType::i32),
         weights = fake({4, 2}, DType::f32), rows = fake({8}, DType::i32), offsets = fake({7}, DType::i32),
         x = fake({4, C}, DType::bf16), y = fake({8, C}, DType::bf16);
  using R = RouteArgs;
  expect_guarded<R>(
      {logits, fake({6}, DType::f32), ids, weights},
      {{"logits", &R::logits}, {"bias", &R::bias, true}, {"ids", &R::ids}, {"weights", &R::weights}});
  R groups{logits, {}, ids, weights};
  groups.groups = 3, groups.top_groups = 1, groups.group_pairs = true;
  EXPECT_EQ(refusal(groups), "");
  for (auto [count, top] : {std::pair{4, 1}, {3, 4}, {3, 0}, {6, 1}}) {  // 6: one candidate, two choices
    groups.groups = count, groups.top_groups = top;
    EXPECT_NE(refusal(groups), "") << count << " " << top;
  }
  using RB = RouteBackwardArgs;
  expect_guarded<RB>({logits, ids, weights, fake({2, 6}, DType::f32), logits},
                     {{"logits", &RB::logits},
                      {"ids", &RB::ids},
                      {"dweights", &RB::dweights},
                      {"balance", &RB::balance, true},
                      {"dlogits", &RB::dlogits}});
  EXPECT_NE(refusal(RB{logits, ids, weights, fake({3, 6}, DType::f32), logits}).find("'balance'"),
            std::string::npos);  // 3 units of 4 tokens
  using O = RouteOrderArgs;
  O order{ids, offsets, ids, rows, fake({6}, DType::i32)};
  expect_guarded<O>(order, {{"ids", &O::ids},
                            {"offsets", &O::offsets},
                            {"place", &O::place},
                            {"source", &O::source},
                            {"load", &O::load}});
  order.capacity = 1, order.unit = 3;
  EXPECT_NE(refusal(order), "");
  using P = PermuteRowsArgs;
  expect_guarded<P>({x, rows, y}, {{"x", &P::x}, {"source", &P::source}, {"y", &P::y}});
  using B = CombineRowsArgs;
  expect_guarded<B>({y, ids, weights, x, x}, {{"x", &B::x},
                                              {"place", &B::place},
                                              {"weights", &B::weights, true},
                                              {"add", &B::add, true},
                                              {"y", &B::y}});
  using BB = CombineRowsBackwardArgs;
  expect_guarded<BB>({x, y, ids, rows, weights, y, weights}, {{"dy", &BB::dy},
                                                              {"x", &BB::x},
                                                              {"place", &BB::place},
                                                              {"source", &BB::source},
                                                              {"weights", &BB::weights},
                                                              {"dx", &BB::dx},
                                                              {"dweights", &BB::dweights}});
  using G = GroupedMatmulArgs;
  expect_guarded<G>({y, fake({6, C, V}, DType::bf16), offsets, fake({8, V}, DType::bf16)},
                    {{"x", &G::x}, {"w", &G::w}, {"offsets", &G::offsets}, {"y", &G::y}});
  using GW = GroupedMatmulWeightArgs;
  expect_guarded<GW>({fake({8, V}, DType::bf16), y, offsets, fake({6, V, C}, DType::f32)},
                     {{"dy", &GW::dy}, {"x", &GW::x}, {"offsets", &GW::offsets}, {"dw", &GW::dw}});
}

TEST(OpsCheck, Attention) {
  Tensor q = fake({2, N, 6, 8}, DType::bf16), k = fake({2, N, 3, 8}, DType::bf16),
         lse = fake({2, 6, N}, DType::f32);
  using A = AttentionBackwardArgs;
  A p{q, k, k, q, lse, q, q, k, k};
  expect_guarded<A>(p, {{"q", &A::q},
                        {"k", &A::k},
                        {"v", &A::v},
                        {"o", &A::o},
                        {"lse", &A::lse},
                        {"dout", &A::dout},
                        {"dq", &A::dq},
                        {"dk", &A::dk},
                        {"dv", &A::dv}});
  A four = p;
  four.k = four.v = four.dk = four.dv = fake({2, N, 4, 8}, DType::bf16);
  EXPECT_NE(refusal(four).find("multiple"), std::string::npos);
  AttentionArgs f64{fake({1, 3, 1, 4}, DType::f64), fake({1, 3, 1, 4}, DType::f64),
                    fake({1, 3, 1, 4}, DType::f64), fake({1, 3, 1, 4}, DType::f64),
                    fake({1, 1, 3}, DType::f64)};
  EXPECT_EQ(refusal(f64), "");
  f64.lse.dtype = DType::f32;
  EXPECT_NE(refusal(f64).find("'lse'"), std::string::npos);
}

// Costs in closed form, by hand.
TEST(OpsCost, ClosedForms) {
  MatmulArgs m{
      .a = fake({5, 7}, DType::bf16), .b = fake({7, 11}, DType::bf16), .c = fake({5, 11}, DType::f32)};
  EXPECT_EQ(cost(m), (Cost{2 * 5 * 7 * 11, 2 * (35 + 77), 4 * 55}));
  m.bias = fake({11}, DType::bf16), m.residual = m.c, m.accumulate = true;
  EXPECT_EQ(cost(m), (Cost{2 * 5 * 7 * 11 + 3 * 55, 2 * (35 + 77 + 11) + 8 * 55, 4 * 55}));

  Tensor q = fake({2, 5, 6, 8}, DType::bf16), k = fake({2, 5, 3, 8}, DType::bf16),
         lse = fake({2, 6, 5}, DType::f32);
  AttentionArgs a{q, k, k, q, lse};
  EXPECT_EQ(cost(a), (Cost{4. * 2 * 6 * 15 * 8, 2 * (480 + 240 + 240), 2 * 480 + 4 * 60}));
  a.causal = false;
  EXPECT_EQ(cost(a).flops, 4. * 2 * 6 * 25 * 8);
  AttentionBackwardArgs b{q, k, k, q, lse, q, q, k, k};
  EXPECT_EQ(cost(b).flops, 2.5 * 4 * 2 * 6 * 15 * 8);

  // 30 bytes a parameter: f32 master and moments read and written, f32 gradient read, bf16 weight written.
  Tensor flat = fake({100}, DType::f32);
  Cost w = cost(AdamWArgs{flat, flat, flat, flat, fake({100}, DType::bf16)});
  EXPECT_EQ(w.bytes_read + w.bytes_written, 3000);
  // A look-up reads its rows, not the table.
  EXPECT_EQ(cost(EmbeddingArgs{fake({3}, DType::i32), fake({1000, 4}, DType::f32), fake({3, 4}, DType::f32)}),
            (Cost{0, 3 * 4 + 3 * 16, 3 * 16}));
}

TEST(OpsOutputs, AreWhatIsWritten) {
  Tensor x = fake({N, C}, DType::f32), w = fake({C}, DType::f32), row = fake({N}, DType::f32);
  EXPECT_EQ(outputs(LayerNormArgs{x, w, w, x, row, row}).n, 3);
  CrossEntropyArgs ce{x, fake({N}, DType::i32), row, C};
  EXPECT_EQ(outputs(ce).n, 2);
  ce.backward = false;
  EXPECT_EQ(outputs(ce).n, 1);
  EXPECT_EQ(outputs(AdamWArgs{w, w, w, w, {}}).n, 3);
}

}  // namespace
}  // namespace trireme
