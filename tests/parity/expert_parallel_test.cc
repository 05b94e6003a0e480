// Expert parallelism against one rank: what it rests on is that a token's sum over experts has few terms, and
// that these can be computed wherever the experts are, in any order of rows.
#include <set>

#include "base/json.h"
#include "checks.h"
#include "forecast/forecast.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

Ran replayed(const RunSpec& run, const Ran& of, Plan plan = {}) {
  plan.replay = &of.routing;
  return train_layout(run, plan);
}

// Choices made otherwise are counted and printed; at equal choices losses over all steps and every gradient
// at equal weights are bounded, routers' too.
class ExpertParallel : public testing::TestWithParam<const char*> {};

TEST_P(ExpertParallel, TrainsTheModelOfOneRank) {
  const Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const RunSpec run = run_of(c), one = one_rank_of(c);
  const Ran want = train_layout(one, {}), free = train_layout(run, {});
  const RecordedRouting::Flips flips = free.routing.flips(want.routing);
  fmt::print("{}: {} of {} tokens' choices are made otherwise, losses within {:.1e}\n", GetParam(),
             flips.flipped, flips.tokens, loss_difference(free, want));
  EXPECT_EQ(flips.tokens, kSteps * c.global() * c.seq * run.model.expert_blocks());
  if (flips.flipped == 0) {
    EXPECT_LE(loss_difference(free, want), 1e-5);
  }
  expect_learned(want);
  const Ran ran = replayed(run, want);
  EXPECT_LE(loss_difference(ran, want), 1e-5);
  const Plan equal{.steps = 3, .gradients = true};
  const Ran alone = train_layout(one, equal), layout = replayed(run, alone, equal);
  EXPECT_LE(gradient_difference(layout, alone), 1e-4);
  for (size_t s = 0; s < alone.norms.size(); s++) EXPECT_NEAR(layout.norms[s] / alone.norms[s], 1, 1e-5);
  ASSERT_EQ(layout.routed.size(), alone.routed.size());
  for (size_t l = 0; l < alone.routed.size(); l++) {
    const LayerRouting &mine = layout.routed[l], &theirs = alone.routed[l];
    EXPECT_EQ(mine.load, theirs.load);
    EXPECT_EQ(mine.dropped, theirs.dropped);
    EXPECT_EQ(mine.dropped > 0, c.capacity > 0 && run.model.expert_block(int64_t(l)));
    EXPECT_NEAR(mine.aux_loss, theirs.aux_loss, 1e-5 * theirs.aux_loss);
    EXPECT_NEAR(mine.z_loss, theirs.z_loss, 1e-5 * theirs.z_loss);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertParallel,
    testing::Values("arch=mixtral dp=2 ep=2 experts=6",
                    "arch=mixtral dp=3 ep=3 experts=6 zero=1 microbatches=2",
                    "arch=mixtral dp=4 ep=4 experts=8 zero=3 micro=1",
                    "arch=mixtral dp=4 ep=2 experts=4 zero=2 microbatches=2",
                    // Experts of a shared, gated one; balancing losses; receive buffers that overflow.
                    "arch=qwen2_moe dp=2 ep=2 experts=6 heads=3 kv_heads=3 zero=3 aux=0.3",
                    "arch=qwen2_moe dp=3 ep=3 experts=9 heads=3 kv_heads=3 buffer=0.4 dropout=0.1",
                    "arch=mixtral dp=2 ep=2 experts=4 buffer=0.3 aux=0.3 zero=2 microbatches=2"));

INSTANTIATE_TEST_SUITE_P(
    BesideTensorParallel, ExpertParallel,
    testing::Values("arch=mixtral tp=2 heads=2 experts=5 seq=22",
                    "arch=mixtral tp=3 ep=3 heads=3 experts=6 seq=21 aux=0.3",
                    "arch=mixtral dp=2 tp=2 ep=4 heads=2 experts=8 seq=22 zero=1",
                    "arch=mixtral dp=2 tp=2 ep=2 heads=2 experts=4 seq=22 zero=3 sequence=1 aux=0.3",
                    "arch=qwen2_moe dp=2 tp=2 ep=4 heads=4 kv_heads=2 hidden=40 experts=8 seq=22 sequence=1",
                    "arch=qwen2_moe tp=2 ep=2 heads=2 kv_heads=2 experts=6 seq=22 buffer=0.4 zero=2"));

// Ranks with parts of sequences: units of balancing losses lie on all of them, and so may a group of experts.
INSTANTIATE_TEST_SUITE_P(
    BesideContextParallel, ExpertParallel,
    testing::Values(
        "arch=mixtral cp=2 seq=20 experts=5 aux=0.3",
        "arch=mixtral cp=3 seq=21 placement=striped experts=5 aux=0.3 unit=microbatch zero=2",
        "arch=mixtral cp=2 seq=24 microbatches=2 experts=4 aux=0.3 unit=global placement=contiguous",
        "arch=qwen2_moe cp=2 ep=2 seq=20 heads=4 kv_heads=4 hidden=40 experts=6 method=ulysses "
        "zero=3 aux=0.3",
        "arch=mixtral cp=3 ep=3 seq=18 experts=6 buffer=0.4 separate=1 dropout=0.1",
        "arch=mixtral cp=2 dp=2 ep=4 seq=20 experts=8 zero=2 microbatches=2",
        "arch=qwen2_moe cp=2 tp=2 ep=4 heads=4 kv_heads=2 hidden=40 experts=8 seq=24 sequence=1 "
        "aux=0.3 zero=3",
        "arch=mixtral cp=2 tp=2 ep=2 heads=2 experts=4 seq=20 aux=0.3"));

// Copies of stages, each of which routes its own microbatches.
INSTANTIATE_TEST_SUITE_P(
    BesideCopies, ExpertParallel,
    testing::Values(
        "arch=mixtral pp=2 microbatches=4 experts=5 aux=0.3 schedule=dualpipe",
        "arch=mixtral pp=2 dp=2 ep=2 microbatches=3 experts=4 aux=0.3 zero=2 schedule=dualpipe",
        "arch=qwen2_moe pp=2 dp=2 ep=2 microbatches=2 experts=6 heads=3 kv_heads=3 zero=3 aux=0.3 "
        "buffer=0.4 unit=microbatch schedule=dualpipe recompute=full offload=1",
        "arch=mixtral pp=2 dp=2 ep=2 micro=1 microbatches=3 experts=4 capacity=1 state=1 zero=1 "
        "schedule=dualpipe"));

// What one rank drops, though the tokens of a unit lie on all.
INSTANTIATE_TEST_SUITE_P(
    Capacity, ExpertParallel,
    testing::Values("arch=mixtral cp=2 seq=20 experts=5 capacity=1",
                    "arch=mixtral cp=3 seq=21 placement=striped experts=6 ep=3 capacity=0.8 unit=microbatch",
                    "arch=mixtral cp=4 seq=24 experts=4 ep=2 capacity=1 aux=0.3 placement=contiguous zero=2",
                    "arch=mixtral tp=2 heads=2 experts=5 seq=22 capacity=1 unit=microbatch micro=3",
                    "arch=mixtral tp=3 ep=3 heads=3 experts=6 seq=21 capacity=0.7 sequence=1",
                    "arch=deepseek_v3 cp=2 tp=2 ep=4 heads=2 seq=24 sequence=1 capacity=0.6 microbatches=2",
                    "arch=qwen2_moe cp=2 dp=2 ep=2 seq=20 heads=4 kv_heads=4 hidden=40 experts=6 "
                    "method=ulysses capacity=1"));

// Of a unit that is all replicas' microbatches, drops of the later ones follow from the earlier ones'
// choices.
INSTANTIATE_TEST_SUITE_P(
    GlobalCapacity, ExpertParallel,
    testing::Values("arch=mixtral dp=2 experts=5 capacity=0.9 unit=global microbatches=2",
                    "arch=mixtral dp=3 ep=3 experts=6 capacity=0.8 unit=global micro=1 zero=3 aux=0.3",
                    "arch=mixtral dp=4 ep=2 experts=4 capacity=1 unit=global micro=1 recompute=full zero=2",
                    "arch=mixtral dp=2 tp=2 ep=4 heads=2 experts=8 seq=22 capacity=0.8 unit=global",
                    "arch=mixtral dp=2 cp=2 ep=2 seq=20 experts=4 capacity=0.7 unit=global",
                    "arch=deepseek_v3 dp=2 pp=2 heads=2 layers=3 capacity=0.6 unit=global microbatches=2"));

// Weight gradients apart from those of inputs, which want the experts' weights again: of shards (ep less than
// the replicas), kept from forward to backward or not, with rows that travel in further rounds.
INSTANTIATE_TEST_SUITE_P(
    SplitBackward, ExpertParallel,
    testing::Values(
        "arch=mixtral dp=4 ep=2 experts=4 zero=3 schedule=zb-h1 microbatches=2 buffer=0.3",
        "arch=mixtral dp=4 ep=2 pp=2 layers=4 experts=4 zero=3 reshard=0 schedule=zb-h1 microbatches=3"));

// Latent attention beside the experts it comes with, under tp, cp and both.
INSTANTIATE_TEST_SUITE_P(
    Latent, ExpertParallel,
    testing::Values("arch=deepseek_v3 tp=2 ep=2 heads=4 seq=22 layers=3",
                    "arch=deepseek_v2 tp=3 dp=2 ep=2 heads=3 seq=21 zero=3 sequence=1",
                    "arch=deepseek_v3 tp=4 ep=4 heads=4 seq=24 aux=0.3 microbatches=2",
                    "arch=deepseek_v2 cp=3 ep=1 seq=21 placement=striped separate=1 zero=1",
                    "arch=deepseek_v3 cp=2 ep=2 heads=4 seq=20 method=ulysses dropout=0.1",
                    "arch=deepseek_v3 cp=2 tp=2 ep=4 heads=2 seq=24 sequence=1 zero=2"));

// Biases that balance without a loss move by the choices of the whole global batch: integers, so at equal
// choices they are one rank's to the bit, whatever divides batch, sequence, layers or experts. A step that
// f16 leaves out moves none.
class ExpertParallelBias : public testing::TestWithParam<const char*> {};

TEST_P(ExpertParallelBias, MovesAsOnOneRank) {
  const Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const RunSpec run = run_of(c);
  const Plan plan{.steps = 8};
  const Ran want = train_layout(one_rank_of(c), plan);
  const Ran got = replayed(run, want, plan), free = train_layout(run, plan);
  EXPECT_EQ(got.buffers, want.buffers);
  if (free.routing.flips(want.routing).flipped == 0) {
    EXPECT_EQ(free.buffers, want.buffers);
  }
  ASSERT_EQ(int64_t(want.buffers[0].size()), run.model.expert_blocks());
  ByName before = want.buffers[0];
  for (auto& [name, bias] : before) std::fill(bias.begin(), bias.end(), 0.0f);
  int skipped = 0;
  for (size_t s = 0; s < want.buffers.size(); s++) {
    skipped += !std::isfinite(want.norms[s]);
    for (const auto& [name, bias] : want.buffers[s])
      EXPECT_EQ(bias == before.at(name), !std::isfinite(want.norms[s])) << name << " in step " << s + 1;
    before = want.buffers[s];
  }
  EXPECT_EQ(skipped > 0, c.compute == "f16");
  EXPECT_LT(skipped, 8);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertParallelBias,
    testing::Values(
        "arch=deepseek_v3 bias_rate=0.05 dp=2 ep=2 microbatches=2",
        "arch=deepseek_v3 bias_rate=0.05 dp=4 ep=2 zero=3 micro=1",
        "arch=deepseek_v3 bias_rate=0.05 tp=2 ep=2 heads=2 seq=22 sequence=1",
        "arch=deepseek_v3 bias_rate=0.05 cp=3 seq=21 placement=striped",
        "arch=deepseek_v3 bias_rate=0.05 pp=2 layers=4 microbatches=3",
        "arch=deepseek_v3 bias_rate=0.05 dp=2 pp=2 ep=2 layers=3 microbatches=2 capacity=0.8 aux=0.3",
        "arch=mixtral bias_rate=0.05 cp=2 tp=2 ep=4 heads=2 experts=8 seq=24",
        "arch=deepseek_v3 bias_rate=0.05 dp=2 ep=2 compute=f16 scale=2097152 zero=1"));

// A global unit is the replicas' microbatches together: what one rank calls its microbatch.
TEST(ExpertParallelBalance, GlobalUnitsSpanReplicas) {
  const Case many = from_text("arch=mixtral dp=2 ep=2 experts=4 micro=1 aux=0.5 unit=global"),
             one = from_text("arch=mixtral experts=4 micro=2 aux=0.5 unit=microbatch"),
             other = from_text("arch=mixtral experts=4 micro=2 aux=0.5");
  const Plan equal{.steps = 2, .gradients = true};
  const Ran want = train_layout(run_of(one), equal), got = replayed(run_of(many), want, equal);
  EXPECT_LE(gradient_difference(got, want), 1e-4);
  EXPECT_GT(gradient_difference(train_layout(run_of(other), equal), want), 1e-3);
}

TEST(ExpertParallelBalance, GlobalCapacitySpansReplicas) {
  const Case many = from_text("arch=mixtral dp=3 experts=5 micro=1 capacity=0.7 unit=global"),
             apart = from_text("arch=mixtral dp=3 experts=5 micro=1 capacity=0.7 unit=microbatch");
  const Plan equal{.steps = 2, .gradients = true};
  const Ran want = train_layout(one_rank_of(many), equal);
  EXPECT_LE(gradient_difference(replayed(run_of(many), want, equal), want), 1e-4);
  EXPECT_GT(gradient_difference(replayed(run_of(apart), want, equal), want), 1e-3);
}

// Each expert's matrices whole on its owner, divided over edp with ZeRO.
INSTANTIATE_TEST_SUITE_P(
    Muon, ExpertParallel,
    testing::Values("arch=mixtral dp=2 ep=2 experts=4 optimizer=muon",
                    "arch=mixtral dp=4 ep=2 experts=4 zero=2 optimizer=muon",
                    "arch=qwen2_moe dp=2 tp=2 ep=2 heads=4 kv_heads=2 hidden=40 experts=4 seq=22 zero=3 "
                    "sequence=1 optimizer=muon",
                    "arch=deepseek_v3 cp=2 tp=2 ep=4 heads=2 seq=24 optimizer=muon zero=1"));

// ZeRO's stages train the same model to the bit beside ep.
TEST(ExpertParallelBits, ZeroStages) {
  for (const char* text :
       {"arch=mixtral dp=4 ep=2 experts=4", "arch=mixtral dp=4 ep=2 experts=4 optimizer=muon",
        "arch=mixtral dp=2 tp=2 ep=2 heads=2 seq=22 experts=4",
        "arch=mixtral dp=2 cp=2 ep=2 seq=20 experts=4"}) {
    SCOPED_TRACE(text);
    expect_zero_stages_identical(from_text(text));
  }
}

// Shared experts, latent attention, cp, divided rows, gradients in bf16, capacities: low precision with each.
TEST(ExpertParallelLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"arch=mixtral dp=2 ep=2 experts=6 compute=bf16",
        "arch=mixtral tp=2 dp=2 ep=4 heads=2 experts=8 seq=22 compute=bf16",
        "arch=qwen2_moe dp=2 ep=2 experts=6 heads=3 kv_heads=3 compute=bf16 grads=bf16",
        "arch=qwen2_moe tp=2 ep=2 heads=2 kv_heads=2 experts=6 seq=22 sequence=1 compute=f16 buffer=0.4",
        "arch=mixtral cp=2 ep=2 seq=20 experts=4 compute=bf16 zero=2",
        "arch=mixtral cp=3 ep=3 seq=21 placement=striped experts=6 compute=f16",
        "arch=deepseek_v3 tp=2 ep=2 heads=4 seq=22 layers=3 sequence=1 compute=bf16",
        "arch=deepseek_v2 dp=2 ep=2 heads=3 compute=f16 zero=3 capacity=0.9",
        "arch=deepseek_v3 cp=2 tp=2 ep=4 heads=4 seq=24 compute=bf16 grads=bf16 method=ulysses"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

TEST(ExpertParallelLow, WholeRunsStrayFromF32NoFurtherThanOneRanksByHalf) {
  for (const char* text : {"arch=qwen2_moe dp=2 ep=2 experts=6 heads=3 kv_heads=3 compute=bf16 zero=1",
                           "arch=deepseek_v3 tp=2 ep=2 heads=2 seq=22 sequence=1 compute=bf16 grads=bf16"}) {
    SCOPED_TRACE(text);
    expect_low_runs_bounded(from_text(text));
  }
}

// Bytes. Memory is meta's on every rank, whatever routers choose and however many rounds that takes. On the
// wire meta assumes balance; a run moves what its choices say: rows of h elements whose expert's owner is
// another rank, to it and back, forwards and backwards.
int64_t rows_to_others(const Ran& ran, const Case& c, int64_t rank, int64_t step) {
  int64_t rows = 0;
  const int64_t k = 2, per_rank = c.experts / c.ep;
  for (int64_t l = 0; l < c.layers; l++)
    for (int64_t mb = 0; mb < c.microbatches; mb++) {
      std::vector<int32_t> ids(size_t(c.micro * c.seq * k));
      ran.routing.replay(fmt::format("blocks.{}.moe", l), {step, (mb * c.dp + rank) * c.micro * c.seq, k},
                         ids);
      for (int32_t id : ids) rows += id / per_rank != rank % c.ep;
    }
  return rows;
}

TEST(ExpertParallelBytes, AreThoseOfTheChoices) {
  for (const char* text :
       {"arch=mixtral dp=2 ep=2 experts=6 buffer=4", "arch=mixtral dp=4 ep=2 experts=4 microbatches=2",
        "arch=mixtral dp=3 ep=3 experts=6 compute=bf16 zero=3",
        "arch=mixtral dp=2 ep=2 experts=6 buffer=0.3 zero=1"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const Ran ran = train_layout(run_of(c), {.steps = 2});
    const int64_t element = c.compute == "f32" ? 4 : 2, rows = c.micro * c.seq * 2;
    for (size_t r = 0; r < ran.ranks.size(); r++) {
      const RankFacts& f = ran.ranks[r];
      EXPECT_EQ(f.peaks, ran.booking.peak);
      EXPECT_EQ(f.peak_total, ran.booking.peak_total);
      EXPECT_EQ(f.moved, f.counted);
      EXPECT_EQ(f.left_over, 0);
      if (c.buffer < 1) continue;
      // The answers' way home is counted at their owner: what others sent here.
      int64_t sent = rows_to_others(ran, c, int64_t(r), 2), received = 0;
      const int64_t per_rank = c.experts / c.ep;
      for (int64_t from = int64_t(r) / c.ep * c.ep; from < int64_t(r) / c.ep * c.ep + c.ep; from++) {
        if (from == int64_t(r)) continue;
        for (int64_t l = 0; l < c.layers; l++)
          for (int64_t mb = 0; mb < c.microbatches; mb++) {
            std::vector<int32_t> ids(static_cast<size_t>(rows));
            ran.routing.replay(fmt::format("blocks.{}.moe", l), {2, (mb * c.dp + from) * c.micro * c.seq, 2},
                               ids);
            for (int32_t id : ids) received += id / per_rank == int64_t(r) % c.ep;
          }
      }
      EXPECT_EQ(f.comm[size_t(Collective::all_to_all)].wire, 2 * (sent + received) * c.hidden * element);
    }
    if (c.buffer < 1) continue;
    // Balanced, where ep divides the rows: (ep - 1) / ep of them leave, 4 times a layer and microbatch.
    const int64_t all = 4 * c.layers * c.microbatches * rows * c.hidden * element;
    if (rows % c.experts == 0) {
      EXPECT_EQ(ran.booking.comm[size_t(Collective::all_to_all)].wire, all * (c.ep - 1) / c.ep);
    }
  }
}

// The forecast's interval holds what routers do when every token of a replica is sent `away` ranks on, and is
// no wider than that where two owners have room for all rows that come so.
int64_t bytes_where_rows_go(const Case& c, int64_t away) {
  const RunSpec run = run_of(c);
  const int64_t k = run.model.experts_per_token, own = c.experts / c.ep;
  RecordedRouting choices;
  for (int64_t l = 0; l < c.layers; l++)
    for (int64_t row = 0; row < c.global(); row++) {
      const int64_t rank = row / c.micro % c.dp, owner = (rank + away) % c.ep;
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < c.seq * k; i++) ids.push_back(int32_t((owner * own + i % k) % c.experts));
      choices.record(fmt::format("blocks.{}.moe", l), {1, row * c.seq, k}, ids);
    }
  int64_t most = 0;
  for (const RankFacts& r : train_layout(run, {.steps = 1, .replay = &choices}).ranks)
    most = std::max(most, r.comm[size_t(Collective::all_to_all)].wire);
  return most;
}

TEST(ExpertParallelBytes, LieWhereTheForecastSays) {
  for (const char* text :
       {"arch=mixtral dp=2 ep=2 experts=4 buffer=2", "arch=mixtral dp=2 ep=2 experts=2 buffer=2",
        "arch=mixtral dp=2 ep=2 experts=6 buffer=1.5 recompute=full microbatches=2",
        "arch=mixtral dp=2 ep=2 experts=6 buffer=0.4 recompute=full",
        "arch=mixtral dp=3 ep=3 experts=6 buffer=0.5",  // balanced rows take a round more than need be
        "arch=mixtral dp=3 ep=3 experts=6 buffer=0.7 compute=bf16"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const Forecast f = forecast(run_of(c), schedule_of(run_of(c)), {}, 1);
    ASSERT_TRUE(f.routed);
    const int64_t balanced = f.wire.of[size_t(Collective::all_to_all)].wire;
    const int64_t home = bytes_where_rows_go(c, 0), away = bytes_where_rows_go(c, 1);
    EXPECT_EQ(home, f.routed->least);
    EXPECT_EQ(home > 0, c.experts / c.ep < 2);
    EXPECT_LE(balanced, f.routed->most);
    EXPECT_GE(balanced, f.routed->least);
    if (c.buffer >= 1 && c.ep == 2) {
      EXPECT_EQ(away, f.routed->most);
    } else {
      EXPECT_GT(away, balanced);
      EXPECT_LE(away, f.routed->most);
    }
    const std::string text_of = to_text(run_of(c), f, {});
    EXPECT_NE(text_of.find(fmt::format("{} to {} bytes", f.routed->least, f.routed->most)),
              std::string::npos);
    const auto best = nlohmann::json::parse(to_json(run_of(c), f))["best"];
    EXPECT_EQ(best["wire"]["all_to_all"]["least"], f.routed->least);
    EXPECT_EQ(best["wire"]["all_to_all"]["most"], f.routed->most);
    ASSERT_TRUE(f.routed_flops);
    EXPECT_NE(text_of.find(fmt::format("as they choose, all are {:.4g} to {:.4g}",
                                       f.routed_flops->least / 1e9, f.routed_flops->most / 1e9)),
              std::string::npos);
    EXPECT_EQ(best["least_flops"], f.routed_flops->least);
    EXPECT_EQ(best["most_flops"], f.routed_flops->most);
  }
}

// Where meta, which assumes balance, sees one round and a run takes several: room for those was booked.
TEST(ExpertParallelBytes, RoomForFurtherRoundsIsBooked) {
  for (const char* text : {"arch=mixtral dp=2 ep=2 experts=4 buffer=1.02 layers=1 micro=4",
                           "arch=mixtral cp=2 ep=2 seq=24 experts=4 buffer=1.02 layers=1 micro=4",
                           "arch=mixtral dp=3 ep=3 experts=6 buffer=1.02 layers=1 micro=4 compute=bf16"}) {
    SCOPED_TRACE(text);
    const Ran ran = train_layout(run_of(from_text(text)), {.steps = 3});
    EXPECT_GT(ran.routed[0].rounds, 1);
    for (const RankFacts& f : ran.ranks) {
      EXPECT_EQ(f.peaks, ran.booking.peak);
      EXPECT_EQ(f.peak_total, ran.booking.peak_total);
      EXPECT_LE(f.high_water, ran.booking.arena_bytes);
    }
  }
}

// Products that are issued between an exchange's start and the wait for it: the shared expert's, three
// forward (gate and up, down, the gate's) and as many backward; none where there is no shared expert.
int64_t products_beside(const Tape& tape) {
  int64_t products = 0;
  int32_t stream = -1;  // of an exchange under way
  for (const Piece& p : tape.pieces) {
    if (p.kind == PieceKind::call && p.name == "all_to_all" && p.stream != 0) stream = p.stream;
    if (p.kind == PieceKind::wait && p.stream == 0 && p.on == stream) stream = -1;
    products += stream > 0 && p.kind == PieceKind::op && p.name == "matmul";
  }
  return products;
}

TEST(ExpertParallelOverlap, SharedExpertsRunWhileRowsTravel) {
  for (const auto& [arch, products] : {std::pair{"qwen2_moe", int64_t(6)}, {"mixtral", int64_t(0)}}) {
    const Case c =
        from_text(std::string("dp=2 ep=2 experts=6 layers=3 microbatches=2 heads=3 kv_heads=3 arch=") + arch);
    const RunSpec run = run_of(c);
    const Booking b = book_training(run, schedule_of(run), 1);
    EXPECT_EQ(products_beside(b.tape), products * c.layers * c.microbatches) << arch;
  }
}

// Node-limited routing (DeepSeek-V3, section 2.1.2): where a group of experts is a rank's, a token goes to at
// most as many ranks as groups may supply its choices; without groups the same four choices go to more.
TEST(ExpertParallelGroups, ATokenVisitsAsManyRanksAsGroups) {
  const auto most_ranks = [](int64_t groups, int64_t top) {
    const Case c = from_text("arch=deepseek_v3 dp=4 ep=4 micro=1 layers=3");
    RunSpec run = unchecked_run_of(c);
    run.model.experts_per_token = 4, run.model.expert_groups = groups, run.model.top_groups = top;
    run = resolve(run, {.native_bf16 = true});
    const Ran ran = train_layout(run, {.steps = 2});
    size_t most = 0;
    int64_t tokens = 0;
    for (int64_t step = 1; step <= 2; step++)
      for (int64_t block = 1; block < c.layers; block++)
        for (int64_t token = 0; token < c.global() * c.seq; token++, tokens++) {
          std::vector<int32_t> ids(4);
          ran.routing.replay(fmt::format("blocks.{}.moe", block), {step, token, 4}, ids);
          std::set<int32_t> ranks;
          for (int32_t id : ids) ranks.insert(id / int32_t(run.model.experts / c.ep));
          most = std::max(most, ranks.size());
        }
    EXPECT_EQ(tokens, 2 * 2 * c.global() * c.seq);
    return most;
  };
  EXPECT_EQ(most_ranks(4, 2), 2u);
  EXPECT_EQ(most_ranks(4, 3), 3u);
  EXPECT_EQ(most_ranks(1, 1), 4u);
}

// Rows are conserved and counted, and experts in several rounds answer as in one.
TEST(ExpertParallelRounds, ComputeEveryRow) {
  const Case wide = from_text("arch=mixtral dp=2 ep=2 experts=4 buffer=4");
  Case narrow = wide;
  narrow.buffer = 0.1;
  const Plan plan{.steps = 2, .gradients = true};
  const Ran one = train_layout(run_of(wide), plan), many = replayed(run_of(narrow), one, plan);
  for (const LayerRouting& l : one.routed) EXPECT_EQ(l.rounds, 1);
  for (const LayerRouting& l : many.routed) {
    EXPECT_GE(l.rounds, 10);
    EXPECT_EQ(l.sent, narrow.global() * narrow.seq * 2);
    EXPECT_EQ(l.computed, l.sent);
  }
  EXPECT_LE(loss_difference(many, one), 1e-6);  // few rows of an expert are multiplied by another kernel
  EXPECT_LE(gradient_difference(many, one), 1e-5);
}

}  // namespace
}  // namespace trireme::parity
