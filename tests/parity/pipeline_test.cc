// Pipelines against one stage: the same numbers to the bit, because weight gradients are added in the same
// order (DESIGN.md section 4).
#include "sim/pipeline.h"
#include "checks.h"
#include "forecast/booked_step.h"
#include "schedule/holders.h"
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
        "pp=3 layers=4 microbatches=4 cut=even", "pp=4 layers=2 microbatches=5 cut=even",
        "pp=3 stages=2 layers=4 microbatches=6 schedule=interleaved dp=2 zero=1 cut=even",
        "pp=2 stages=2 layers=2 microbatches=4 schedule=interleaved dp=2 zero=3 cut=even compute=bf16",
        "pp=2 stages=2 layers=2 microbatches=4 schedule=zb-v cut=even dp=2 zero=2",
        "pp=4 layers=2 microbatches=4 schedule=zb-h1 cut=even recompute=full",
        "pp=4 layers=2 arch=mixtral microbatches=4 aux=0.01 dp=2 ep=2 experts=4 zero=3 cut=even",
        "pp=3 layers=2 microbatches=3 schedule=auto cut=even",
        "pp=2 layers=1 microbatches=2 cut=even arch=gpt2", "pp=2 microbatches=3 optimizer=muon",
        "pp=3 layers=3 microbatches=5 schedule=zb-h1 optimizer=muon",
        "pp=2 dp=2 tp=2 heads=2 zero=1 microbatches=2 optimizer=muon"));

// Passes that run by turns have the bits of passes one after the other; each setting has the memory that was
// booked.
class Interleaved : public testing::TestWithParam<const char*> {};

TEST_P(Interleaved, HasTheBitsOfPassesInTurn) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  Ran ran[2];
  for (const bool turns : {false, true}) {
    c.turns = turns;
    const RunSpec run = run_of(c);
    int64_t pairs = 0;
    for (const Program& p : programs_of(run, schedule_of(run)))
      for (const Op& op : p.ops) pairs += op.by_turns > 0;
    EXPECT_EQ(pairs > 0, turns);
    ran[turns] = train_layout(run, {});
    for (size_t r = 0; r < ran[turns].ranks.size(); r++) {
      EXPECT_EQ(ran[turns].ranks[r].left_over, 0);
      const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh_of(run.layout).coord(int(r), Axis::pp));
      EXPECT_EQ(ran[turns].ranks[r].peaks, b.peak) << r;
    }
  }
  expect_identical(ran[true], ran[false]);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Interleaved,
    testing::Values(
        "pp=2 tp=2 stages=2 layers=4 heads=2 microbatches=6 schedule=dualpipe-v",
        "pp=2 tp=2 layers=3 heads=2 sequence=1 seq=24 microbatches=4 schedule=dualpipe recompute=full",
        "pp=2 dp=2 ep=2 stages=2 layers=5 arch=mixtral experts=4 aux=0.3 zero=3 microbatches=6 "
        "schedule=dualpipe-v compute=bf16 tied=1",
        "pp=2 dp=2 ep=2 stages=2 layers=4 arch=mixtral experts=4 buffer=0.4 zero=2 micro=1 microbatches=6 "
        "schedule=dualpipe-v recompute=selective"));

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
                    "pp=2 tied=1 stages=2 layers=2 microbatches=4 schedule=zb-v cut=even dp=2 zero=2",
                    "pp=4 tied=1 layers=2 microbatches=4 cut=even",
                    "pp=2 tied=1 stages=2 layers=4 microbatches=4 schedule=interleaved dp=2 zero=3",
                    "pp=3 tied=1 layers=3 arch=gpt2 microbatches=4",
                    "pp=2 tied=1 dp=2 zero=2 arch=qwen3 microbatches=2",
                    "pp=3 tied=1 layers=4 dp=2 zero=3 microbatches=2 vocab=127",
                    "pp=2 tied=1 tp=2 heads=4 kv_heads=2 hidden=32 microbatches=2"));

