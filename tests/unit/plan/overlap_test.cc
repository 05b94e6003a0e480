// Real steps, recorded on meta, in virtual time: what of their communication compute waits for.
#include <gtest/gtest.h>

#include "forecast/forecast.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec model(int layers, int dp, int zero, int64_t microbatches = 1) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = 61, r.model.layers = layers, r.model.hidden = 36, r.model.heads = 3, r.model.kv_heads = 1;
  r.model.ffn = 52;
  r.data.seq_len = 23;
  r.batch.micro = 2, r.batch.global = 2 * dp * microbatches;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.layout.dp = dp, r.layout.zero = zero, r.layout.bucket_mb = 0;
  r.train.steps = 20, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

// Every layer takes `forward`, and twice that backward; every collective takes `comm`; agreements and the
// update nothing. A layer's time is on the first of its ops in a pass. at_once: the head's gradient is
// computed with its loss, as in f32.
std::vector<Price> price_layers(const Tape& t, int64_t forward, int64_t comm, bool at_once = false) {
  std::vector<Price> prices;
  std::string_view layer, action;
  // "blocks.3" of "blocks.3.attn"
  auto layer_of = [](std::string_view part) { return part.substr(0, part.find('.', part.find('.') + 1)); };
  for (const Piece& p : t.pieces) {
    Price price;
    const bool control = p.group >= 0 && t.groups[size_t(p.group)].name == "control";
    if (p.kind == PieceKind::call && !control) price.time = comm;
    if (p.launched && (p.action == "F" || p.action == "B")) {
      const bool next = layer_of(p.layer) != layer || p.action != action;
      if (next) price.time = p.action == "F" ? forward : 2 * forward;
      if (next && at_once && layer_of(p.layer) == "head") price.time = p.action == "F" ? 3 * forward : 0;
      layer = layer_of(p.layer), action = p.action;
    }
    prices.push_back(price);
  }
  return prices;
}

struct Virtual {
  Tape tape;
  std::vector<Price> prices;
  Replay all;
  std::vector<Exposure> exposed;
  std::string held_by(size_t i) const { return std::string(tape.pieces[exposed.at(i).held_by].name); }
};
Virtual replay_layers(const RunSpec& run, int64_t forward, int64_t comm, bool at_once = false) {
  Virtual v{record_training(run, schedule_of(run), 1), {}, {}, {}};
  v.prices = price_layers(v.tape, forward, comm, at_once);
  const RankTape rank{0, &v.tape, v.prices};
  v.all = replay({&rank, 1});
  v.exposed = exposures(rank, v.all.ranks[0]);
  return v;
}

// The last bucket alone is exposed, as long as a bucket takes no longer than a layer's backward.
TEST(Overlap, DataParallelExposesItsLastBucket) {
  for (int dp : {2, 3, 4})
    for (int64_t comm : {1, 60, 200}) {
      const Virtual v = replay_layers(model(6, dp, 0), 100, comm);
      ASSERT_EQ(v.exposed.size(), 1u) << comm;
      EXPECT_EQ(v.exposed[0].time, comm);
      EXPECT_EQ(v.held_by(0), "all_reduce");
      EXPECT_EQ(v.all.ranks[0].comm, 8 * comm);
      EXPECT_EQ(v.all.makespan, 8 * 300 + comm);
    }
  // Longer than that they queue up: 8 of them from the end of the first backward on.
  EXPECT_EQ(replay_layers(model(6, 3, 0), 100, 230).all.makespan, 8 * 100 + 200 + 8 * 230);
}

// ZeRO 3: the first gather, the last reduction, and the gather of the last layer between its two passes,
// which has nothing to hide under: one of the 3 (layers + 2).
TEST(Overlap, ShardedWeightsExposeTheFirstGatherAndTheLastBucket) {
  for (int dp : {2, 3, 4})
    for (int64_t comm : {1, 60, 100}) {
      const Virtual v = replay_layers(model(6, dp, 3), 100, comm);
      ASSERT_EQ(v.exposed.size(), 3u) << comm;
      EXPECT_EQ(v.held_by(0), "all_gather");
      EXPECT_EQ(v.held_by(1), "all_gather");
      EXPECT_EQ(v.held_by(2), "reduce_scatter");
      for (const Exposure& e : v.exposed) EXPECT_EQ(e.time, comm);
      EXPECT_EQ(v.all.ranks[0].comm, 3 * 8 * comm);
      EXPECT_LE(double(v.exposed[1].time), 0.05 * double(v.all.ranks[0].comm));
      EXPECT_EQ(v.all.makespan, 8 * 300 + 3 * comm);
    }
}

// Where the head has no backward to speak of, its forward hides the gather of the block behind it.
TEST(Overlap, AHeadThatIsDoneAtOnceExposesNoMore) {
  for (int dp : {2, 3})
    for (int64_t comm : {1, 60, 100}) {
      const Virtual v = replay_layers(model(6, dp, 3), 100, comm, true);
      ASSERT_EQ(v.exposed.size(), 3u) << comm;
      EXPECT_EQ(v.held_by(1), "all_gather");
      for (const Exposure& e : v.exposed) EXPECT_EQ(e.time, comm);
    }
}

// Each further microbatch gathers the head's weights once more between its two passes; the embedding's
// backward, which does not use its weights, hides their way back.
TEST(Overlap, EachMicrobatchExposesTheGatherBetweenItsPasses) {
  for (bool at_once : {false, true})
    for (int64_t m : {2, 3, 5}) {
      const Virtual v = replay_layers(model(6, 3, 3, m), 100, 60, at_once);
      int64_t all = 0;
      for (const Exposure& e : v.exposed) all += e.time;
      EXPECT_EQ(v.exposed.size(), size_t(2 + m));
      EXPECT_EQ(all, (2 + m) * 60);
      EXPECT_EQ(v.all.ranks[0].comm, m * 3 * 8 * 60);
    }
}

