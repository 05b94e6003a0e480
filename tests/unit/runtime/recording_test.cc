// The tape: what meta foretells is what ranks issue, piece by piece; ranks are alike; gathers go before the
// reductions that they must not wait for.
#include "runtime/recording.h"

#include <gtest/gtest.h>

#include <mutex>

#include "device/cuda/attention_sm90.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny.h"

namespace trireme {
namespace {

RunSpec layout(int dp, int zero, int64_t microbatches, int64_t shard_group = 0) {
  RunSpec r = test::tiny_run("llama", "bf16", microbatches);
  r.model.layers = 4, r.model.finish(r.data.seq_len);
  r.layout.dp = dp, r.layout.zero = zero, r.layout.shard_group = shard_group;
  r.batch.global = dp * r.batch.micro * microbatches;
  r.precision.reduce = "bf16";
  return r;
}

std::string to_text(const Tape& t, const Piece& p) {
  const TapeGroup* g = p.group >= 0 ? &t.groups[size_t(p.group)] : nullptr;
  return fmt::format(
      "{} {} on {} of {} in {} {} mb {}: {} flops {} read {} written, {} in {} of {} payload {} "
      "wire {}, waits for {} of {}",
      int(p.kind), p.name, t.streams[size_t(p.stream)], p.layer, p.action, p.launched, p.microbatch,
      p.cost.flops, p.cost.bytes_read, p.cost.bytes_written, p.algorithm, g ? g->name : "",
      g ? g->ranks.size() : 0, p.payload, p.wire, p.mark, p.on);
}
std::vector<std::string> lines(const Tape& t) {
  std::vector<std::string> list;
  for (const Piece& p : t.pieces) list.push_back(to_text(t, p));
  return list;
}

// The first line in which they differ, "" if none.
std::string difference(const Tape& a, const Tape& b) {
  const std::vector<std::string> x = lines(a), y = lines(b);
  for (size_t i = 0; i < std::max(x.size(), y.size()); i++) {
    const std::string one = i < x.size() ? x[i] : "nothing", other = i < y.size() ? y[i] : "nothing";
    if (one != other) return fmt::format("piece {}: {} | {}", i, one, other);
  }
  return "";
}

std::vector<Tape> run_and_record(const RunSpec& run) {
  const Schedule schedule = schedule_of(run);
  const Booking booking = book_training(run, schedule, 1);
  std::vector<Tape> tapes(size_t(run.world()));
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    StepRecorder recorder(device, factory);
    CommSet comms(recorder.factory(), mesh_of(run.layout));
    StageRunner r(run, RunMode::train, recorder.device(), booking.arena_bytes, &comms);
    r.init_weights();
    const FillBatch fill = test::random_batches(run);
    r.step(schedule.ranks[0], 1, run.tokens_per_step(), fill);
    recorder.start(r, schedule.ranks[0]);
    r.step(schedule.ranks[0], 2, run.tokens_per_step(), fill);
    tapes[size_t(factory.rank())] = recorder.stop();
    agree_max(factory.control(), 0);  // nobody leaves while others still need it
  });
  return tapes;
}

TEST(Recording, MetaForetellsWhatEveryRankIssues) {
  for (int zero : {0, 1, 2, 3}) {
    const RunSpec run = zero == 2 ? layout(4, 2, 2, 2) : layout(3, zero, 2);
    const std::vector<Tape> tapes = run_and_record(run);
    for (int r = 0; r < int(run.world()); r++) {
      const Tape meta = record_training(run, schedule_of(run), 1, r);
      EXPECT_EQ(difference(tapes[size_t(r)], meta), "") << "zero " << zero << " rank " << r;
      EXPECT_EQ(tapes[size_t(r)].groups, meta.groups);
    }
  }
}

TEST(Recording, MeasuredTimesFollowOneAnother) {
  for (const Tape& t : run_and_record(layout(3, 3, 1))) {
    int64_t last = 0;
    for (const Piece& p : t.pieces) {
      EXPECT_GE(p.begin_ns, last) << p.name;
      EXPECT_GE(p.met_ns, p.begin_ns);
      EXPECT_GE(p.end_ns, p.met_ns);
      last = p.stream == 0 ? p.end_ns : p.begin_ns;
    }
  }
}

