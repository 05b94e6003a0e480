// Launches that are kept from step to step (device/replay.h) change nothing: the same run to the bit, with
// the same bytes and counts.
#include <fmt/ranges.h>

#include "checks.h"
#include "device/device.h"

namespace trireme::parity {
namespace {

class Graphs : public testing::TestWithParam<const char*> {};

TEST_P(Graphs, EqualLaunchesOneByOneToTheBit) {
  SCOPED_TRACE(GetParam());
  const RunSpec run = run_of(from_text(GetParam()));
  ASSERT_TRUE(problems_of(run).empty());
  const Ran one_by_one = train_layout(run, {.far = true}),
            kept = train_layout(run, {.graphs = true, .far = true});
  expect_identical(kept, one_by_one);
  for (size_t r = 0; r < kept.ranks.size(); r++) {
    const RankFacts &a = kept.ranks[r], &b = one_by_one.ranks[r];
    EXPECT_EQ(a.state_hash, b.state_hash) << r;
    EXPECT_EQ(a.peaks, b.peaks) << r;
    EXPECT_EQ(a.launches, b.launches) << r;
    EXPECT_EQ(a.cost, b.cost) << r;
    EXPECT_FALSE(b.replayed);
    ASSERT_TRUE(a.replayed);
    EXPECT_EQ(a.replayed->refused, "");
    EXPECT_EQ(a.replayed->given_up, 0) << r;
    // Most of what comes again is kept, dropout's draws and what a router sends here apart.
    EXPECT_GT(a.replayed->launches, 0) << r;
    EXPECT_GT(a.replayed->replayed, a.replayed->launches / 3) << r << ": " << replay_text(*a.replayed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Graphs,
    testing::Values("layers=3", "arch=gpt2 dropout=0.2 microbatches=3",
                    "compute=bf16 arch=qwen3 microbatches=4", "compute=f16 tied=1 scale=4194304",
                    "separate=1 microbatches=2", "recompute=full arch=gpt2 dropout=0.2 microbatches=2",
                    "recompute=selective again=n1+qkv+mid arch=qwen3 microbatches=2",
                    "dp=3 zero=1 microbatches=2", "dp=2 zero=3 microbatches=2 compute=bf16",
                    "tp=3 heads=3 kv_heads=3", "tp=2 sequence=1 heads=4 kv_heads=2 hidden=32 seq=24 chunks=2",
                    "cp=3 seq=24", "cp=2 method=ulysses heads=4 kv_heads=4 seq=22 hidden=32 dropout=0.1",
                    "arch=mixtral aux=0.1 microbatches=2",
                    "dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 microbatches=2 aux=0.01",
                    "pp=2 layers=4 microbatches=4", "pp=3 layers=4 microbatches=4 schedule=gpipe",
                    "pp=2 stages=2 layers=5 microbatches=4 schedule=zb-v recompute=full",
                    "pp=2 microbatches=3 schedule=dualpipe tied=1 arch=gpt2 dropout=0.2",
                    "pp=2 microbatches=4 schedule=zb-h1 post=always",
                    "fp8=delayed compute=bf16 microbatches=2", "optimizer=muon dp=2 zero=1"));

// What has other arguments each step, and what has not.
TEST(Graphs, LeaveOutWhatChanges) {
  const Ran plain = train_layout(run_of(from_text("layers=2")), {.steps = 6, .graphs = true, .far = true});
  // Its scale is one over the batch's targets, some of which are left out.
  EXPECT_EQ(plain.ranks[0].replayed->left_out, "cross_entropy 1");
  const Ran drops =
      train_layout(run_of(from_text("arch=gpt2 dropout=0.2")), {.steps = 6, .graphs = true, .far = true});
  const std::string& left = drops.ranks[0].replayed->left_out;
  EXPECT_NE(left.find("dropout"), left.npos) << left;
  EXPECT_NE(left.find("attention"), left.npos) << left;
  EXPECT_EQ(left.find("matmul"), left.npos) << left;
}

// Microbatches that find the same places free are one graph: of the first, which writes gradients, of the
// others, which add to them.
TEST(Graphs, AreSharedByMicrobatches) {
  auto made = [](const char* text) {
    return train_layout(run_of(from_text(text)), {.steps = 4, .graphs = true, .far = true})
        .ranks[0]
        .replayed->graphs;
  };
  EXPECT_EQ(made("microbatches=6"), made("microbatches=3"));
}

}  // namespace
}  // namespace trireme::parity
