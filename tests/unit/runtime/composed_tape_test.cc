// Tapes composed of operations that are recorded once (runtime/composed_tape.h) against tapes of whole steps.
#include "runtime/composed_tape.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "drawn_runs.h"
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

TEST(ComposedTape, IsTheTapeOfTheWholeStep) {
  const int draws = 480 / test::one_of(12, 60);
  int composed = 0, ranks = 0;
  for (int i = 0; i < draws; i++) {
    DrawnRuns draw(uint64_t(1000 + i));
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
    if (!problems_of(run).empty() || !unsupported_of(run).empty()) continue;
    run = resolve(run, {.native_bf16 = true});
    SCOPED_TRACE(fmt::format("draw {}: {}", i, layout_text(run)));
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
  EXPECT_GE(composed, ranks * 9 / 10);
}

}  // namespace
}  // namespace trireme
