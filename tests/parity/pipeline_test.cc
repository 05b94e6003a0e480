// Pipelines against one stage: the same numbers to the bit, because weight gradients are added in the same
// order (DESIGN.md section 4).
#include "checks.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

class Pipelines : public testing::TestWithParam<const char*> {};

TEST_P(Pipelines, EqualOneStageToTheBit) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const Ran piped = train_layout(run_of(c), {});
  expect_learned(piped);
  for (const RankFacts& r : piped.ranks) {
    EXPECT_EQ(r.left_over, 0);
    EXPECT_EQ(r.moved, r.counted);
    EXPECT_LE(r.high_water, piped.booking.arena_bytes);
  }
  c.pp = c.stages = 1, c.schedule = "1f1b";
  expect_identical(piped, train_layout(run_of(c), {}));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Pipelines,
    testing::Values(
        "pp=2 microbatches=4", "pp=2 microbatches=1 arch=gpt2", "pp=3 layers=5 microbatches=4",
        "pp=4 layers=4 microbatches=6 schedule=gpipe compute=bf16 micro=1",
        "pp=2 microbatches=3 compute=bf16 grads=bf16 arch=qwen3 dropout=0.2",
        "pp=2 dp=2 zero=1 microbatches=3", "pp=2 dp=2 zero=2 microbatches=2 schedule=gpipe",
        "pp=2 dp=2 zero=3 microbatches=3 compute=bf16", "pp=2 dp=2 zero=3 reshard=0 microbatches=2",
        "pp=2 tp=2 heads=4 kv_heads=2 hidden=32 microbatches=2",
        "pp=2 tp=2 sequence=1 heads=4 kv_heads=2 hidden=32 microbatches=3 seq=24",
        "pp=2 cp=2 seq=24 microbatches=2", "pp=2 compute=f16 microbatches=2",
        "pp=2 arch=deepseek_v2 layers=3 microbatches=2", "pp=3 layers=3 arch=mixtral microbatches=3 aux=0.01",
        "pp=2 stages=2 layers=4 microbatches=4 schedule=interleaved",
        "pp=3 stages=2 layers=7 microbatches=6 schedule=interleaved dp=2 zero=1",
        "pp=2 stages=3 layers=6 microbatches=4 schedule=interleaved dp=2 zero=3",
        "pp=3 layers=3 microbatches=5 schedule=zb-h1", "pp=3 layers=3 microbatches=7 schedule=zb-h2",
        "pp=2 dp=2 zero=3 microbatches=4 schedule=zb-h1 compute=bf16",
        "pp=3 stages=2 layers=6 microbatches=7 schedule=zb-v",
        "pp=2 stages=2 layers=5 microbatches=5 schedule=v-half dp=2 zero=2",
        "pp=3 stages=2 layers=6 microbatches=6 schedule=v-min",
        "pp=2 stages=2 layers=4 microbatches=6 schedule=dualpipe-v",
        "pp=3 layers=5 microbatches=6 schedule=auto", "pp=2 dp=2 zero=3 microbatches=4 schedule=auto",
        "pp=4 layers=6 microbatches=5 schedule=auto tp=1 compute=bf16",
        "pp=2 cp=2 seq=24 microbatches=3 schedule=auto",
        "pp=2 dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 microbatches=2 aux=0.01",
        "pp=2 microbatches=3 optimizer=muon", "pp=3 layers=3 microbatches=5 schedule=zb-h1 optimizer=muon",
        "pp=2 dp=2 tp=2 heads=2 zero=1 microbatches=2 optimizer=muon"));

// Schedules of one's own: odd mixtures of B with I and W, stages on ranks in any order, overlaps.
struct Own {
  const char *layout, *text;
};
class OwnSchedules : public testing::TestWithParam<Own> {};