// Where the last layer's weights stay for the backward pass that comes next, nothing is waited for between
// the two, however few layers there are.
TEST(Overlap, WeightsOfTheLastLayerThatStayExposeTheEndsAlone) {
  for (int layers : {1, 2, 6})
    for (int64_t m : {1, 3}) {
      RunSpec run = model(layers, 3, 3, m);
      run.layout.reshard_last = false;
      const Virtual v = replay_layers(run, 100, 60);
      ASSERT_EQ(v.exposed.size(), 2u) << layers << " layers, " << m << " microbatches";
      EXPECT_EQ(v.held_by(0), "all_gather");
      EXPECT_EQ(v.held_by(1), "reduce_scatter");
      EXPECT_EQ(v.all.ranks[0].exposed, 2 * 60);
      EXPECT_EQ(v.all.ranks[0].comm, m * (3 * (layers + 2) - 1) * 60);
    }
}

// Without prefetch every gather is waited for.
TEST(Overlap, WithoutPrefetchEveryGatherIsExposed) {
  RunSpec run = model(6, 3, 3);
  run.layout.prefetch = 0;
  const Virtual v = replay_layers(run, 100, 60);
  EXPECT_EQ(v.exposed.size(), 16u + 1);
  EXPECT_GE(v.all.ranks[0].exposed, 17 * 60);
}

ClusterSpec machine() {
  ClusterSpec c;
  c.peak.f32 = 1e9, c.memory_bandwidth = 1e12;
  c.intra_node = {1e-5, 1e9};
  return c;
}
Forecast forecast_of(const RunSpec& run, const ClusterSpec& c) {
  return forecast(run, schedule_of(run), c, 1);
}

TEST(Forecast, AStepIsItsReplayedPieces) {
  for (int zero : {0, 1, 2, 3}) {
    const RunSpec run = model(3, 3, zero, 2);
    const Forecast f = forecast_of(run, machine());
    EXPECT_GT(f.time.exposed_s, 0);
    EXPECT_NEAR(f.step_s, f.time.compute_s + f.time.exposed_s, 1e-12);
    double ops = 0;
    for (const OpForecast& o : f.ops) ops += o.seconds;
    EXPECT_NEAR(ops, f.time.compute_s, 1e-9 * double(f.booking.launches));  // a nanosecond an op
    // comm_s: an alpha for each half, and two thirds of the buffer at beta (all_reduce divides it evenly).
    double comm = 0;
    int calls = 0;
    for (const Piece& p : f.booking.tape.pieces) {
      if (p.kind != PieceKind::call) continue;
      comm += (p.name == "all_reduce" ? 2 : 1) * (1e-5 + double(p.payload) * 2 / 3 / 1e9);
      calls++;
    }
    EXPECT_NEAR(f.time.comm_s, comm, 1e-9 * calls) << zero;
    // A wire that takes no time leaves the roofline alone, a slower one a longer step.
    ClusterSpec fast = machine(), slow = machine();
    fast.intra_node = {}, slow.intra_node.bandwidth = 1e8;
    const Forecast free = forecast_of(run, fast);
    EXPECT_FALSE(free.wire_priced);
    EXPECT_EQ(free.step_s, free.time.compute_s);
    EXPECT_GT(forecast_of(run, slow).step_s, f.step_s);
  }
}

TEST(Forecast, SaysWhatComputeWaitsFor) {
  const RunSpec run = model(3, 3, 3);
  ClusterSpec c = machine();
  const Forecast f = forecast_of(run, c);
  const std::string line =
      fmt::format("of a rank: {:.3f} ms computing, {:.3f} ms on the wire, {:.3f} ms of it exposed",
                  f.time.compute_s * 1e3, f.time.comm_s * 1e3, f.time.exposed_s * 1e3);
  EXPECT_NE(to_text(run, f, c).find(line), std::string::npos) << to_text(run, f, c);
  EXPECT_NE(to_json(run, f).find("\"exposed_comm_s\": 0.0"), std::string::npos);
  // Of stages that wait for one another more than for their messages that is said.
  RunSpec stages = model(3, 1, 0);
  stages.layout.pp = 3;
  const Forecast s = forecast_of(stages, c);
  ASSERT_GT(s.time.exposed_s, s.time.comm_s);
  EXPECT_NE(to_text(stages, s, c)
                .find(fmt::format("{:.3f} ms on the wire; compute waits {:.3f} ms for it and for the "
                                  "ranks at its other end",
                                  s.time.comm_s * 1e3, s.time.exposed_s * 1e3)),
            std::string::npos)
      << to_text(stages, s, c);
  c.intra_node = {};
  const Forecast free = forecast_of(run, c);
  EXPECT_NE(to_text(run, free, c).find("no alpha and beta of these links are known"), std::string::npos);
  EXPECT_NE(to_json(run, free).find("\"exposed_comm_s\": null"), std::string::npos);
  EXPECT_EQ(to_text(model(3, 1, 0), forecast_of(model(3, 1, 0), c), c).find("exposed"), std::string::npos);
}

// Owners of matrices compute more than others: each rank of the shard group is replayed.
TEST(Forecast, ShardedMuonWaitsForItsBusiestOwner) {
  RunSpec run = model(3, 3, 1);
  run.optimizer.name = "muon";
  const Forecast f = forecast_of(run, machine());
  EXPECT_GT(f.step_s, 0);
  EXPECT_GE(f.step_s + 1e-12, f.time.compute_s);
  EXPECT_GT(f.time.exposed_s, 0);
}

}  // namespace
}  // namespace trireme
