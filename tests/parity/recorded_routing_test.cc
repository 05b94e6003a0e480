// A run's recorded routing, given to the forecasts of that run: bytes in memory, FLOPs and bytes on the wire
// are the run's counters, rank by rank.
#include <gtest/gtest.h>

#include <mutex>

#include "base/json.h"
#include "forecast/booked_step.h"
#include "forecast/forecast.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "spec/known_routing.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "train/batches.h"
#include "train/routing_file.h"

namespace trireme::test {
namespace {

struct RoutedLayout {
  const char* name;
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 2;
  int64_t zero = 0;
  double buffer = 1.5, capacity = 0;
  const char* recompute = "none";
  const char* schedule = "1f1b";
};

constexpr RoutedLayout kRoutedLayouts[] = {
    {.name = "ep", .dp = 2},
    {.name = "ep, little room, all computed again", .dp = 2, .buffer = 0.4, .recompute = "full"},
    {.name = "ep with a capacity and ZeRO 3", .dp = 4, .ep = 2, .zero = 3, .capacity = 1},
    {.name = "ep over tp", .tp = 2},
    {.name = "ep over dp and tp, little room", .dp = 2, .tp = 2, .ep = 4, .buffer = 0.6},
    {.name = "ep beside pp", .dp = 2, .pp = 2, .buffer = 0.7, .schedule = "zb-h1"},
    {.name = "ep over cp", .dp = 2, .cp = 2},
};

RunSpec routed_run(const fs::path& folder, const RoutedLayout& l) {
  RunSpec r = tiny_run(folder, 3);
  const int64_t vocab = r.model.vocab;
  r.model = ModelSpec::of("qwen2_moe");
  r.model.vocab = vocab, r.model.layers = 2, r.model.hidden = 48, r.model.heads = 6, r.model.kv_heads = 2;
  r.model.ffn = 40, r.model.experts = 12, r.model.experts_per_token = 3, r.model.moe_ffn = 20;
  r.model.shared_ffn = 24;
  r.data.seq_len = 12;
  r.model.finish(r.data.seq_len);
  r.batch.micro = 1, r.batch.global = 8;
  r.layout.dp = l.dp, r.layout.tp = l.tp, r.layout.pp = l.pp, r.layout.cp = l.cp, r.layout.ep = l.ep;
  r.layout.zero = l.zero, r.layout.ep_buffer = l.buffer, r.layout.recompute = l.recompute;
  r.layout.schedule = l.schedule;
  r.moe.capacity = l.capacity;
  r.precision.compute = r.precision.grads = r.precision.reduce = "f32";
  r.optimizer.lr = 3e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;  // routers change
  r.train.record_routing = "1,3";
  return r;
}

struct CountedStep {
  std::vector<double> flops;      // by rank
  std::vector<int64_t> launches;  // by rank
  std::vector<CommCounts> comm;   // by rank
  std::vector<BucketBytes> peak;  // by rank
};

// Three steps by hand; the first and the third are recorded and counted.
std::map<int64_t, CountedStep> counted_steps(const RunSpec& run, const fs::path& folder) {
  const Schedule schedule = schedule_of(run);
  const int64_t arena = book_training(run, schedule, 1).arena_bytes;
  std::map<int64_t, CountedStep> steps;
  for (const int64_t s : {1, 3}) {
    const auto n = size_t(run.world());
    steps[s] = {std::vector<double>(n), std::vector<int64_t>(n), std::vector<CommCounts>(n),
                std::vector<BucketBytes>(n)};
  }
  make_folders(folder);
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.init_weights();
    RoutingFile file(run, 0, factory.rank() == 0);
    Batches batches(run, comms.mesh().coord(factory.rank(), Axis::dp), false);
    const auto& actions = schedule.ranks.at(size_t(r.sharing().pp.rank));
    for (int64_t s = 1; s <= 3; s++) {
      device.kernels().restart_counts();
      r.arena().ledger().restart_peaks();
      const StepResult done = r.step(actions, s, batches.targets_of(s), batches.training());
      if (!file.wants(s)) continue;
      const auto rank = size_t(factory.rank());
      CountedStep& c = steps.at(s);
      c.flops[rank] = device.kernels().total().flops, c.launches[rank] = device.kernels().launches();
      c.comm[rank] = done.comm, c.peak[rank] = r.arena().ledger().peaks();
      file.write(r, factory.control(), s);
    }
  });
  return steps;
}

