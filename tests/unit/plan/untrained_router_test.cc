// What is expected of routers that are not trained: against what such models' routers were measured to
// choose, and where it must be by itself.
#include <gtest/gtest.h>

#include <cmath>

#include "forecast/forecast.h"
#include "forecast/untrained_router.h"
#include "spec/run_schedule.h"

namespace trireme::test {
namespace {

RunSpec routers(int64_t hidden, int64_t layers, int64_t seq, int64_t micro) {
  RunSpec r;
  r.model = ModelSpec::of("mixtral");
  r.model.vocab = 2048, r.model.layers = layers, r.model.hidden = hidden, r.model.ffn = 2 * hidden;
  r.model.heads = r.model.kv_heads = std::max<int64_t>(1, hidden / 64);
  r.model.experts = 4, r.model.experts_per_token = 2, r.model.moe_ffn = hidden;
  r.data.seq_len = seq, r.model.finish(seq);
  r.batch.micro = micro, r.batch.global = 2 * micro;
  r.layout.dp = r.layout.ep = 2;
  return r;
}
constexpr double kRepeat = 1.0 / 512;  // of 512 tokens, drawn at random

// Means of step 1's ep_load over train.seed 1 to 8 and both blocks, four sequences a step (docs/moe.md).
TEST(UntrainedRouter, IsAsFullAsWasMeasured) {
  for (const auto& [hidden, measured] : {std::pair(64, 1.032), {128, 1.065}, {256, 1.103}, {512, 1.129}}) {
    const UntrainedLoad l = untrained_load(routers(hidden, 2, 128, 2), kRepeat);
    EXPECT_NEAR(l.mean, measured, 0.03) << hidden;
    EXPECT_LT(l.low, measured) << hidden;
    EXPECT_GT(l.high, measured) << hidden;
  }
}

TEST(UntrainedRouter, TokensAreMoreAlikeBlockByBlockAndInWiderModels) {
  const std::vector<RouterLikeness> narrow = router_likeness(routers(64, 4, 128, 1), kRepeat),
                                    wide = router_likeness(routers(512, 4, 128, 1), kRepeat);
  ASSERT_EQ(narrow.size(), 4u);
  for (size_t b = 0; b < 4; b++) {
    EXPECT_GT(wide[b].within, narrow[b].within);
    EXPECT_GT(narrow[b].within, narrow[b].between);
    EXPECT_LT(wide[b].within, 1);
    if (b > 0) {
      EXPECT_GT(narrow[b].within, narrow[b - 1].within);
    }
  }
}

// A sequence of equal tokens is one choice: two of four experts, which lie with one rank of two in a third of
// all cases (load 2) and else with both (1).
TEST(UntrainedRouter, EqualTokensChooseAlike) {
  const UntrainedLoad l = untrained_load(routers(128, 1, 64, 1), 1);
  EXPECT_NEAR(l.mean, 4.0 / 3, 0.1);
  EXPECT_EQ(l.low, 1);
  EXPECT_NEAR(l.high, 2, 1e-9);
}

TEST(UntrainedRouter, ManyTokensOfNothingInCommonAreBalanced) {
  RunSpec r = routers(64, 1, 64, 8);
  r.model.init_std = 1e-6;  // attention hands on nothing
  const UntrainedLoad l = untrained_load(r, 0);
  EXPECT_LT(l.mean, 1.03);
  EXPECT_GE(l.low, 1);
  r.layout.ep = 1;
  EXPECT_EQ(untrained_load(r, 0).mean, 1);
}

TEST(UntrainedRouter, ForecastsTakeItWhereTheyAreAskedTo) {
  RunSpec r = resolve(routers(128, 2, 64, 1), {});
  const Forecast balanced = forecast(r, schedule_of(r), {}, 1);
  EXPECT_FALSE(balanced.untrained);
  r.layout.ep_load = ExpertLoad::of_untrained();
  const Forecast f = forecast(r, schedule_of(r), {}, 1);
  ASSERT_TRUE(f.untrained);
  EXPECT_EQ(f.untrained->mean, untrained_load(r, token_repeat(r)).mean);
  EXPECT_EQ(f.booking.total.flops, balanced.booking.total.flops);  // what is booked is of shapes alone
  EXPECT_EQ(parse_run(save_run(r), "again").layout.ep_load, r.layout.ep_load);
}

}  // namespace
}  // namespace trireme::test
