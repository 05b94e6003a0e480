// Tapes composed of operations that are recorded once (runtime/composed_tape.h) against tapes of whole steps.
#include "runtime/composed_tape.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "drawn_runs.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

std::string to_text(const Tape& t, const Piece& p) {
  return fmt::format(
      "{} {} on {} of {} in {} {} mb {}: {} flops {} read {} written, {} in group {} payload {} wire {}, "
      "waits "
      "for {} of {}; {} x {}, peer {}, held {}, most {}",
      int(p.kind), p.name, t.streams[size_t(p.stream)], p.layer, p.action, p.launched, p.microbatch,
      p.cost.flops, p.cost.bytes_read, p.cost.bytes_written, p.algorithm, p.group, p.payload, p.wire, p.mark,
      p.on, p.rows, p.cols, p.peer, p.held, p.most);
}

// The first piece in which two tapes differ; "" = none.
std::string difference(const Tape& a, const Tape& b) {
  if (a.groups != b.groups) return "groups";
  if (a.streams != b.streams || a.rank != b.rank || a.steps != b.steps) return "streams, rank or steps";
  for (size_t i = 0; i < std::max(a.pieces.size(), b.pieces.size()); i++) {
    const std::string one = i < a.pieces.size() ? to_text(a, a.pieces[i]) : "nothing";
    const std::string other = i < b.pieces.size() ? to_text(b, b.pieces[i]) : "nothing";
    if (one != other) return fmt::format("piece {}:\n  composed {}\n  recorded {}", i, one, other);
  }
  return "";
}

// A drawn run of many microbatches; nothing: it cannot be run.
std::optional<RunSpec> drawn_run(DrawnRuns& draw) {
  RunSpec run = draw.run();
  DrawnRuns::set_microbatches(run, (run.layout.pp + 2) * draw.one_of<int64_t>({6, 8, 9}));
  if (run.model.moe() && draw.chance(50)) {
    run.moe.unit = draw.one_of({"global", "sequence", "microbatch"});
    run.moe.capacity = draw.one_of({0.0, 1.5});
    run.moe.aux_loss = draw.one_of({0.0, 0.01});
    run.moe.bias_rate = draw.one_of({0.0, 0.001});
  }
  if (draw.chance(10) && run.precision.fp8 == "none") {
    run.precision.compute = "f16";
    run.precision.grads = run.precision.reduce = "f32";
  }
  if (!problems_of(run).empty() || !unsupported_of(run).empty()) return std::nullopt;
  return resolve(run, {.native_bf16 = true});
}

TEST(ComposedTape, IsTheTapeOfTheWholeStep) {
  // Passes alone in an interleaved action use other streams; few draws have one.
  std::vector<uint64_t> seeds = {1233};
  for (int i = 0; i < 480 / test::one_of(12, 60); i++) seeds.push_back(uint64_t(1000 + i));
  int composed = 0, ranks = 0;
  for (const uint64_t seed : seeds) {
    DrawnRuns draw(seed);
    const std::optional<RunSpec> drawn = drawn_run(draw);
    if (!drawn) continue;
    const RunSpec& run = *drawn;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, layout_text(run)));
    const Schedule schedule = schedule_of(run);
    for (const int rank : {0, int(run.world()) - 1, int(run.world()) / 2}) {
      const std::optional<Tape> c = composed_training(run, schedule, 1, rank, {});
      ranks++;
      if (!c) continue;
      composed++;
      ASSERT_EQ(difference(*c, record_whole_training(run, schedule, 1, rank)), "") << "rank " << rank;
    }
  }
  fmt::print("{} of {} ranks are composed\n", composed, ranks);
  EXPECT_GE(composed, ranks * 97 / 100);
}

// Bookings compose a step of many microbatches from its tapes, and book others by running them.
TEST(ComposedTape, ABookingIsThatOfTheWholeSteps) {
  for (int i = 0; i < 96 / test::one_of(8, 32); i++) {
    DrawnRuns draw(uint64_t(5000 + i));
    const std::optional<RunSpec> run = drawn_run(draw);
    if (!run) continue;
    SCOPED_TRACE(fmt::format("draw {}: {}", i, layout_text(*run)));
    const Schedule schedule = schedule_of(*run);
    std::vector<Tape> others;
    const Booking b = book_training(*run, schedule, 1, {}, &others);
    EXPECT_EQ(others.size() + 1, size_t(run->layout.pp));
    Booking worst;
    int64_t arena = 0, snapshot = 0, waiting = 0;
    CommCounts most{};
    for (int k = 0; k < int(run->layout.pp); k++) {
      Booking one = book_stage(*run, schedule, 1, {}, k);
      arena = std::max(arena, one.arena_bytes);
      snapshot = std::max(snapshot, one.snapshot_bytes);
      waiting = std::max(waiting, one.waiting_bytes);
      for (size_t c = 0; c < kCollectives; c++) most[c].wire = std::max(most[c].wire, one.wire.of[c].wire);
      if (one.peak_total > worst.peak_total) worst = std::move(one);
    }
    EXPECT_EQ(difference(b.tape, worst.tape), "");
    EXPECT_EQ(b.peak, worst.peak);
    EXPECT_EQ(b.at_peak, worst.at_peak);
    EXPECT_EQ(b.peak_total, worst.peak_total);
    EXPECT_EQ(b.state, worst.state);
    EXPECT_EQ(b.total, worst.total);
    EXPECT_EQ(b.launches, worst.launches);
    EXPECT_EQ(b.arena_bytes, arena);
    EXPECT_EQ(b.snapshot_bytes, snapshot);
    EXPECT_EQ(b.waiting_bytes, waiting);
    for (size_t c = 0; c < kCollectives; c++) EXPECT_EQ(b.wire.of[c].wire, most[c].wire);
  }
}

}  // namespace
}  // namespace trireme
