// Linear layers in 8-bit floats under every layout: where a layout gives the bits of another, it does so
// still; where it is bounded, it is no further from f32 than one rank in 8 bits (docs/fp8.md).
#include "checks.h"
#include "sanitized.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

const int64_t kFew = test::kSanitized ? 3 : 8;

// In the memory that meta booked.
Ran trained(const Case& c) {
  const RunSpec run = run_of(c);
  EXPECT_TRUE(problems_of(run).empty());
  Ran ran = train_layout(run, {.steps = kFew});
  for (const RankFacts& r : ran.ranks) {
    EXPECT_EQ(r.left_over, 0);
    EXPECT_EQ(r.moved, r.counted);
    EXPECT_LE(r.high_water, ran.booking.arena_bytes);
  }
  EXPECT_EQ(ran.ranks[0].peaks, c.pp == 1 ? ran.booking.peak : ran.ranks[0].peaks);
  return ran;
}

TEST(Fp8Pipelines, EqualOneStageToTheBit) {
  for (const char* text : {"fp8=delayed pp=3 layers=4 microbatches=4 compute=bf16",
                           "fp8=block pp=2 microbatches=3 schedule=zb-h1 compute=bf16 arch=gpt2 dropout=0.2",
                           "fp8=delayed pp=2 dp=2 zero=3 layers=3 microbatches=3 compute=bf16",
                           "fp8=current pp=2 stages=2 layers=5 microbatches=4 schedule=zb-v"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran piped = trained(c);
    c.pp = c.stages = 1, c.schedule = "1f1b";
    expect_identical(piped, trained(c));
  }
}

TEST(Fp8Zero, StagesAreBitIdentical) {
  for (const char* text :
       {"fp8=delayed dp=3 compute=bf16 vocab=509", "fp8=block dp=2 compute=bf16",
        "fp8=current dp=4 arch=gpt2 micro=1", "fp8=delayed tp=2 dp=2 heads=2 compute=bf16"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran first = trained(c);
    for (c.zero = 1; c.zero <= 3; c.zero++) expect_identical(trained(c), first);
  }
}

TEST(Fp8Recompute, EqualsWhatWasKeptToTheBit) {
  for (const char* text :
       {"fp8=delayed recompute=full compute=bf16 layers=3 microbatches=2",
        "fp8=block recompute=selective again=n1+qkv+n2+u+a compute=bf16 arch=qwen3",
        "fp8=current recompute=full dp=3 zero=3 offload=1", "fp8=delayed recompute=selective tp=2 heads=2"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran again = trained(c);
    c.recompute = "none", c.offload = false;
    expect_identical(again, trained(c));
  }
}

// At equal weights, where only what was seen can move a scale: the losses of one rank to the bit, for the
// largest magnitude of all replicas' microbatches is that of one rank's.
TEST(Fp8Delayed, ReplicasHaveTheScalesOfOneRank) {
  for (const char* text : {"fp8=delayed dp=3 microbatches=2 micro=1 compute=bf16 grads=f32",
                           "fp8=delayed dp=4 zero=3 micro=1 arch=gpt2"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const Plan equal{.steps = kFew, .gradients = true};
    EXPECT_EQ(train_layout(run_of(c), equal).losses, train_layout(one_rank_of(c), equal).losses);
  }
}

// Nor do two copies of a stage, each of which sees half of the microbatches.
TEST(Fp8Delayed, CopiesHaveTheScalesOfOneRank) {
  for (const char* text : {"fp8=delayed pp=2 microbatches=4 schedule=dualpipe compute=bf16 grads=f32",
                           "fp8=delayed pp=2 dp=2 zero=2 micro=1 microbatches=3 schedule=dualpipe"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const Plan equal{.steps = kFew, .gradients = true};
    EXPECT_EQ(train_layout(run_of(c), equal).losses, train_layout(one_rank_of(c), equal).losses);
  }
}

// Gradients at equal weights: no further from f32's than one rank's in 8 bits, by half.
TEST(Fp8Low, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"fp8=delayed dp=3 microbatches=2 compute=bf16", "fp8=block dp=2 zero=2 microbatches=2 compute=bf16",
        "fp8=delayed tp=3 arch=gpt2 vocab=67 compute=bf16",
        "fp8=current tp=2 heads=6 kv_heads=2 compute=bf16",
        "fp8=block tp=4 heads=4 kv_heads=2 hidden=40 micro=1 seq=17 compute=bf16",
        "fp8=delayed tp=2 sequence=1 heads=4 kv_heads=2 hidden=32 seq=24 compute=bf16",
        "fp8=current tp=2 chunks=3 latent=2 heads=4", "fp8=delayed cp=3 seq=24 compute=bf16",
        "fp8=block cp=2 method=ulysses heads=4 kv_heads=4 seq=22 hidden=32 compute=bf16"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

// Experts stay in the compute type; what is dense beside them does not.
TEST(Fp8Experts, TrainBesideThem) {
  for (const char* text : {"fp8=delayed dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 aux=0.01 compute=f32",
                           "fp8=block arch=deepseek_v3 layers=2 compute=f32"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran eight = train_layout(run_of(c), {.steps = kFew});
    c.fp8 = "none";
    const double apart = loss_difference(eight, train_layout(run_of(c), {.steps = kFew}));
    EXPECT_GT(apart, 0);
    EXPECT_LT(apart, 0.02);
  }
}

}  // namespace
}  // namespace trireme::parity
