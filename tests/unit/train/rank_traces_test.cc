// Training on several ranks: orders of sums, and what traces show of them.
#include <gtest/gtest.h>

#include "base/json.h"
#include "ranks_run.h"
#include "sanitized.h"
#include "trace/chrome_trace.h"

namespace trireme::test {
namespace {

// Each order of sums is taken, shown in the trace, and no further from the default than rounding; the
// default's own bits are others.
TEST(Ranks, AnOrderOfSumsIsTakenAndShown) {
  const int64_t kSteps = test::kSanitized ? 2 : 6;
  for (RanksLayout l : {RanksLayout{.dp = 3}, RanksLayout{.dp = 3, .zero = 3, .micro = 1},
                        RanksLayout{.dp = 3, .zero = 2, .tp = 3}}) {
    Outcome want;
    for (const char* order : {"ordered", "ring", "halving", "hierarchical", "auto"}) {
      SCOPED_TRACE(fmt::format("{} zero={} tp={}", order, l.zero, l.tp));
      TempFolder tmp;
      RunSpec run = ranks_run(tmp.path(), l, kSteps);
      run.train.trace_steps = "2", run.train.sum_order = order;
      TrainOptions options;
      options.cluster.intra_node = {.latency = 1e-6, .bandwidth = 1e9};
      train_here(run, {}, options);
      std::set<std::string> shown, by;
      for (const Span& s : read_chrome_trace(fs::path(run.train.dir) / "trace.json").spans)
        if (s.kind == SpanKind::comm && s.name != "all_gather") shown.insert(std::string(s.algorithm));
      // Rank threads are one machine, where hierarchical is halving; halving has fewer rounds than ring.
      const bool halves = order == std::string("hierarchical") || order == std::string("auto");
      EXPECT_EQ(shown, std::set<std::string>{halves ? "halving" : order});
      const Outcome got = numbers_of(tmp / "run");
      if (order == std::string("ordered")) {
        want = got;
        continue;
      }
      EXPECT_NE(got.tensors, want.tensors) << "it adds up as ordered does";
      ASSERT_EQ(got.metrics.size(), want.metrics.size());
      for (size_t i = 0; i < got.metrics.size(); i++) {
        auto a = nlohmann::json::parse(got.metrics[i]), b = nlohmann::json::parse(want.metrics[i]);
        EXPECT_NEAR(a["loss"].get<double>() / b["loss"].get<double>(), 1, 1e-5) << i;
      }
    }
  }
}

// The trace of a step has every rank's ops and its collectives on the lane of their stream, told by action:
// as many bytes as the metrics say.
TEST(Ranks, TraceShowsEveryRankAndTheirCollectives) {
  for (int64_t zero : {0, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = zero}, 3);
    run.train.trace_steps = "2";
    train_here(run);
    using ByName = std::map<std::string, int64_t>;
    std::map<int, ByName> traced, calls, ops;  // by rank
    ByName counted;
    const Timeline trace = read_chrome_trace(fs::path(run.train.dir) / "trace.json");
    for (const Span& s : trace.spans) {
      EXPECT_EQ(s.step, 2);
      if (s.kind == SpanKind::op) ops[s.rank][std::string(s.name)]++;
      if (s.kind == SpanKind::op) {
        EXPECT_GT(s.memory[size_t(Bucket::weights)], 0);
      }
      if (s.kind != SpanKind::comm) continue;
      EXPECT_EQ(s.lane, "dp");
      EXPECT_LE(s.begin_ns, s.met_ns);
      EXPECT_LE(s.met_ns, s.end_ns);
      EXPECT_NE(s.action, "") << s.name << " of rank " << s.rank;
      if (s.action == "B") {
        EXPECT_GE(s.microbatch, 0);
      }
      traced[s.rank][std::string(s.name)] += s.wire_bytes, calls[s.rank][std::string(s.name)]++;
    }
    for (const std::string& line : lines_of(read_text(fs::path(run.train.dir) / "metrics.jsonl"))) {
      auto m = nlohmann::json::parse(line);
      if (m["step"] == 2)
        for (const auto& [kind, bytes] : m["comm_bytes"].items()) counted[kind] = bytes;
    }
    ASSERT_EQ(traced.size(), 3u);
    ASSERT_EQ(ops.size(), 3u);
    for (int rank = 0; rank < 3; rank++) {
      EXPECT_GT(ops[rank]["matmul"], 0);
      EXPECT_EQ(ops[rank]["matmul"], ops[0]["matmul"]);
      EXPECT_EQ(calls[rank], calls[0]);
      EXPECT_EQ(traced[rank].size(), zero == 0 ? 1u : 2u);
      // Metrics have the rank with the most: two elements a call, each way.
      for (const auto& [kind, bytes] : traced[rank])
        EXPECT_NEAR(double(bytes), double(counted[kind]), zero == 0 ? double(8 * calls[rank][kind]) : 0)
            << kind;
    }
  }
}

// In the written trace of ZeRO 3 each rank's lane of collectives has, in every backward pass, the gather of
// the layer after next before the reduction of this one: behind those of the forward pass, reduction i (from
// 0) comes after i + 2 gathers.
TEST(Ranks, TraceShowsGathersBeforeTheReductionsTheyMustNotWaitFor) {
  for (int dp : {2, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = dp, .zero = 3, .micro = 1}, 3);
    run.model.layers = 4, run.batch.global = 2 * dp;
    run.train.trace_steps = "2";
    train_here(run);
    const int units = int(run.model.layers) + 2;
    std::map<int, std::vector<Span>> calls;  // by rank, as they began
    const Timeline trace = read_chrome_trace(fs::path(run.train.dir) / "trace.json");
    for (const Span& s : trace.spans)
      if (s.kind == SpanKind::comm && s.lane == "dp") calls[s.rank].push_back(s);
    ASSERT_EQ(calls.size(), size_t(dp));
    for (auto& [rank, spans] : calls) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, dp));
      std::stable_sort(spans.begin(), spans.end(),
                       [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
      int gathers = 0, reductions = 0;
      for (const Span& s : spans) {
        gathers += s.name == "all_gather";
        if (s.name != "reduce_scatter") continue;
        const int microbatch = reductions / units, i = reductions % units;
        EXPECT_GE(gathers, (2 * microbatch + 1) * units + std::min(i + 2, units))
            << "reduction " << reductions;
        reductions++;
      }
      EXPECT_EQ(reductions, int(run.microbatches()) * units);
      EXPECT_EQ(gathers, 2 * reductions);
    }
  }
}

}  // namespace
}  // namespace trireme::test
