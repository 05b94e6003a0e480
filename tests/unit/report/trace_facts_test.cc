// Traces: read as a stream, every nanosecond with one cause, ranks' clocks aligned.
#include "report/trace_facts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "folder.h"
#include "planted.h"
#include "ranks_run.h"
#include "report/clocks.h"
#include "report/sections.h"
#include "report/trace_scan.h"
#include "trace/chrome_trace.h"

namespace trireme::test {
namespace {

// Rows add up to the whole, in every rank and in all.
void expect_whole(const TraceFacts& t) {
  ASSERT_TRUE(t.any()) << t.why_not;
  ASSERT_FALSE(t.comb.rows.empty());
  for (const CombRow& row : t.comb.rows) {
    int64_t at = 0;
    for (const Stretch& s : row.stretches) {
      ASSERT_EQ(s.begin, at) << row.name;
      ASSERT_GT(s.end, s.begin);
      at = s.end;
    }
    EXPECT_EQ(at, t.comb.makespan) << row.name;
  }
  const nlohmann::json comb = comb_json(t);
  EXPECT_NEAR(comb["sum"].get<double>(), 1, 1e-9);
  for (const nlohmann::json& row : comb["rows"])
    for (const nlohmann::json& bin : row["shares"]) {
      double sum = 0;
      for (const nlohmann::json& share : bin) sum += share.get<double>();
      EXPECT_NEAR(sum, 1, 0.01);
    }
}

double share_of(const TraceFacts& t, Use u) {
  return double(t.totals()[size_t(u)]) / double(t.comb.makespan) / double(t.comb.rows.size());
}

TEST(TraceFacts, RealRunsAddUpAndNameTheirAxis) {
  struct Case {
    RanksLayout layout;
    Use axis, late;
  };
  for (const Case& c : {Case{{.dp = 2, .micro = 1}, Use::dp, Use::peers},
                        Case{{.tp = 2}, Use::tp, Use::peers}, Case{{.pp = 2}, Use::pp, Use::bubble}}) {
    SCOPED_TRACE(name_of(c.axis));
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), c.layout, 5);
    run.train.trace_steps = "2-4";
    train_here(run);
    const TraceFacts t = read_traces(read_run_folder(tmp / "run"));
    expect_whole(t);
    EXPECT_EQ(t.steps.size(), 3u);
    EXPECT_EQ(t.ranks.size(), 2u);
    EXPECT_EQ(t.damaged, 0);
    EXPECT_GT(share_of(t, c.axis) + share_of(t, c.late), 0);
    EXPECT_GT(share_of(t, Use::forward), 0);
    EXPECT_GT(share_of(t, Use::input), 0);
    EXPECT_GT(share_of(t, Use::update), 0);
    for (const TracedRank& r : t.ranks) EXPECT_FALSE(r.memory.empty());
  }
}

TEST(TraceFacts, AStreamReadsWhatTheWholeFileHolds) {
  TempFolder tmp;
  planted(tmp / "run", {.ranks = 3, .global = 12});
  const Timeline whole = read_chrome_trace(tmp / "run" / "trace.json");
  struct Keep : TraceSink {
    const Timeline& whole;
    size_t at = 0;
    explicit Keep(const Timeline& t) : whole(t) {}
    void span(const Span& s) override {
      ASSERT_LT(at, whole.spans.size());
      const Span& w = whole.spans[at++];
      EXPECT_EQ(s.kind, w.kind);
      EXPECT_EQ(s.name, w.name);
      EXPECT_EQ(s.rank, w.rank);
      EXPECT_EQ(s.begin_ns, w.begin_ns);
      EXPECT_EQ(s.end_ns, w.end_ns);
      EXPECT_EQ(s.lane, w.lane);
      EXPECT_EQ(s.layer, w.layer);
      EXPECT_EQ(s.cost, w.cost);
      EXPECT_EQ(s.memory, w.memory);
      EXPECT_EQ(s.met_ns, w.met_ns);
      EXPECT_EQ(s.step, w.step);
      EXPECT_EQ(s.microbatch, w.microbatch);
    }
  } keep(whole);
  const TraceScan scan = scan_trace(tmp / "run" / "trace.json", keep);
  EXPECT_EQ(keep.at, whole.spans.size());
  EXPECT_TRUE(scan.whole);
  EXPECT_EQ(scan.damaged, 0);
  EXPECT_EQ(scan.about, whole.about);
}

TEST(TraceFacts, HostileTracesCostOnlyTheirLines) {
  TempFolder tmp;
  planted(tmp / "run", {.ranks = 2});
  const std::string text = read_text(tmp / "run" / "trace.json");
  const TraceFacts before = read_traces(read_run_folder(tmp / "run"));
  // Cut off in the midst of a line.
  put_file(tmp / "run" / "trace.json", text.substr(0, text.size() * 2 / 3));
  TraceFacts t = read_traces(read_run_folder(tmp / "run"));
  expect_whole(t);
  EXPECT_LE(t.damaged, 1);
  // Lines that are not events, with numbers out of range.
  const size_t line = text.find('\n', text.size() / 2) + 1;
  put_file(tmp / "run" / "trace.json",
           text.substr(0, line) +
               "{\"name\":\"x\",\"ph\":\"X\",\"cat\":\"op\",\"pid\":-7,\"tid\":0},\nnonsense\n" +
               "{\"name\":\"x\",\"cat\":\"op\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":99999999999999999999."
               "000,\"dur\":1.0},\n" +
               text.substr(line));
  t = read_traces(read_run_folder(tmp / "run"));
  expect_whole(t);
  EXPECT_EQ(t.damaged, 3);
  EXPECT_EQ(t.comb.makespan, before.comb.makespan);
  for (const char* bad : {"", "[]", "{\"traceEvents\":[]}", "\xff\xfe"}) {
    put_file(tmp / "run" / "trace.json", bad);
    t = read_traces(read_run_folder(tmp / "run"));
    EXPECT_FALSE(t.any());
    EXPECT_NE(t.why_not, "");
  }
}

// A clock that is hours off is found to microseconds; clocks that agree stay.
TEST(TraceFacts, ClocksAreAligned) {
  TempFolder tmp;
  const Plant quiet{.ranks = 3, .global = 12};
  const TraceFacts aligned = planted(tmp / "a", quiet).trace;
  for (const TracedRank& r : aligned.ranks) EXPECT_EQ(r.clock_offset, 0);
  for (double skew : {3600.0, 0.25}) {
    Plant skewed = quiet;
    skewed.clock_skew_s = skew;
    const TraceFacts t = planted(tmp / fmt::format("b{}", skew), skewed).trace;
    expect_whole(t);
    ASSERT_EQ(t.ranks.size(), 3u);
    EXPECT_NEAR(double(t.ranks[2].clock_offset) * 1e-9, skew, 1e-3);
    EXPECT_NEAR(double(t.comb.makespan), double(aligned.comb.makespan), 3e6);
    EXPECT_NEAR(share_of(t, Use::forward), share_of(aligned, Use::forward), 0.01);
  }
}

}  // namespace
}  // namespace trireme::test
