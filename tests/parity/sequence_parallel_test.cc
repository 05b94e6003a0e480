// Sequence parallelism beside tensor parallelism: what acts on each row alone may be given any rows.
#include "checks.h"
#include "cost/activations.h"

namespace trireme::parity {
namespace {

class SequenceParallel : public testing::TestWithParam<const char*> {};

// One rank is the measure. And without sequence parallelism the very same losses at equal weights: a
// reduce_scatter adds as the all_reduce does, and rows pass norms and dropout as before.
TEST_P(SequenceParallel, TrainsTheModelOfOneRank) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  expect_learned(expect_bounded_losses(c).one);
  const Ran layout = expect_bounded_gradients(c).layout;
  c.sequence = false, c.chunks = 1;
  if (from_text(GetParam()).chunks > 1) return;  // fewer rows at a time: another kernel adds in another order
  EXPECT_EQ(layout.losses, train_layout(run_of(c), {.steps = 3, .gradients = true}).losses);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SequenceParallel,
    testing::Values(
        "sequence=1 tp=2 heads=6 kv_heads=2 seq=22",
        "sequence=1 tp=3 arch=gpt2 tied=1 vocab=67 dropout=0.2 seq=15 micro=3",
        "sequence=1 tp=4 dp=2 zero=3 heads=4 kv_heads=2 hidden=40 arch=qwen3 seq=12 microbatches=2",
        "sequence=1 tp=2 dp=2 zero=1 heads=2 arch=qwen2 seq=14 dropout=0.1",
        "sequence=1 tp=3 chunks=2 seq=21", "sequence=1 tp=2 latent=2 heads=4 seq=22 dropout=0.1",
        "sequence=1 tp=3 latent=1 seq=15 dp=2 zero=2", "sequence=1 tp=4 latent=2 heads=4 seq=12 chunks=3"));

// In low precision: gradients and whole runs no further from f32's than one rank's by half, and at equal
// weights the losses of the same layout without sequence parallelism.
TEST(SequenceParallelLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"sequence=1 tp=2 heads=6 kv_heads=2 seq=22 compute=bf16",
        "sequence=1 tp=3 arch=gpt2 tied=1 vocab=67 dropout=0.2 seq=15 micro=3 compute=bf16 grads=bf16",
        "sequence=1 tp=4 dp=2 zero=3 heads=4 hidden=40 arch=qwen3 seq=12 compute=f16",
        "sequence=1 tp=2 latent=2 heads=4 seq=22 compute=bf16"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    expect_low_bounded(c);
    const Plan equal{.steps = 3, .gradients = true};
    const Ran rows = train_layout(run_of(c), equal);
    c.sequence = false;
    EXPECT_EQ(rows.losses, train_layout(run_of(c), equal).losses);
  }
}

TEST(SequenceParallelLow, WholeRunsStrayFromF32NoFurtherThanOneRanksByHalf) {
  for (const char* text : {"sequence=1 tp=2 heads=6 kv_heads=2 seq=22 compute=bf16",
                           "sequence=1 tp=4 heads=4 hidden=40 arch=qwen3 seq=12 compute=bf16 grads=bf16"}) {
    SCOPED_TRACE(text);
    expect_low_runs_bounded(from_text(text));
  }
}

// What a block keeps of a microbatch, to the byte: the difference that one more block makes.
TEST(SequenceParallelMemory, SavedActivationsAreTheClosedForm) {
  for (const char* text :
       {"tp=1 heads=4 hidden=64", "tp=4 heads=4 kv_heads=2 hidden=64", "tp=4 heads=4 hidden=64 sequence=1",
        "tp=2 arch=gpt2 heads=4 hidden=64 sequence=1 compute=bf16",
        "tp=2 arch=gpt2 heads=4 hidden=64 compute=bf16",
        "tp=4 arch=qwen3 heads=8 kv_heads=4 hidden=64 sequence=1 compute=bf16",
        "tp=2 latent=1 heads=4 hidden=64", "tp=4 latent=2 heads=8 hidden=64 sequence=1 compute=bf16"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    c.seq = 64, c.micro = 2;  // so that no tensor ends inside a line
    const RunSpec run = run_of(c);
    const Ran two = train_layout(run, {.steps = 1});
    c.layers++;
    const Ran three = train_layout(run_of(c), {.steps = 1});
    const int64_t want =
        block_activation_bytes(run.model, {.rows = c.micro * c.seq,
                                           .bytes = size_of(dtype_from_name(run.precision.compute)),
                                           .tp = c.tp,
                                           .sequence = c.sequence});
    for (size_t r = 0; r < two.ranks.size(); r++) EXPECT_EQ(three.ranks[r].saved - two.ranks[r].saved, want);
  }
}

// reduce_scatter and all_gather in place of each all_reduce, and inputs gathered again for their weights.
TEST(SequenceParallelCalls, HalvesInPlaceOfAllReduces) {
  const Case c = from_text("tp=2 sequence=1 heads=2 layers=3 microbatches=2 seq=22");
  const Ran ran = train_layout(run_of(c), {.steps = 1});
  const std::string a = std::to_string(c.micro * c.seq * c.hidden);
  EXPECT_EQ(calls_of(ran, "reduce_scatter " + a), c.microbatches * (4 * c.layers + 2));
  EXPECT_EQ(calls_of(ran, "all_gather " + a), c.microbatches * (6 * c.layers + 2));
  EXPECT_EQ(calls_of(ran, "all_reduce " + a), 0);
}

}  // namespace
}  // namespace trireme::parity
