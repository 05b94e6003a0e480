// Context parallelism against one rank: what it rests on is that attention over blocks of keys merges by
// logsumexp.
#include "model/context_parallel.h"
#include "checks.h"
#include "mesh/context.h"

namespace trireme::parity {
namespace {

// Losses over all steps, every gradient at equal weights: bounded, at 2, 3 and 4 ranks, in every placement,
// beside dp, tp, sequence parallelism and ZeRO; documents that begin and end in any rank's part.
class ContextParallel : public testing::TestWithParam<const char*> {};

TEST_P(ContextParallel, TrainsTheModelOfOneRank) {
  SCOPED_TRACE(GetParam());
  const Ran ran = expect_bounded(from_text(GetParam())).layout;
  for (const RankFacts& r : ran.ranks) {
    EXPECT_EQ(r.peaks, ran.booking.peak);
    EXPECT_EQ(r.moved, r.counted);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ContextParallel,
                         testing::Values("cp=2 seq=20 placement=zigzag",
                                         "cp=3 seq=21 placement=contiguous arch=gpt2 separate=1",
                                         "cp=4 seq=20 placement=striped arch=qwen3 micro=1 separate=1",
                                         "cp=3 seq=18 dp=2 zero=3 microbatches=2 separate=1",
                                         "cp=4 seq=24 zero=1 microbatches=2 arch=qwen2 tied=1 separate=1",
                                         "cp=2 seq=28 tp=2 heads=2 sequence=1 arch=llama separate=1",
                                         "cp=2 seq=14 method=ulysses heads=4 kv_heads=2 hidden=40",
                                         "cp=3 seq=21 method=ulysses arch=gpt2 separate=1 zero=2 dp=2",
                                         "cp=2 seq=10 method=ulysses tp=2 heads=4 kv_heads=4 hidden=40",
                                         // Whole matrices of ranks that divide them over dp and cp.
                                         "cp=3 seq=18 optimizer=muon zero=2 dp=2",
                                         "cp=2 seq=20 optimizer=muon placement=striped"));

// Keys and values of unequal widths, in both methods.
INSTANTIATE_TEST_SUITE_P(Latent, ContextParallel,
                         testing::Values("cp=2 seq=20 latent=2 separate=1",
                                         "cp=3 seq=21 latent=1 placement=contiguous dropout=0.2",
                                         "cp=4 seq=20 latent=2 placement=striped micro=1 separate=1 zero=3",
                                         "cp=3 seq=21 latent=2 method=ulysses separate=1 dp=2 zero=2",
                                         "cp=2 seq=20 latent=1 method=ulysses tp=2 heads=8 dropout=0.2",
                                         "cp=2 seq=28 tp=2 latent=2 heads=4 sequence=1 separate=1"));

// The masks of one rank: drawn by places in whole sequences, of rows, heads and keys.
INSTANTIATE_TEST_SUITE_P(
    Dropout, ContextParallel,
    testing::Values("cp=2 seq=20 dropout=0.2 arch=gpt2 microbatches=2",
                    "cp=3 seq=21 placement=contiguous dropout=0.3 separate=1",
                    "cp=4 seq=20 placement=striped dropout=0.2 dp=2 zero=3",
                    "cp=2 seq=28 tp=2 heads=4 kv_heads=2 hidden=40 sequence=1 dropout=0.2",
                    "cp=3 seq=18 tp=2 heads=2 sequence=1 dropout=0.2 arch=gpt2",
                    "cp=2 seq=14 method=ulysses dropout=0.3 arch=gpt2 heads=4 hidden=40",
                    "cp=2 seq=10 method=ulysses tp=2 heads=4 kv_heads=4 hidden=40 "
                    "dropout=0.2"));

// The class of DESIGN section 4 holds at any cp: ZeRO stages are bit-identical over dp and cp together.
TEST(ContextParallelZero, StagesAreBitIdentical) {
  for (const char* text : {"cp=2 dp=2 seq=20", "cp=3 seq=21 method=ulysses arch=gpt2"}) {
    SCOPED_TRACE(text);
    expect_zero_stages_identical(from_text(text));
  }
}

// Low precision: how far gradients are from f32's on the same weights, next to one rank in that precision.
TEST(ContextParallelLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"cp=3 seq=42 compute=bf16 grads=bf16 separate=1", "cp=2 seq=26 compute=f16 placement=striped",
        "cp=2 seq=26 compute=bf16 method=ulysses arch=gpt2 heads=2",
        "cp=3 seq=42 compute=bf16 dropout=0.2 placement=striped", "cp=2 seq=28 compute=bf16 latent=2"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

// Keys and values of P - 1 hops in each pass and their gradients of P, in every block and microbatch; of
// Ulysses the shares of others.
TEST(ContextParallelBytes, AreTheClosedForm) {
  for (const char* text : {"cp=3 seq=18 microbatches=2", "cp=4 seq=16 placement=striped compute=bf16",
                           "cp=3 seq=21 method=ulysses arch=gpt2 layers=3", "cp=3 seq=18 latent=2",
                           "cp=3 seq=21 method=ulysses latent=1 compute=bf16"}) {
    const Case c = from_text(text);
    SCOPED_TRACE(text);
    const RunSpec run = run_of(c);
    const Ran ran = train_layout(run, {.steps = 1});
    const ContextBytes each = context_bytes(
        c.method == "ulysses", int(c.cp), c.micro * c.seq / c.cp, run.model.heads, run.model.kv_heads,
        run.model.head_dim, run.model.value_dim(), c.compute == "f32" ? DType::f32 : DType::bf16);
    for (const RankFacts& r : ran.ranks) {
      EXPECT_EQ(r.comm[size_t(Collective::p2p)].wire, each.p2p * c.layers * c.microbatches);
      EXPECT_EQ(r.comm[size_t(Collective::all_to_all)].wire, each.all_to_all * c.layers * c.microbatches);
      EXPECT_EQ(r.moved, r.counted);
    }
    EXPECT_EQ(ran.ranks[0].comm, ran.booking.comm);
  }
}

// What ranks really compute: matrix products are equal, so they differ by attention's pairs, 14 D FLOPs a
// pair and head (4 forward, 10 backward).
TEST(ContextParallelWork, DiffersByThePairsOfThePlacement) {
  for (const char* text : {"cp=3 seq=24 placement=contiguous", "cp=3 seq=24 placement=zigzag",
                           "cp=3 seq=24 placement=striped"}) {
    const Case c = from_text(text);
    SCOPED_TRACE(text);
    const RunSpec run = run_of(c);
    const Ran ran = train_layout(run, {.steps = 1});
    const ContextPlacement placement = context_placement(c.placement);
    auto pairs = [&](int r) { return pairs_of({.size = 3, .rank = r, .placement = placement}, c.seq); };
    // What is added and set to zero around the blocks is counted as one FLOP an element at most.
    const double slack = double(3 * c.layers * c.micro * c.seq * run.model.kv_heads * run.model.head_dim) * 4;
    // Ranks 1 and 2: the first one has most of the gradient norm.
    const double want = double(pairs(2) - pairs(1)) * 14 * double(run.model.head_dim * run.model.heads) *
                        double(c.layers * c.micro);
    EXPECT_NEAR(ran.ranks[2].cost.flops - ran.ranks[1].cost.flops, want, slack);
  }
}

// Activations are of S / P tokens: with twice the ranks and twice the sequence a rank keeps as much.
TEST(ContextParallelMemory, ActivationsAreOfTheRanksTokens) {
  const Ran two = train_layout(run_of(from_text("cp=2 seq=64 micro=1")), {.steps = 1});
  const Ran four = train_layout(run_of(from_text("cp=4 seq=128 micro=1")), {.steps = 1});
  EXPECT_EQ(two.ranks[0].saved, four.ranks[0].saved);
}

}  // namespace
}  // namespace trireme::parity