// With AdamW ranks differ only in the blocks that they own of a unit, of which small units have none for
// some: in launches of the norm and the update, of which rank 0 has the most. It stands for all.
TEST(Recording, RanksAreAlike) {
  for (int zero : {0, 1, 2, 3}) {
    const RunSpec run = layout(4, zero, 1, zero == 3 ? 2 : 0);
    size_t launches = 0;
    auto alike = [&](int rank) {
      Tape t = record_training(run, schedule_of(run), 1, rank);
      launches =
          size_t(std::count_if(t.pieces.begin(), t.pieces.end(), [](const Piece& p) { return p.launched; }));
      std::erase_if(t.pieces, [](const Piece& p) {
        return p.action == "norm" || (p.action == "update" && p.launched);
      });
      for (Piece& p : t.pieces)
        if (!p.launched) p.layer = {};
      return t;
    };
    const Tape first = alike(0);
    const size_t most = launches;
    for (int r = 1; r < 4; r++) {
      EXPECT_EQ(difference(alike(r), first), "") << zero << " rank " << r;
      EXPECT_LE(launches, most);
    }
  }
}

// The booking's counts are the tape's.
TEST(Recording, TheTapeHasEveryLaunchAndEveryByteOnTheWire) {
  const RunSpec run = layout(3, 3, 2);
  const Booking b = book_training(run, schedule_of(run), 1);
  Cost cost;
  int64_t launches = 0, wire = 0, counted = 0;
  for (const Piece& p : b.tape.pieces) {
    cost += p.cost, launches += p.launched;
    if (p.kind == PieceKind::call && b.tape.groups[size_t(p.group)].name != "control") wire += p.wire;
  }
  for (const CommCount& c : b.comm) counted += c.wire;
  EXPECT_EQ(cost, b.total);
  EXPECT_EQ(launches, b.launches);
  EXPECT_GT(wire, 0);
  EXPECT_EQ(wire, counted);
}

// Of many short rows of one head, so that sums of dQ are more than the scratch of any product.
TEST(Recording, AttentionForHopperIsBookedWhereItIsAskedFor) {
  RunSpec run = test::tiny_run("gpt2", "bf16", 1);
  run.model.hidden = 64, run.model.heads = run.model.kv_heads = 1, run.model.layers = 1;
  run.data.seq_len = 256, run.batch.micro = run.batch.global = 1024;
  run.model.max_positions = 256, run.model.finish(256);
  run.train.device = "cuda";
  const auto scratch = [&](const char* attention) {
    run.train.attention = attention;
    return book_training(run, schedule_of(run), 1).peak[size_t(Bucket::scratch)];
  };
  const int64_t rows = run.batch.micro * 256;
  const cuda::sm90::BackwardScratch sums(run.batch.micro, 1, 256, cuda::head_widths(64, 64));
  // A few scalars lie beside it.
  const int64_t asked = cuda::sm90::backward_sums_at(rows) + sums.bytes, scalars = 1024;
  EXPECT_LE(scratch("auto"), (32 << 20) + scalars);
  EXPECT_GE(scratch("sm90"), asked);
  EXPECT_LE(scratch("sm90"), asked + scalars);
}

// For each backward pass and layer i but the first: was the gather of layer i - 1 issued before the reduction
// of layer i? Read off the order of issue, not off clocks. Every use of a layer gathers it once, forward in
// order and backward in reverse; every backward reduces it once.
std::vector<bool> gathers_go_first(const RunSpec& run) {
  const Tape t = record_training(run, schedule_of(run), 1, 0);
  std::vector<size_t> gathers, scatters;
  for (size_t i = 0; i < t.pieces.size(); i++) {
    if (t.pieces[i].name == "all_gather" && t.pieces[i].stream != 0) gathers.push_back(i);
    if (t.pieces[i].name == "reduce_scatter") scatters.push_back(i);
  }
  const size_t layers = size_t(run.model.layers) + 2, passes = size_t(run.microbatches());
  EXPECT_EQ(gathers.size(), passes * 2 * layers);
  EXPECT_EQ(scatters.size(), passes * layers);
  std::vector<bool> first;
  for (size_t mb = 0; mb < passes; mb++)
    for (size_t k = 0; k + 1 < layers; k++)
      first.push_back(gathers.at(mb * 2 * layers + layers + k + 1) < scatters.at(mb * layers + k));
  return first;
}

// FSDP's order: the weights of layer i - 1 are asked for before the gradients of layer i go, so they do not
// stand behind them in the stream.
TEST(Recording, TheGatherOfTheNextLayerIsIssuedBeforeTheReductionOfThisOne) {
  for (int dp : {3, 4}) {
    RunSpec run = layout(dp, 3, 2);
    EXPECT_EQ(gathers_go_first(run), std::vector<bool>(2 * 5, true)) << dp;
    run.layout.prefetch = 0;  // then they do, and this would show
    const std::vector<bool> without = gathers_go_first(run);
    EXPECT_EQ(std::count(without.begin(), without.end(), true), 0) << dp;
  }
}

}  // namespace
}  // namespace trireme
