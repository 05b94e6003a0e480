#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "optim/grad_norm.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"

namespace trireme {
namespace {

TEST(LrSchedule, WarmsUpThenFollowsItsShape) {
  LrSchedule s{.lr = 2e-3, .min_lr = 2e-4, .warmup = 10, .steps = 110, .shape = LrShape::cosine};
  EXPECT_DOUBLE_EQ(s.at(1), 2e-4);
  EXPECT_DOUBLE_EQ(s.at(10), 2e-3);
  EXPECT_NEAR(s.at(60), (2e-3 + 2e-4) / 2, 1e-12);
  EXPECT_NEAR(s.at(110), 2e-4, 1e-15);
  EXPECT_NEAR(s.at(500), 2e-4, 1e-15);
  s.shape = LrShape::linear;
  EXPECT_NEAR(s.at(60), (2e-3 + 2e-4) / 2, 1e-12);
  EXPECT_NEAR(s.at(35), 2e-3 - 0.25 * 1.8e-3, 1e-12);
  s.shape = LrShape::constant;
  EXPECT_DOUBLE_EQ(s.at(110), 2e-3);
  s.shape = LrShape::wsd;  // the last tenth of 110 steps: from step 99 down
  EXPECT_DOUBLE_EQ(s.at(99), 2e-3);
  EXPECT_NEAR(s.at(110), 2e-4, 1e-15);
  EXPECT_LT(s.at(100), 2e-3);
}

TEST(LrSchedule, NoWarmupAndOneStep) {
  LrSchedule s{.lr = 1e-3, .min_lr = 0, .warmup = 0, .steps = 1, .shape = LrShape::cosine};
  EXPECT_NEAR(s.at(1), 0, 1e-18);
  s.shape = LrShape::wsd;
  EXPECT_NEAR(s.at(1), 0, 1e-18);
  s.warmup = 5, s.steps = 3, s.shape = LrShape::cosine;  // all of it is warmup
  EXPECT_DOUBLE_EQ(s.at(3), 3e-3 / 5);
}

TEST(OrderIndependentSum, DoesNotDependOnOrderAndIsExactEnough) {
  std::vector<double> v;
  long double reference = 0;
  for (uint64_t i = 0; i < 10007; i++) {
    v.push_back(std::exp(20 * (uniform(1, i) - 0.5)));
    reference += v.back();
  }
  double a = order_independent_sum(v);
  EXPECT_NEAR(a, double(reference), 1e-12 * double(reference));
  for (uint64_t round = 0; round < 5; round++) {
    std::vector<double> w(v.size());
    for (size_t i = 0; i < v.size(); i++) w[permute(round, i, v.size())] = v[i];
    EXPECT_EQ(order_independent_sum(w), a);
  }
  v[77] = std::nan("");
  EXPECT_TRUE(std::isnan(order_independent_sum(v)));
  EXPECT_EQ(order_independent_sum(std::vector<double>{0.0, 0.0}), 0);
  EXPECT_EQ(order_independent_sum(std::vector<double>{1e300}), 1e300);
  EXPECT_EQ(order_independent_sum(std::vector<double>{5e-324, 5e-324}), 1e-323);
}

// Cut among ranks in any way, limbs added in any order: the bits of the whole.
TEST(OrderIndependentSum, DoesNotDependOnTheRanksThatAddIt) {
  std::vector<double> v;
  for (uint64_t i = 0; i < 5003; i++) v.push_back(std::exp(30 * (uniform(2, i) - 0.5)));
  const double whole = order_independent_sum(v), largest = largest_of(v);
  for (size_t ranks : {1, 2, 3, 7}) {
    Limbs sum{};
    for (size_t r = ranks; r-- > 0;) {
      std::vector<double> mine;
      for (size_t i = r; i < v.size(); i += ranks) mine.push_back(v[i]);
      const Limbs part = limbs_of(mine, largest);
      for (size_t k = 0; k < part.size(); k++) {
        EXPECT_GE(part[k], 0);
        sum[k] += part[k];
      }
    }
    EXPECT_EQ(sum_of(sum, largest), whole) << ranks;
  }
  EXPECT_EQ(sum_of(limbs_of({}, 0), 0), 0);
  EXPECT_TRUE(std::isnan(sum_of({}, kNonfinite)));
}

// Every element of a unit is one rank's to answer for, in whole blocks, and all own equal parts.
TEST(ShardPlace, SharesCoverAUnitOnce) {
  for (int64_t numel : {1, 4095, 4096, 4097, 40960, 100003})
    for (int shards : {1, 2, 3, 4})
      for (int replicas : {1, 2, 3, 5}) {
        const Unit u{
            .first = 0, .last = 1, .offset = 0, .numel = numel, .padded = padded_unit(numel, shards)};
        EXPECT_GE(u.padded, numel);
        EXPECT_LT(u.padded, numel + shards * kFlatBlock);
        std::vector<int> seen(size_t(u.padded), 0);
        for (int s = 0; s < shards; s++)
          for (int r = 0; r < replicas; r++) {
            const ShardPlace at{.shards = shards, .shard = s, .replicas = replicas, .replica = r};
            const Range part = own_part(u, at), share = own_share(u, at);
            EXPECT_EQ(part.size(), u.padded / shards);
            EXPECT_GE(share.begin, part.begin);
            EXPECT_LE(share.end, part.end);
            EXPECT_TRUE(share.size() == 0 || (share.begin - part.begin) % kFlatBlock == 0);
            for (int64_t i = share.begin; i < share.end; i++) seen[size_t(i)]++;
          }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), u.padded)
            << numel << " " << shards << " " << replicas;
      }
}