TEST_P(OwnSchedules, EqualOneStageToTheBit) {
  Case c = from_text(GetParam().layout);
  SCOPED_TRACE(GetParam().text);
  RunSpec run = run_of(c);
  run.layout.schedule = "file", run.layout.schedule_file = "own.txt";
  set_own_schedule(run, parse_schedule(GetParam().text), "own.txt");
  const Ran piped = train_layout(run, {});
  for (size_t r = 0; r < piped.ranks.size(); r++) {
    EXPECT_EQ(piped.ranks[r].left_over, 0);
    const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh_of(run.layout).coord(int(r), Axis::pp));
    EXPECT_EQ(piped.ranks[r].peaks, b.peak) << r;
  }
  c.pp = c.stages = 1;
  expect_identical(piped, train_layout(run_of(c), {}));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OwnSchedules,
    testing::Values(Own{"pp=2 microbatches=3",
                        "0F0 0F1 0I0 0F2 0W0 0B1 0I2 0W2\n1F0 1B0 1F1 1I1 1F2 1W1 1B2"},
                    Own{"pp=3 layers=3 microbatches=3",
                        "0F0 0F1 0F2 0I0 0I1 0W0 0W1 0B2\n1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2\n"
                        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2"},
                    Own{"pp=2 layers=2 dp=2 zero=2 microbatches=2",
                        "1F0 1B0 1F1 1B1  # the last stage is on the first rank\n0F0 0F1 0B0 0B1"},
                    Own{"pp=2 stages=2 layers=4 microbatches=2 compute=bf16",
                        "0F0 0F1 2F0 2F1@1 2B0@1 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3I1 1B0 3W1 1B1"}));

// A tied table's gradient is the sum of two stages' sums.
class TiedPipelines : public testing::TestWithParam<const char*> {};

TEST_P(TiedPipelines, AreBounded) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const Ran ran = expect_bounded(c).layout;
  // When stages run changes nothing.
  if (c.stages > 1) return;  // where both are on one rank, their summands come in another order
  c.schedule = "gpipe";
  expect_identical(train_layout(run_of(c), {}), ran);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TiedPipelines,
    testing::Values("pp=2 tied=1 microbatches=3",
                    "pp=2 tied=1 stages=2 layers=4 microbatches=4 schedule=zb-v",
                    "pp=2 tied=1 stages=2 layers=4 microbatches=4 schedule=interleaved dp=2 zero=3",
                    "pp=3 tied=1 layers=3 arch=gpt2 microbatches=4",
                    "pp=2 tied=1 dp=2 zero=2 arch=qwen3 microbatches=2",
                    "pp=3 tied=1 layers=4 dp=2 zero=3 microbatches=2 vocab=127",
                    "pp=2 tied=1 tp=2 heads=4 kv_heads=2 hidden=32 microbatches=2"));

// Every rank's peaks are those that its stage has on meta.
TEST(Pipelines, MemoryIsAsBooked) {
  for (const char* text :
       {"pp=3 layers=5 microbatches=5", "pp=2 dp=2 zero=3 microbatches=3 compute=bf16",
        "pp=4 layers=4 microbatches=4 schedule=gpipe", "pp=3 layers=3 microbatches=6 schedule=zb-h1",
        "pp=2 stages=2 layers=4 microbatches=5 schedule=zb-v",
        "pp=2 stages=2 layers=5 dp=2 zero=3 microbatches=4 schedule=interleaved",
        "pp=3 layers=3 tied=1 dp=2 zero=2 microbatches=2"}) {
    SCOPED_TRACE(text);
    const RunSpec run = run_of(from_text(text));
    const Ran ran = train_layout(run, {.steps = 3});
    const Mesh mesh = mesh_of(run.layout);
    for (size_t r = 0; r < ran.ranks.size(); r++) {
      const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh.coord(int(r), Axis::pp));
      EXPECT_EQ(ran.ranks[r].peaks, b.peak) << r;
      EXPECT_EQ(ran.ranks[r].peak_total, b.peak_total) << r;
      EXPECT_EQ(ran.ranks[r].comm, b.comm) << r;
    }
  }
}

}  // namespace
}  // namespace trireme::parity