TEST(RecordedRouting, BooksWhatEachRankCounted) {
  int64_t moved = 0;  // ranks and steps whose wire a balanced router's is not
  for (const RoutedLayout& l : kRoutedLayouts) {
    SCOPED_TRACE(l.name);
    TempFolder tmp;
    RunSpec run = resolve(routed_run(tmp.path(), l), {});
    const std::map<int64_t, CountedStep> steps = counted_steps(run, run.train.dir);
    const fs::path file = fs::path(run.train.dir) / "routing.jsonl";
    for (const auto& [step, counted] : steps) {
      SCOPED_TRACE(step);
      RunSpec known = run;
      set_known_routing(known, read_recorded_rows(file), step, file.string());
      for (int rank = 0; rank < int(run.world()); rank++) {
        SCOPED_TRACE(rank);
        const Booking b = book_rank(known, schedule_of(run), 1, {}, rank);
        EXPECT_EQ(b.total.flops, counted.flops[size_t(rank)]);
        EXPECT_EQ(b.launches, counted.launches[size_t(rank)]);
        EXPECT_EQ(b.peak, counted.peak[size_t(rank)]);
        for (size_t k = 0; k < kCollectives; k++) {
          EXPECT_EQ(b.comm[k].calls, counted.comm[size_t(rank)][k].calls) << name_of(Collective(k));
          EXPECT_EQ(b.comm[k].wire, counted.comm[size_t(rank)][k].wire) << name_of(Collective(k));
        }
        const auto all_to_all = size_t(Collective::all_to_all);
        moved +=
            book_rank(run, schedule_of(run), 1, {}, rank).comm[all_to_all].wire != b.comm[all_to_all].wire;
      }
    }
  }
  EXPECT_GT(moved, 20);
}

// What the run itself writes, and what plan makes of it: comm_bytes and peak_bytes of the metrics.
TEST(RecordedRouting, PlanHasTheBytesOfTheMetrics) {
  for (const RoutedLayout& l : kRoutedLayouts) {
    SCOPED_TRACE(l.name);
    TempFolder tmp;
    RunSpec run = routed_run(tmp.path(), l);
    train_here(run);
    run = resolve(run, {});
    const RecordedRows recorded = read_recorded_rows(fs::path(run.train.dir) / "routing.jsonl");
    ASSERT_EQ(recorded.steps.size(), 2u);
    const std::vector<std::string> lines = lines_of(read_text(fs::path(run.train.dir) / "metrics.jsonl"));
    for (const int64_t step : {1, 3}) {
      SCOPED_TRACE(step);
      const auto m = nlohmann::json::parse(lines.at(size_t(step) - 1));
      set_known_routing(run, recorded, step, "routing.jsonl");
      const Forecast f = forecast(run, schedule_of(run), {}, 1);
      std::map<std::string, int64_t> wire;
      for (size_t k = 0; k < kCollectives; k++)
        if (f.wire.of[k].wire > 0) wire[std::string(name_of(Collective(k)))] = f.wire.of[k].wire;
      EXPECT_EQ(nlohmann::json(wire), m.at("comm_bytes"));
      EXPECT_EQ(f.booking.peak_total, m.at("peak_bytes").at("total").get<int64_t>());
      for (size_t b = 0; b < kBuckets; b++)
        EXPECT_EQ(f.booking.peak[b], m.at("peak_bytes").at(std::string(kBucketNames[b])).get<int64_t>());
      EXPECT_FALSE(f.routed);  // nothing is left open
      EXPECT_GE(f.known_load, 1);
    }
  }
}

TEST(RecordedRouting, IsRefusedByRunsThatItIsNotOf) {
  TempFolder tmp;
  const RunSpec run = resolve(routed_run(tmp.path(), kRoutedLayouts[0]), {});
  RecordedRows recorded{.shape = routing_shape_of(run), .steps = {}};
  auto rows = std::make_shared<StepRows>();
  for (int rank = 0; rank < 2; rank++)
    for (int64_t mb = 0; mb < 4; mb++) rows->add(rank, 0, mb, std::vector<int32_t>(12, 3));
  recorded.steps[7] = rows;
  const auto why = [&](RunSpec r, int64_t step) {
    try {
      set_known_routing(r, recorded, step, "routing.jsonl");
      book_rank(r, schedule_of(r), 1, {}, 0);
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return std::string(e.what());
    }
    return std::string("none");
  };
  RunSpec other = run;
  other.layout.dp = 4;
  EXPECT_NE(why(other, 0).find("dp = 2, and the run has 4"), std::string::npos) << why(other, 0);
  other = run, other.layout.order = "pp cp dp tp";
  EXPECT_NE(why(other, 0).find("order"), std::string::npos) << why(other, 0);
  other = run, other.layout.ep = 1;
  EXPECT_NE(why(other, 0).find("layout.ep = 1"), std::string::npos) << why(other, 0);
  EXPECT_NE(why(run, 8).find("no step 8"), std::string::npos) << why(run, 8);
  EXPECT_NE(why(run, 7).find("no rows of rank 0, block 1"), std::string::npos) << why(run, 7);  // half a step
}

}  // namespace
}  // namespace trireme::test