struct Flat {
  std::vector<float> w, g, m, v;
};

TEST(AdamW, DecaysOnlyWhatIsDeclaredToDecay) {
  std::vector<ParamDecl> decls;
  ParamDecl d;
  d.name = "matrix", d.global = {3, 7}, d.decay = true;
  decls.push_back(d);
  d.name = "bias", d.global = {5}, d.decay = false;
  decls.push_back(d);
  ParamSet set = lay_out(decls, Mesh(), 0);
  ASSERT_EQ(set.numel, 26);
  Flat f{std::vector<float>(26, 2.0f), std::vector<float>(26, 0.0f), std::vector<float>(26, 0.0f),
         std::vector<float>(26, 0.0f)};
  auto t = [](std::vector<float>& x) { return Tensor(x.data(), {26}, DType::f32); };
  FlatState state{
      .weights = t(f.w), .grads = t(f.g), .master = t(f.w), .state = {t(f.m), t(f.v)}, .place = {}};
  auto device = make_device("cpu", {.threads = 1});
  auto opt = make_adamw({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.5});
  opt->step(device->kernels(), set, set.units[0], state, {.lr = 0.1, .step = 1, .grad_scale = 1}, {});
  for (int i = 0; i < 21; i++) EXPECT_FLOAT_EQ(f.w[size_t(i)], 2.0f * (1 - 0.1f * 0.5f));
  for (int i = 21; i < 26; i++) EXPECT_EQ(f.w[size_t(i)], 2.0f);
}

// The first update of each element is its rate.
TEST(AdamW, EmbeddingsNormsAndBiasesHaveTheirOwnRate) {
  for (const bool tied : {false, true}) {
    std::vector<ParamDecl> decls;
    const auto add = [&](const char* name, Shape shape) {
      decls.push_back({.name = name, .global = shape, .decay = shape.rank > 1});
    };
    add("embed.tokens.weight", {4, 3});
    add("embed.positions.weight", {2, 3});
    add("blocks.0.attn.q.weight", {3, 3});
    add("blocks.0.attn.q.bias", {3});
    add("norm.weight", {3});
    add("head.weight", {4, 3});
    const ParamSet set = lay_out(decls, Mesh(), 0);
    const size_t n = size_t(set.numel);
    Flat f{std::vector<float>(n, 0.0f), std::vector<float>(n, 1.0f), std::vector<float>(n, 0.0f),
           std::vector<float>(n, 0.0f)};
    const auto t = [&](std::vector<float>& x) { return Tensor(x.data(), {set.numel}, DType::f32); };
    const FlatState state{
        .weights = t(f.w), .grads = t(f.g), .master = t(f.w), .state = {t(f.m), t(f.v)}, .place = {}};
    auto device = make_device("cpu", {.threads = 1});
    auto opt = make_adamw({.embed_lr = 4, .tied = tied});
    opt->step(device->kernels(), set, set.units[0], state, {.lr = 0.1, .step = 1, .grad_scale = 1}, {});
    for (const Param& p : set.params) {
      const bool matrix = p.decl.name.ends_with("q.weight") || p.decl.name == "head.weight";
      const bool head = tied && p.decl.name == "embed.tokens.weight";
      for (int64_t i = 0; i < p.numel(); i++)
        EXPECT_NEAR(f.w[size_t(p.offset + i)], matrix || head ? -0.1 : -0.4, 1e-6) << p.decl.name << tied;
    }
  }
}

TEST(GradNorm, EqualsTheDoubleReferenceInBothTypes) {
  std::vector<ParamDecl> decls;
  for (int64_t n : {1, 4095, 4096, 4097, 10000}) {
    ParamDecl d;
    d.name = "p" + std::to_string(n), d.global = {n};
    decls.push_back(d);
  }
  ParamSet set = lay_out(decls, Mesh(), 0);
  std::vector<float> g(static_cast<size_t>(set.numel));
  double want = 0;
  for (size_t i = 0; i < g.size(); i++) {
    g[i] = float(normal(3, i));
    want += double(g[i]) * g[i];
  }
  FlatState flat;
  flat.grads = Tensor(g.data(), {set.numel}, DType::f32);
  auto device = make_device("cpu", {.threads = 2});
  std::vector<std::byte> memory(1 << 16);
  Arena arena(memory.data(), int64_t(memory.size()));
  GradNorm norm(set, {}, arena);
  EXPECT_NEAR(norm.compute(*device, set, flat, nullptr, {}), std::sqrt(want), 1e-12 * std::sqrt(want));
}

}  // namespace
}  // namespace trireme
