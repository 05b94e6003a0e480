// Memory composed from programs and tapes of layers (program/program_bytes.h) against real steps on meta:
// every call of the arena, and every byte by bucket.
#include "runtime/composed_booking.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "comm/meta/meta_comm.h"
#include "drawn_runs.h"
#include "runtime/meta_rank.h"
#include "runtime/rank_threads.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"
#include "tiny.h"

namespace trireme {
namespace {

// A real step's calls, without those that made the runner.
std::vector<int64_t> calls_of_step(const RunSpec& run, const Schedule& schedule, int pp_rank) {
  auto device = meta_device(run, 1);
  auto factory = make_meta_comm(first_of_stage(run, pp_rank), int(run.world()), options_of(run, {}));
  CommSet comms(*factory, mesh_of(run.layout));
  StageRunner runner(run, RunMode::train, *device, kEndlessArena, &comms);
  std::vector<Arena::Call> calls;
  runner.arena().list_calls(&calls);
  runner.step(schedule.ranks.at(size_t(pp_rank)), 1, run.tokens_per_step(),
              [](int64_t, int64_t, const HostBatch&) {});
  runner.arena().list_calls(nullptr);
  std::vector<int64_t> sizes;
  for (const Arena::Call& c : calls) sizes.push_back(c.size);
  return sizes;
}

std::string operation_of(const Program& p, const PlacedCalls& listed, size_t call) {
  size_t op = 0;
  while (op + 1 < listed.first.size() && listed.first[op + 1] <= call) op++;
  if (call < listed.first.front()) return "before the first operation";
  return op + 1 < listed.first.size() ? to_text(p, p.ops[op]) : "after the sums";
}

void expect_equal_calls(const Program& p, const PlacedCalls& composed, const std::vector<int64_t>& real) {
  const auto [a, b] = std::mismatch(composed.sizes.begin(), composed.sizes.end(), real.begin(), real.end());
  if (a == composed.sizes.end() && b == real.end()) return;
  const auto call = size_t(a - composed.sizes.begin());
  ADD_FAILURE() << fmt::format("call {} of {} composed and {} real, of \"{}\": {} bytes, really {}", call,
                               composed.sizes.size(), real.size(), operation_of(p, composed, call),
                               a == composed.sizes.end() ? 0 : *a, b == real.end() ? 0 : *b);
}

TEST(ComposedBooking, HasTheCallsAndBytesOfRealSteps) {
  DrawnRuns draw(20261128);
  int ranks = 0, turns = 0;
  std::map<std::string, int> seen;
  const int draws = 400 / test::one_of(1, 8);
  for (int i = 0; i < draws; i++) {
    RunSpec run = draw.run();
    if (!problems_of(run).empty() || !unsupported_of(run).empty()) continue;
    run = resolve(run, {.native_bf16 = true});
    SCOPED_TRACE(layout_text(run));
    const Schedule schedule = schedule_of(run);
    ASSERT_TRUE(composes(run));
    LayerTapes of_run;
    for (int r = 0; r < int(run.layout.pp); r++) {
      SCOPED_TRACE(fmt::format("rank {}", r));
      const ComposedRank rank(run, schedule, 1, {}, r, of_run);
      PlacedCalls listed;
      const ProgramBytes bytes = placed_bytes(rank.program(), rank.tapes(), {}, &listed);
      turns += std::any_of(rank.program().ops.begin(), rank.program().ops.end(),
                           [](const Op& op) { return op.by_turns > 0; });
      expect_equal_calls(rank.program(), listed, calls_of_step(run, schedule, r));
      const Booking booked = book_stage(run, schedule, 1, {}, r);
      EXPECT_EQ(bytes.arena_bytes, booked.arena_bytes);
      EXPECT_EQ(bytes.peak, booked.peak);
      EXPECT_EQ(bytes.at_peak, booked.at_peak);
      EXPECT_EQ(bytes.peak_total, booked.peak_total);
      const ProgramBytes sums = booked_bytes(rank.program(), rank.tapes());
      EXPECT_EQ(sums.peak, booked.peak);
      EXPECT_EQ(sums.at_peak, booked.at_peak);
      EXPECT_EQ(sums.peak_total, booked.peak_total);
      ranks++;
      if (::testing::Test::HasFailure()) return;
    }
    for (const std::string& what :
         {run.layout.schedule, "zero " + std::to_string(run.layout.zero), "recompute " + run.layout.recompute,
          "offload " + run.layout.offload, "fp8 " + run.precision.fp8, run.model.arch, run.optimizer.name})
      seen[what]++;
    for (const auto& [what, is] : {std::pair<const char*, bool>{"tp", run.layout.tp > 1},
                                   {"cp", run.layout.cp > 1},
                                   {"ep", run.layout.ep > 1},
                                   {"tied", run.model.tied},
                                   {"lora", run.lora.active()},
                                   {"documents", run.data.separate()}})
      seen[what] += is;
  }
  RecordProperty("ranks", ranks);
  if (test::one_of(1, 8) > 1) return;
  EXPECT_GT(ranks, 500);
  EXPECT_GT(turns, 4);
  EXPECT_EQ(seen.size(), 10u + 4 + 3 + 4 + 4 + 6 + 2 + 6);
  for (const auto& [what, n] : seen) EXPECT_GT(n, 4) << what;
}

// Microbatches of the steady part are left out, and ranks with equal stages share tapes.
TEST(ComposedBooking, LongStepsAreTheirFewDifferentMicrobatches) {
  DrawnRuns draw(20261129);
  std::map<std::string, LayerTapes> known;
  int shared = 0;
  for (int i = 0; i < 400 / test::one_of(1, 8); i++) {
    RunSpec run = draw.run();
    run.batch.global *= draw.one_of<int64_t>({4, 7});
    if (!problems_of(run).empty() || !unsupported_of(run).empty()) continue;
    run = resolve(run, {.native_bf16 = true});
    SCOPED_TRACE(layout_text(run));
    const Schedule schedule = schedule_of(run);
    const ComposedRun composed(run, schedule, 1, {}, known[run_key(run)]);
    for (int r = 0; r < int(run.layout.pp); r++) {
      SCOPED_TRACE(fmt::format("rank {}", r));
      const Booking booked = book_stage(run, schedule, 1, {}, r);
      const ProgramBytes bytes = composed.placed(r), sums = composed.booked(r);
      EXPECT_EQ(bytes.arena_bytes, booked.arena_bytes);
      EXPECT_EQ(bytes.peak, booked.peak);
      EXPECT_EQ(bytes.at_peak, booked.at_peak);
      EXPECT_EQ(sums.peak, booked.peak);
      EXPECT_EQ(sums.at_peak, booked.at_peak);
      EXPECT_EQ(sums.peak_total, booked.peak_total);
    }
    shared += int(run.layout.pp) - int(composed.kinds());
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(shared, 20 / test::one_of(1, 20));
}

// Executed passes: ranks of threads train a step on data, in an arena of the composed size.
TEST(ComposedBooking, IsWhatRanksWithDataDo) {
  struct Choice {
    const char* arch;
    int64_t dp, tp, pp, zero;
    const char *schedule, *recompute;
    bool interleave = false;
  };
  for (const Choice& c :
       {Choice{"llama", 2, 1, 1, 3, "1f1b", "full"}, Choice{"mixtral", 2, 1, 2, 2, "zb-h1", "none"},
        Choice{"gpt2", 1, 2, 2, 0, "1f1b", "selective"},
        Choice{"llama", 1, 2, 2, 0, "dualpipe-v", "none", true}}) {
    RunSpec run = test::tiny_run("llama", "bf16", 4);
    run.model = ModelSpec::of(c.arch);
    run.model.vocab = 61;
    run.model.layers = 4;
    run.model.hidden = 32;
    run.model.heads = 4;
    run.model.kv_heads = c.arch == std::string_view("gpt2") ? 4 : 2;
    run.model.ffn = 52;
    if (run.model.moe()) {
      run.model.experts = 4;
      run.model.experts_per_token = 2;
      run.layout.ep = c.dp;
    }
    run.model.finish(run.data.seq_len);
    run.layout.dp = c.dp;
    run.layout.tp = c.tp;
    run.layout.pp = c.pp;
    run.layout.zero = c.zero;
    run.layout.schedule = c.schedule;
    run.layout.recompute = c.recompute;
    if (c.interleave) {
      run.layout.chunks = 2;
      run.layout.interleave = true;
    }
    run.batch.global = run.batch.micro * 4 * c.dp;
    ASSERT_TRUE(problems_of(run).empty()) << problems_of(run)[0].text;
    run = resolve(run, {.native_bf16 = true});
    SCOPED_TRACE(layout_text(run));
    const Schedule schedule = schedule_of(run);
    const Mesh mesh = mesh_of(run.layout);
    std::vector<std::unique_ptr<ComposedRank>> ranks;
    std::vector<PlacedCalls> listed(size_t(c.pp));
    std::vector<int64_t> bytes;
    std::vector<std::vector<Arena::Call>> calls(static_cast<size_t>(run.world()));
    LayerTapes tapes;
    for (int r = 0; r < int(c.pp); r++) {
      ranks.push_back(std::make_unique<ComposedRank>(run, schedule, 1, ClusterSpec{}, r, tapes));
      bytes.push_back(
          placed_bytes(ranks.back()->program(), ranks.back()->tapes(), {}, &listed[size_t(r)]).arena_bytes);
    }
    run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh);
      const auto pp = size_t(mesh.coord(factory.rank(), Axis::pp));
      StageRunner runner(run, RunMode::train, device, bytes[pp], &comms);
      runner.init_weights();
      runner.arena().list_calls(&calls[size_t(factory.rank())]);
      runner.step(schedule.ranks[pp], 1, run.tokens_per_step(), test::random_batches(run));
      runner.arena().list_calls(nullptr);
    });
    for (int r = 0; r < int(c.pp); r++) {
      std::vector<int64_t> sizes;
      for (const Arena::Call& call : calls[size_t(first_of_stage(run, r))]) sizes.push_back(call.size);
      SCOPED_TRACE(fmt::format("rank {}", r));
      expect_equal_calls(ranks[size_t(r)]->program(), listed[size_t(r)], sizes);
    }
  }
}

}  // namespace
}  // namespace trireme