// Two ranks have each stage, and each half of its gradient: added in another order than one stage's. What the
// two hold stays equal to the bit.
void expect_copies_alike(const Case& c, const Ran& ran) {
  const RunSpec run = run_of(c);
  const Mesh mesh = mesh_of(run.layout);
  const int pp = int(c.pp);
  for (int r = 0; r < mesh.world(); r++) {
    const RankFacts& facts = ran.ranks[size_t(r)];
    const int stage = mesh.coord(r, Axis::pp);
    for (int other = 0; other < mesh.world(); other++) {
      bool alike = mesh.coord(other, Axis::pp) == pp - 1 - stage;
      for (Axis a : {Axis::dp, Axis::cp, Axis::tp}) alike &= mesh.coord(other, a) == mesh.coord(r, a);
      if (!alike) continue;
      EXPECT_EQ(facts.state_hash, ran.ranks[size_t(other)].state_hash) << r << " " << other;
    }
    const Booking b = book_stage(run, schedule_of(run), 1, {}, stage);
    EXPECT_EQ(facts.peaks, b.peak) << r;
    EXPECT_EQ(facts.peak_total, b.peak_total) << r;
    EXPECT_EQ(facts.comm, b.comm) << r;
    EXPECT_EQ(facts.moved, facts.counted) << r;
    EXPECT_EQ(facts.left_over, 0) << r;
    EXPECT_LE(facts.high_water, ran.booking.arena_bytes) << r;
  }
}

class Copies : public testing::TestWithParam<const char*> {};

TEST_P(Copies, AreBoundedAndStayEqual) {
  const Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const Ran ran = expect_bounded(c).layout;
  expect_learned(ran);
  expect_copies_alike(c, ran);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Copies,
    testing::Values("pp=2 microbatches=4 schedule=dualpipe",
                    "pp=2 microbatches=3 schedule=dualpipe tied=1 arch=gpt2 dropout=0.2",
                    "pp=4 layers=5 micro=1 microbatches=9 schedule=dualpipe",
                    "pp=2 dp=2 zero=1 microbatches=3 schedule=dualpipe",
                    "pp=2 dp=2 zero=3 microbatches=2 schedule=dualpipe tied=1 recompute=full",
                    "pp=2 tp=2 heads=4 kv_heads=2 hidden=32 microbatches=2 schedule=dualpipe",
                    "pp=2 cp=2 seq=24 microbatches=2 schedule=dualpipe",
                    "pp=2 dp=2 zero=1 microbatches=3 schedule=dualpipe tied=1",
                    "pp=2 dp=2 zero=2 microbatches=3 schedule=dualpipe tied=1",
                    "pp=4 layers=4 dp=2 zero=3 micro=1 microbatches=5 schedule=dualpipe tied=1",
                    "pp=2 microbatches=4 schedule=dualpipe optimizer=muon",
                    // Shards in groups, state and inputs that wait in files, computed again in part.
                    "pp=2 dp=4 zero=3 group=2 micro=1 microbatches=2 schedule=dualpipe",
                    "pp=2 dp=4 zero=2 group=2 micro=1 microbatches=3 schedule=dualpipe tied=1",
                    "pp=2 dp=2 zero=1 microbatches=3 schedule=dualpipe state=1",
                    "pp=2 dp=4 zero=3 group=2 micro=1 microbatches=2 schedule=dualpipe state=1 offload=1 "
                    "recompute=full layers=4",
                    "pp=4 layers=6 micro=1 microbatches=7 schedule=dualpipe offload=1 recompute=full"));

