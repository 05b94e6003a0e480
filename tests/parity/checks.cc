#include "checks.h"

#include <algorithm>

namespace trireme::parity {

Pair expect_bounded_losses(const Case& c) {
  Pair p{train_layout(run_of(c), {}), train_layout(one_rank_of(c), {})};
  EXPECT_LE(loss_difference(p.layout, p.one), 1e-5);
  return p;
}

Pair expect_bounded_gradients(const Case& c) {
  const Plan equal{.steps = 3, .gradients = true};
  Pair p{train_layout(run_of(c), equal), train_layout(one_rank_of(c), equal)};
  EXPECT_LE(gradient_difference(p.layout, p.one), 1e-4);
  for (size_t s = 0; s < p.one.norms.size(); s++) EXPECT_NEAR(p.layout.norms[s] / p.one.norms[s], 1, 1e-5);
  return p;
}

Pair expect_bounded(const Case& c) {
  expect_bounded_gradients(c);
  return expect_bounded_losses(c);
}

void expect_learned(const Ran& r) {
  ASSERT_GE(r.losses.size(), size_t(kSteps));
  EXPECT_LT(r.losses.back(), r.losses.front() - 0.002 * double(r.losses.size()));
}

void expect_low_bounded(const Case& c) {
  Case exact = c;
  exact.compute = exact.grads = "f32", exact.fp8 = "none";
  Plan equal{.steps = 2, .gradients = true};
  const Ran oracle = train_layout(one_rank_of(exact), equal);
  if (run_of(c).model.moe()) equal.replay = &oracle.routing;
  expect_as_exact(train_layout(run_of(c), equal), train_layout(one_rank_of(c), equal), oracle);
}

// One draw of rounding errors is compared with another: over few steps chance alone makes one twice the
// other.
constexpr int64_t kCompared = 50;

void expect_low_runs_bounded(const Case& c) {
  Case exact = c;
  exact.compute = exact.grads = "f32";
  const Ran oracle = train_layout(one_rank_of(exact), {.steps = kCompared});
  const Plan plan{.steps = kCompared, .replay = run_of(c).model.moe() ? &oracle.routing : nullptr};
  const Ran layout = train_layout(run_of(c), plan), one = train_layout(one_rank_of(c), plan);
  ASSERT_EQ(oracle.losses.size(), size_t(kCompared));
  auto losses_stray = [&](const Ran& r) {
    double sum = 0;
    for (size_t s = 0; s < r.losses.size(); s++) sum += std::pow(r.losses[s] - oracle.losses[s], 2);
    return std::sqrt(sum / double(kCompared));
  };
  auto weights_stray = [&](const Ran& r) {
    double sum = 0;
    for (const auto& [name, w] : oracle.state.at(""))
      sum += std::pow(distance(r.state.at("").at(name), w), 2);
    return std::sqrt(sum);
  };
  EXPECT_GT(losses_stray(one), 0);
  EXPECT_LE(losses_stray(layout), 1.5 * losses_stray(one));
  EXPECT_LE(weights_stray(layout), 1.5 * weights_stray(one));
  expect_learned(layout);
  fmt::print("{}: losses stray {:.2e} (one rank {:.2e}), weights {:.2e} ({:.2e})\n", to_text(c),
             losses_stray(layout), losses_stray(one), weights_stray(layout), weights_stray(one));
}

void expect_zero_stages_identical(Case c) {
  const Plan plan{.steps = 8};
  c.zero = 0;
  const Ran first = train_layout(run_of(c), plan);
  for (c.zero = 1; c.zero <= 3; c.zero++) expect_identical(train_layout(run_of(c), plan), first);
}

int64_t calls_of(const Ran& ran, std::string_view call) {
  return std::count(ran.ranks[0].calls.begin(), ran.ranks[0].calls.end(), call);
}

}  // namespace trireme::parity
