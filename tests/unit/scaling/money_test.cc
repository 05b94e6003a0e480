#include "scaling/money.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planted.h"

namespace trireme::test {
namespace {

// Seconds in proportion to FLOPs: 1e15 a second, a dollar an hour.
Market by_flops() {
  Market m;
  for (const double n : {1e6, 1e9, 1e12}) m.sizes.push_back({n, 6 * n / 1e15, 2 * n / 1e15, 2 * n / 1e15});
  m.dollars_per_hour = 1;
  m.life = {1e6, 0, 100};
  return m;
}

// Where prices are FLOPs, the share that the dollars give to serving makes T2's two budgets, and within these
// its optimum is that of approach 1.
TEST(Money, WithPricesOfFlopsIsT2) {
  const Market m = by_flops();
  const auto loss = [](double n, double d, double k) { return kTask.loss(n, d, k); };
  const Bargain b = best_for_dollars(loss, m, 1000);
  EXPECT_NEAR(b.total() / 1000, 1, 1e-9);
  const double flops = 1e15 * 3600;
  const Budgets budgets{b.train_dollars * flops, b.serve_dollars * flops / (1e6 * 100)};
  const Choice t2 = best_by_loss(kTask, budgets);
  EXPECT_NEAR(b.choice.parameters / t2.parameters, 1, 0.01);
  EXPECT_NEAR(b.choice.samples / t2.samples, 1, 0.01);
  // No other share is better.
  for (const double share : {0.5, 0.8, 1.2, 2.0}) {
    const double serve = share * b.serve_dollars;
    if (serve >= 1000) continue;
    EXPECT_LE(b.choice.value,
              best_by_loss(kTask, {(1000 - serve) * flops, serve * flops / 1e8}).value * (1 + 1e-9));
  }
  EXPECT_THROW(best_for_dollars(loss, m, 1e-9), Error);
}

TEST(Money, CheapestSolutionIsAMinimum) {
  const Market m = by_flops();
  const auto pass = [](double n, double d, double k) { return kPass.pass(n, d, k); };
  const Bargain b = cheapest_solution(pass, m);
  const auto dollars = [&](double n, double d, double k) {
    return (m.train_dollars(n, d) + m.serve_dollars(n, k)) / (1e6 * pass(n, d, k));
  };
  const Choice& c = b.choice;
  const double least = dollars(c.parameters, c.tokens, c.samples);
  for (const double t : {0.9, 1.1}) {
    EXPECT_LT(least, dollars(c.parameters * t, c.tokens, c.samples));
    EXPECT_LT(least, dollars(c.parameters, c.tokens * t, c.samples));
    if (c.samples > 1.2) {
      EXPECT_LT(least, dollars(c.parameters, c.tokens, c.samples * t));
    }
  }
  // More problems pay for more training.
  Market more = m;
  more.life.problems *= 100;
  EXPECT_GT(cheapest_solution(pass, more).train_dollars, b.train_dollars);
}

}  // namespace
}  // namespace trireme::test