// What waits elsewhere, or is divided among fewer, moves no bit beside copies either.
TEST(Copies, EqualThemselvesToTheBitOffloaded) {
  for (const char* text : {"pp=2 dp=2 zero=3 microbatches=3 schedule=dualpipe recompute=full layers=4",
                           "pp=2 microbatches=4 schedule=dualpipe recompute=full layers=5 compute=bf16"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran stayed = train_layout(run_of(c), {});
    c.state = c.offload = true;
    const Ran away = train_layout(run_of(c), {});
    expect_identical(away, stayed);
    expect_copies_alike(c, away);
    c.to = "host";
    expect_identical(train_layout(run_of(c), {.far = true}), stayed);
  }
}

TEST(Copies, AreBoundedInLowPrecision) {
  for (const char* text :
       {"pp=2 microbatches=3 schedule=dualpipe compute=bf16",
        "pp=2 dp=2 zero=2 microbatches=2 schedule=dualpipe compute=bf16 grads=bf16",
        "pp=2 microbatches=2 schedule=dualpipe compute=f16",
        "pp=2 dp=4 zero=3 group=2 micro=1 microbatches=2 schedule=dualpipe compute=bf16 state=1",
        "pp=2 microbatches=3 schedule=dualpipe compute=bf16 fp8=delayed",
        "pp=2 dp=2 zero=2 microbatches=2 schedule=dualpipe compute=bf16 fp8=block",
        "pp=2 dp=2 zero=3 microbatches=2 schedule=dualpipe fp8=current recompute=full"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    expect_low_bounded(c);
    expect_copies_alike(c, train_layout(run_of(c), {.steps = 3}));
  }
}

// Of one's own: a pair that has all stages, and pairs of which each passes microbatches on its own.
TEST(Copies, OfAFile) {
  for (const Own& own :
       {Own{"pp=2 microbatches=2", "copies 2\n0F0 1F0 1B0 0B0\n0F1 1F1 1B1 0B1"},
        Own{"pp=4 stages=1 layers=4 microbatches=2",
            "copies 2\n0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0\n0F1 2F1 2B1 0I1 0W1\n1F1 3F1 3I1 3W1 1B1"}}) {
    SCOPED_TRACE(own.text);
    Case c = from_text(own.layout);
    RunSpec run = run_of(c);
    run.layout.schedule = "file", run.layout.schedule_file = "own.txt";
    set_own_schedule(run, parse_schedule(own.text), "own.txt");
    const Plan equal{.steps = 3, .gradients = true};
    const Ran ran = train_layout(run, equal);
    for (size_t r = 0; r < ran.ranks.size(); r++)
      EXPECT_EQ(ran.ranks[r].peaks, book_stage(run, schedule_of(run), 1, {}, int(r)).peak) << r;
    const Ran one = train_layout(one_rank_of(c), equal);
    EXPECT_LE(gradient_difference(ran, one), 1e-4);
    EXPECT_LE(loss_difference(ran, one), 1e-5);
  }
}

// Weight gradients from the last microbatch to the first: legal, warned of, and another order of the sum.
TEST(OwnSchedules, DescendingWeightGradientsAreBounded) {
  for (const Own& own : {Own{"pp=2 microbatches=3",
                             "0F0 0F1 0F2 0I0 0I1 0I2 0W2 0W1 0W0\n1F0 1I0 1F1 1I1 1F2 1I2 1W2 1W1 1W0"},
                         Own{"pp=2 microbatches=3 dp=2 zero=2",
                             "0F0 0F1 0F2 0I0 0I1 0I2 0W2 0W0 0W1\n1F0 1I0 1F1 1I1 1W1 1F2 1I2 1W2 1W0"}}) {
    SCOPED_TRACE(own.text);
    const Case c = from_text(own.layout);
    RunSpec run = run_of(c);
    run.layout.schedule = "file", run.layout.schedule_file = "own.txt";
    set_own_schedule(run, parse_schedule(own.text), "own.txt");
    EXPECT_EQ(validate(*run.own_schedule.actions).size(), 2u);
    const Plan equal{.steps = 3, .gradients = true};
    const Ran ran = train_layout(run, equal), one = train_layout(one_rank_of(c), equal);
    EXPECT_LE(gradient_difference(ran, one), 1e-4);
    EXPECT_GT(gradient_difference(ran, one), 0);
    EXPECT_LE(loss_difference(ran, one), 1e-5);
  }
}

// What the simulator draws is what ledgers see: of every rank the highest point of its curve, and the
// microbatches that the schedule holds.
TEST(Pipelines, PeaksAreTheSimulators) {
  for (const char* text :
       {"pp=3 layers=6 microbatches=6 schedule=gpipe", "pp=3 layers=6 microbatches=6",
        "pp=2 stages=2 layers=8 microbatches=6 schedule=interleaved",
        "pp=3 layers=6 microbatches=6 schedule=zb-h1", "pp=2 stages=2 layers=8 microbatches=6 schedule=zb-v",
        "pp=2 stages=2 layers=8 microbatches=6 schedule=dualpipe-v",
        "pp=4 layers=8 microbatches=9 schedule=dualpipe micro=1",
        "pp=2 dp=2 zero=3 layers=4 microbatches=3 recompute=full compute=bf16"}) {
    SCOPED_TRACE(text);
    const RunSpec run = run_of(from_text(text));
    const Ran ran = train_layout(run, {.steps = 2});
    const BookedStep simulated = booked_step(run, schedule_of(run), {}, 1, {});
    for (size_t r = 0; r < ran.ranks.size(); r++)
      EXPECT_EQ(ran.ranks[r].peak_total, simulated.rows[size_t(simulated.class_of[r])].peak) << r;
  }
}

// Of each stage alone on a rank: bytes of activations that a microbatch takes until its input gradient is
// there, and until its weight gradient is, by ledgers of runs with one more; and what a rank has besides.
struct StageBytes {
  int64_t before_input = 0, before_weight = 0, besides = 0;
};
std::vector<StageBytes> bytes_of_stages(Case c, int stages) {
  c.pp = stages, c.stages = 1;
  const auto peaks = [&](int64_t microbatches, bool apart) {
    c.microbatches = microbatches;
    RunSpec run = run_of(c);
    std::string text;
    for (int s = 0; s < stages; s++, text += '\n')
      for (const char* pass : {"F", apart ? "I" : "B", "W"})
        for (int64_t mb = 0; mb < microbatches && (apart || *pass != 'W'); mb++)
          text += fmt::format("{}{}{} ", s, pass, mb);
    run.layout.schedule = "file", run.layout.schedule_file = "own.txt";
    set_own_schedule(run, parse_schedule(text), "own.txt");
    std::vector<int64_t> bytes;
    for (const RankFacts& r : train_layout(run, {.steps = 1}).ranks)
      bytes.push_back(r.peaks[size_t(Bucket::activations)]);
    return bytes;
  };
  const std::vector<int64_t> one = peaks(1, false), two = peaks(2, false), three = peaks(3, false),
                             apart_two = peaks(2, true), apart_three = peaks(3, true);
  std::vector<StageBytes> out;
  for (size_t s = 0; s < size_t(stages); s++)
    out.push_back({three[s] - two[s], apart_three[s] - apart_two[s], one[s] - (three[s] - two[s])});
  return out;
}

TEST(Pipelines, ActivationsAreThoseOfTheMicrobatchesHeld) {
  for (const char* text : {"pp=3 layers=6 schedule=gpipe", "pp=3 layers=6",
                           "pp=2 stages=2 layers=8 schedule=interleaved", "pp=3 layers=6 schedule=zb-h1",
                           "pp=3 layers=6 schedule=zb-h2", "pp=2 stages=2 layers=8 schedule=zb-v",
                           "pp=2 stages=2 layers=8 schedule=dualpipe-v", "pp=2 layers=4 schedule=dualpipe"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const std::vector<StageBytes> stages = bytes_of_stages(c, int(c.pp * c.stages));
    c.microbatches = 6;
    const RunSpec run = run_of(c);
    const Schedule schedule = schedule_of(run);
    const Holders holders(schedule);
    const Ran ran = train_layout(run, {.steps = 2});
    // Tokens, targets, positions and losses of a microbatch are there once for all stages of a rank; messages
    // lie beside at either end of a stage.
    const int64_t rows = run.batch.micro * run.data.seq_len, batch = 4 * rows * 4,
                  messages = 3 * c.stages * rows * run.model.hidden * 4;
    for (int r = 0; r < int(c.pp); r++) {
      const HeldPeak held = held_peaks(schedule)[size_t(r)];
      int64_t low = INT64_MAX, high = 0;
      for (int s : holders.stages_of(r)) {
        const StageBytes& of = stages[size_t(s)];
        EXPECT_LT(of.besides + messages, of.before_input) << "one microbatch more or less would not show";
        low = std::min(low, held.before_input * (of.before_input - batch) +
                                held.before_weight * (of.before_weight - batch));
        high = std::max(high, held.all() * (held.before_weight > 0 ? of.before_weight : of.before_input) +
                                  of.besides + messages);
      }
      const int64_t peak = ran.ranks[size_t(r)].peaks[size_t(Bucket::activations)];
      EXPECT_GE(peak, low) << "rank " << r;
      EXPECT_LE(peak, high) << "rank " << r;
    }
  }
}

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
