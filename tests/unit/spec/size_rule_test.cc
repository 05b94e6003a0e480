// batch.global, train.steps and optimizer.warmup = "auto": numbers by the rules, given numbers, refusals.
#include "spec/size_rule.h"

#include <cmath>

#include "run_text.h"
#include "spec/batch_ramp.h"
#include "spec/parameters.h"

namespace trireme {
namespace {
using testing::parse;
using testing::wrong;

TEST(SizeRule, TokensAndBatchByTheFormulas) {
  const RunSpec run = parse("");
  const double n = double(parameters(run.model)), tokens = 20 * n;
  EXPECT_EQ(tokens_by_rule(run.model), tokens);
  const double batch = 0.58 * std::pow(tokens, 0.571);
  // The nearest power of two.
  EXPECT_LE(std::abs(std::log2(double(run.batch.global * 256) / batch)), 0.5);
  EXPECT_EQ(run.batch.global & (run.batch.global - 1), 0);
  EXPECT_EQ(run.batch.micro, 8);
  EXPECT_GE(double(run.train.steps * run.batch.global * 256), tokens);
  EXPECT_LT(double((run.train.steps - 1) * run.batch.global * 256), tokens);
  EXPECT_EQ(run.optimizer.warmup, run.train.steps / 10);
}

TEST(SizeRule, GivenStepsDecideTheBatch) {
  for (const int steps : {1, 20, 1000, 100000}) {
    const RunSpec run = parse("", {fmt::format("train.steps={}", steps)});
    const double tokens = double(run.train.steps) * double(run.batch.global) * 256;
    EXPECT_EQ(run.train.steps, steps);
    // A fixed point of the rule, except for rounding to a power of two and to one sequence at least.
    if (run.batch.global > 1) {
      EXPECT_LE(std::abs(std::log2(double(run.batch.global * 256) / batch_tokens_by_rule(tokens))), 0.5)
          << steps;
    }
    EXPECT_EQ(run.optimizer.warmup, std::min(steps / 10, 2000));
    EXPECT_EQ(run.batch.global % run.batch.micro, 0);
  }
}

TEST(SizeRule, TheBatchFitsTheLayout) {
  for (const char* set : {"layout.dp=3", "layout.dp=5", "layout.pp=3", "batch.micro=7", "batch.micro=1000"}) {
    const RunSpec run = parse("", {set});
    EXPECT_EQ(run.batch.global % (run.layout.dp * run.layout.pp * run.batch.micro), 0) << set;
  }
  EXPECT_EQ(parse("", {"batch.micro=1000"}).batch.global, 1000);
  // The microbatch divides every stage of a ramp.
  EXPECT_EQ(parse("", {"batch.ramp=[[6, 10]]", "train.steps=1000"}).batch.micro, 2);
  // The batch is not below a ramp.
  EXPECT_EQ(parse("", {"batch.ramp=[[6, 3], [900, 10]]", "train.steps=20"}).batch.global, 900);
  // One sequence for each rank at least.
  EXPECT_EQ(parse("", {"layout.dp=7", "train.steps=1"}).batch.global, 7);
}

TEST(SizeRule, GivenNumbersStay) {
  const RunSpec run = parse("", {"batch.global=12", "batch.micro=4", "train.steps=77", "optimizer.warmup=3"});
  EXPECT_EQ(run.batch.global, 12);
  EXPECT_EQ(run.batch.micro, 4);
  EXPECT_EQ(run.train.steps, 77);
  EXPECT_EQ(run.optimizer.warmup, 3);
  // The words are the defaults.
  EXPECT_TRUE(parse("", {"batch.global=auto", "train.steps=auto", "optimizer.warmup=auto"}) == parse(""));
  // A batch that is given, and steps by the rule.
  EXPECT_NEAR(double(parse("", {"batch.global=12", "batch.micro=4"}).train.steps) * 12 * 256,
              tokens_by_rule(run.model), 12 * 256);
  // Written as numbers, read back as such.
  EXPECT_TRUE(parse(save_run(run)) == run);
  EXPECT_TRUE(parse(save_changed(parse(""))) == parse(""));
}

TEST(SizeRule, StepsHaveTheTokensOfTheirRamp) {
  const RunSpec run = parse("", {"batch.ramp=[[8, 100], [16, 300]]", "batch.global=32", "model.layers=1"});
  const double wanted = tokens_by_rule(run.model) / 256;
  EXPECT_GE(double(samples_until(run.batch, run.train.steps)), wanted);
  EXPECT_LT(double(samples_until(run.batch, run.train.steps - 1)), wanted);
  // Steps that end within a stage, and stages that a bad ramp has in a wrong order.
  const BatchSpec batch = {.global = 32, .ramp = {{.value = 8, .until = 100}, {.value = 16, .until = 300}}};
  EXPECT_EQ(steps_for(batch, 80), 10);
  EXPECT_EQ(steps_for(batch, 801), 101);
  EXPECT_EQ(steps_for(batch, 800 + 3200 + 33), 302);
}

TEST(SizeRule, TheMicrobatchSuitsOtherKeys) {
  // The noise scale compares parts of a batch.
  EXPECT_EQ(parse("", {"train.steps=500"}).batch.micro, 4);
  EXPECT_EQ(parse("", {"train.steps=500"}).batch.global, 4);
  EXPECT_EQ(parse("", {"train.steps=500", "train.noise_scale=1"}).batch.micro, 2);
  EXPECT_EQ(wrong("[layout]\ndp = 3\npp = 2\n[batch]\nglobal = 126\nramp = [[21, 3]]\nmicro = 1"), "");
  EXPECT_EQ(parse("", {"layout.dp=3", "layout.pp=2", "batch.ramp=[[21, 3]]"}).batch.micro, 1);
  // The table of all keys names no microbatch, so that it stays the default.
  EXPECT_TRUE(parse(config_table(), {"train.steps=20"}) == parse("", {"train.steps=20"}));
}

TEST(SizeRule, ExpertsCountAsFarAsTheyAreVisited) {
  const RunSpec dense = parse("", {"model.layers=2"}),
                sparse = parse("", {"model.layers=2", "model.experts=64"});
  EXPECT_LT(tokens_by_rule(sparse.model), 3 * tokens_by_rule(dense.model));
  EXPECT_GT(parameters(sparse.model), 5 * parameters(dense.model));
}

TEST(SizeRule, RefusesOtherWords) {
  EXPECT_HAS(wrong("[batch]\nglobal = \"automatic\""), "batch.global: \"automatic\" is a string");
  EXPECT_HAS(wrong("[train]\nsteps = -1"), "train.steps: -1 is out of range");
  EXPECT_HAS(wrong("[batch]\nglobal = -1"), "batch.global: -1 is out of range");
  EXPECT_HAS(wrong("[train]\nseed = \"auto\""), "train.seed: \"auto\" is a string");
}

}  // namespace
}  // namespace trireme
