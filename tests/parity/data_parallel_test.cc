// Data parallelism, ZeRO 0-3 and hybrid sharding against one rank and against each other.
#include "checks.h"

namespace trireme::parity {
namespace {

class Zero : public testing::TestWithParam<const char*> {};

// 0 = 1 and 2 = 3 always, all four when a step has one microbatch: losses, norms, weights, moments, to the
// bit.
TEST_P(Zero, StagesAreBitIdentical) {
  Case c = from_text(GetParam());
  std::vector<Ran> ran;
  for (int64_t zero = 0; zero <= 3; zero++) {
    c.zero = zero;
    ran.push_back(train_layout(run_of(c), {}));
    expect_learned(ran.back());
  }
  SCOPED_TRACE(to_text(c));
  expect_identical(ran[0], ran[1]);
  expect_identical(ran[2], ran[3]);
  if (c.microbatches == 1) expect_identical(ran[0], ran[3]);
  // Weights that stay gathered, fewer or more of them ahead, other buckets: nothing but when things happen.
  c.reshard = false, c.prefetch = 3;
  expect_identical(train_layout(run_of(c), {}), ran[3]);
  c.reshard = true, c.last = false, c.prefetch = 1;
  expect_identical(train_layout(run_of(c), {}), ran[3]);
  c = from_text(GetParam());
  c.bucket_mb = 0.01;
  expect_identical(train_layout(run_of(c), {}), ran[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Zero,
    testing::Values("dp=2 microbatches=2", "dp=3 compute=bf16 grads=bf16 moments=bf16",
                    "dp=3 compute=bf16 microbatches=2 arch=gpt2 tied=1 layers=1",
                    "dp=3 optimizer=muon compute=bf16 hidden=42", "dp=3 arch=mixtral microbatches=2",
                    "dp=2 arch=deepseek_v3 microbatches=2",
                    "dp=4 microbatches=1 micro=1 arch=qwen3 tied=1 hidden=33 vocab=127 seq=17"));

// dp ranks of m microbatches against one rank of dp m: bounded.
class AgainstOneRank : public testing::TestWithParam<const char*> {};

TEST_P(AgainstOneRank, F32IsBounded) {
  SCOPED_TRACE(GetParam());
  expect_bounded(from_text(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Layouts, AgainstOneRank,
                         testing::Values("dp=2 microbatches=3", "dp=3 zero=1 arch=gpt2 tied=1 micro=1",
                                         "dp=3 zero=2 microbatches=2 arch=qwen2",
                                         "dp=3 arch=mixtral optimizer=muon zero=3", "dp=4 zero=3 vocab=67",
                                         "dp=4 arch=deepseek_v2 zero=3 layers=3",
                                         "dp=3 arch=deepseek_v3 zero=2", "dp=4 zero=3 group=2 microbatches=2",
                                         "dp=4 zero=1 group=2 hidden=66", "dp=4 zero=2 group=1",
                                         "dp=4 zero=3 group=2 optimizer=muon",
                                         "dp=3 schedule=gpipe microbatches=2 zero=3",
                                         "dp=3 zero=2 order=ring microbatches=2", "dp=4 order=halving",
                                         "dp=4 zero=3 order=hierarchical", "dp=4 zero=1 group=2 order=ring",
                                         "dp=2 dropout=0.2 zero=2 microbatches=2"));

// Low precision: how far gradients are from f32's on the same weights, next to the one-rank run in that
// precision.
TEST(LowPrecision, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"dp=2 compute=bf16 grads=bf16", "dp=4 compute=bf16 microbatches=2 zero=2", "dp=3 compute=f16 zero=3",
        "dp=4 zero=3 group=2 compute=bf16 grads=bf16", "dp=3 compute=bf16 reduce=f32"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

// The same where errors may add up: whole runs, the losses of every step and the weights at the end.
TEST(LowPrecision, WholeRunsStrayFromF32NoFurtherThanOneRanksByHalf) {
  for (const char* text :
       {"dp=3 compute=bf16 grads=bf16", "dp=4 zero=2 compute=bf16 microbatches=2 arch=gpt2 tied=1",
        "dp=3 zero=3 compute=bf16 grads=bf16 micro=3"}) {
    SCOPED_TRACE(text);
    expect_low_runs_bounded(from_text(text));
  }
}

// At equal weights the reported loss does not know how many ranks there are, and the gradient norm by no more
// than the roundings of gradients.
TEST(Loss, IsTheSameNumberOnEveryLayout) {
  const Plan equal{.steps = 3, .gradients = true};
  const Case c = from_text("micro=1 microbatches=12");
  const Ran want = train_layout(run_of(c), equal);
  for (int64_t dp : {2, 3, 4})
    for (int64_t zero : {0, 3}) {
      Case d = c;
      d.dp = dp, d.zero = zero, d.microbatches = 12 / dp;
      const Ran got = train_layout(run_of(d), equal);
      EXPECT_EQ(got.losses, want.losses) << to_text(d);
      ASSERT_EQ(got.norms.size(), want.norms.size());
      for (size_t s = 0; s < want.norms.size(); s++)
        EXPECT_NEAR(got.norms[s] / want.norms[s], 1, 1e-6) << to_text(d);
    }
}

// The sum over ranks of what they count, against what was announced.
TEST(Loss, TargetsThatWereNotAnnouncedEndTheRun) {
  for (const char* text : {"dp=1", "dp=3 zero=3"}) {
    try {
      train_layout(run_of(from_text(text)), {.steps = 1, .announce_more = 1});
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("target tokens where"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace trireme::parity
