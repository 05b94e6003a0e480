// Traces: JSON that viewers load, whole after each step, and read back as it was; what is none is refused.
#include "trace/chrome_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "trace/span_text.h"
#include "trace/step_set.h"
#include "trace/summary.h"

namespace trireme {
namespace {

using nlohmann::json;

Span span_of(SpanKind kind, std::string_view name, int64_t begin, int64_t end) {
  Span s;
  s.kind = kind, s.name = name, s.step = 3, s.begin_ns = begin, s.end_ns = end;
  return s;
}

// A step of one action with two ops and a wait, beginning at `t` ns.
std::vector<Span> one_step(int64_t step, int64_t t) {
  std::vector<Span> v = {
      span_of(SpanKind::step, "step", t, t + 10000), span_of(SpanKind::action, "F", t + 1, t + 9001),
      span_of(SpanKind::wait, "data", t + 2, t + 502), span_of(SpanKind::op, "matmul", t + 600, t + 2600),
      span_of(SpanKind::op, "rope", t + 3000, t + 4000)};
  for (Span& s : v) s.step = step;
  for (size_t i = 1; i < v.size(); i++) v[i].action = "F", v[i].microbatch = 2;
  v[3].layer = "blocks.11.attn", v[3].cost = {.flops = 8e6, .bytes_read = 4000, .bytes_written = 2000};
  v[4].layer = "blocks.3.attn", v[4].cost = {.flops = 5, .bytes_read = 7, .bytes_written = 9};
  v[3].memory = {100, 0, 0, 50, 0, 25}, v[4].memory = {100, 0, 0, 50, 0, 0};
  return v;
}

class ChromeTraceTest : public ::testing::Test {
 protected:
  ChromeTraceTest() : path_(fs::path(testing::TempDir()) / fmt::format("trireme_trace_{}.json", ::getpid())) {
    fs::remove(path_);
  }
  ~ChromeTraceTest() override { fs::remove(path_); }
  fs::path path_;
};

TEST_F(ChromeTraceTest, IsWholeSortedAndInMicroseconds) {
  ChromeTraceFile f(path_, {{"machine", "a \"quoted\" one\n"}});
  EXPECT_FALSE(fs::exists(path_));
  double last = 0;
  for (int64_t step = 1; step <= 3; step++) {
    f.write(one_step(step, 5'000'000'000 + step * 20000));
    json j = json::parse(read_text(path_));  // after each
    EXPECT_EQ(j["otherData"]["machine"], "a \"quoted\" one\n");
    int64_t ops = 0, counters = 0;
    last = 0;
    for (const json& e : j["traceEvents"]) {
      EXPECT_GE(e["ts"].get<double>(), last);
      last = e["ts"];
      ops += e["ph"] == "X" && e["cat"] == "op", counters += e["ph"] == "C";
    }
    EXPECT_EQ(ops, 2 * step);
    EXPECT_EQ(counters, 3 * step - 1)
        << "only where the ledger changed";  // 175, 150, then 0 of the next step
  }
  EXPECT_EQ(last, 43.0);
  json j = json::parse(read_text(path_));
  const json& op = *std::find_if(j["traceEvents"].begin(), j["traceEvents"].end(),
                                 [](const json& e) { return e["name"] == "matmul"; });
  EXPECT_EQ(op["ts"], 0.6);
  EXPECT_EQ(op["dur"], 2.0);
  EXPECT_EQ(op["args"]["GFLOP/s"], 4000.0);
  EXPECT_EQ(op["args"]["GB/s"], 3.0);
  EXPECT_EQ(op["args"]["layer"], "blocks.11.attn");
  EXPECT_EQ(op["args"]["microbatch"], 2);
  EXPECT_EQ(op["args"]["action"], "F");
}

TEST_F(ChromeTraceTest, LanesAreRowsOfTheirRank) {
  std::vector<Span> all = one_step(1, 1'000'000'000);
  for (auto [rank, lane, begin] :
       {std::tuple(0, "dp", 100), {0, "tp", 200}, {1, "dp", 300}, {0, "dp", 400}}) {
    Span s = span_of(SpanKind::comm, "all_reduce", 1'000'000'000 + begin, 1'000'000'500 + begin);
    s.rank = rank, s.lane = lane, s.group = "dp", s.algorithm = "ring", s.action = "B", s.step = 1;
    s.wire_bytes = 4000, s.met_ns = s.begin_ns + 100;
    all.push_back(s);
  }
  {
    ChromeTraceFile f(path_, {});
    f.write(all);
  }
  json j = json::parse(read_text(path_));
  std::map<std::pair<int, int>, std::string> rows, ranks;
  int counters = 0;
  for (const json& e : j["traceEvents"]) {
    const std::pair<int, int> row(e["pid"].get<int>(), e.value("tid", -1));
    if (e["name"] == "thread_name") {
      EXPECT_EQ(rows.count(row), 0u);
      rows[row] = e["args"]["name"].get<std::string>();
    }
    if (e["name"] == "process_name") ranks[row] = e["args"]["name"].get<std::string>();
    counters += e["ph"] == "C";
    if (e["ph"] == "X") {
      EXPECT_EQ(rows.count(row), 1u) << "named before it is used";
    }
    if (e["ph"] == "X" && e["cat"] == "comm") {
      EXPECT_EQ(e["args"]["waited_us"], 0.1);
      EXPECT_EQ(e["args"]["GB/s"], 10.0) << "4,000 bytes in the 400 ns after the last peer came";
      EXPECT_EQ(e["args"]["algorithm"], "ring");
    }
  }
  EXPECT_EQ(rows,
            (std::map<std::pair<int, int>, std::string>{
                {{0, 0}, "compute"}, {{0, 1}, "dp"}, {{0, 2}, "tp"}, {{1, 0}, "compute"}, {{1, 1}, "dp"}}));
  EXPECT_EQ(ranks.at({1, 0}), "rank 1");
  EXPECT_EQ(counters, 2) << "collectives say nothing of memory";
  Timeline t = read_chrome_trace(path_);
  ASSERT_EQ(t.spans.size(), all.size());
  for (size_t i = 5; i < all.size(); i++) {
    EXPECT_EQ(t.spans[i].lane, all[i].lane);
    EXPECT_EQ(t.spans[i].rank, all[i].rank);
    EXPECT_EQ(t.spans[i].group, "dp");
    EXPECT_EQ(t.spans[i].algorithm, "ring");
    EXPECT_EQ(t.spans[i].wire_bytes, 4000);
    EXPECT_EQ(t.spans[i].met_ns - t.spans[i].begin_ns, 100);
    EXPECT_EQ(t.spans[i].memory, BucketBytes{});
  }
}

TEST_F(ChromeTraceTest, ReadsBackWhatWasWritten) {
  std::vector<Span> all = one_step(1, 1'000'000'000), more = one_step(2, 1'000'030'000);
  {
    ChromeTraceFile f(path_, {{"compute", "bf16"}});
    f.write(all), f.write(more);
  }
  all.insert(all.end(), more.begin(), more.end());
  Timeline t = read_chrome_trace(path_);
  EXPECT_EQ(t.about.at("compute"), "bf16");
  ASSERT_EQ(t.spans.size(), all.size());
  for (size_t i = 0; i < all.size(); i++) {
    const Span &got = t.spans[i], &want = all[i];
    EXPECT_EQ(got.kind, want.kind);
    EXPECT_EQ(got.begin_ns, want.begin_ns - 1'000'000'000);
    EXPECT_EQ(got.end_ns - got.begin_ns, want.end_ns - want.begin_ns);
    EXPECT_EQ(got.layer, want.layer);
    EXPECT_EQ(got.action, want.action);
    EXPECT_EQ(got.step, want.step);
    EXPECT_EQ(got.microbatch, want.microbatch);
    EXPECT_EQ(got.cost, want.cost);
    EXPECT_EQ(got.memory, want.memory);
  }
  TraceSummary s = summarize(t.spans);
  EXPECT_EQ(s.steps, 2);
  EXPECT_NEAR(s.step_s, 20e-6, 1e-12);
  EXPECT_NEAR(s.op_s, 6e-6, 1e-12);
  EXPECT_NEAR(s.wait_s, 1e-6, 1e-12);
  ASSERT_EQ(s.by_op.size(), 2u);
  EXPECT_EQ(s.by_op[0].name, "matmul");
  EXPECT_EQ(s.by_op[0].calls, 2);
  EXPECT_EQ(s.by_op[0].cost.flops, 16e6);
  ASSERT_EQ(s.by_layer.size(), 1u);
  EXPECT_EQ(s.by_layer[0].name, "blocks.*.attn");
  EXPECT_EQ(s.by_both[0].name, "matmul in blocks.*.attn");
  EXPECT_EQ(s.peak_total, 175);
}

TEST_F(ChromeTraceTest, WhatIsNoTraceIsRefused) {
  ChromeTraceFile(path_, {}).write(one_step(1, 0));
  const std::string whole = read_text(path_);
  auto refused = [](const std::string& text) {
    try {
      parse_chrome_trace(text, "t.json");
      return false;
    } catch (const Error& e) {
      return e.fault == Fault::request && std::string(e.what()).find("t.json") == 0;
    }
  };
  EXPECT_FALSE(refused(whole));
  for (const char* text : {"", "[]", "3", "null", "{\"traceEvents\": []}", "{\"otherData\": 3}",
                           "{\"otherData\": {\"made_by\": \"trireme\"}, \"traceEvents\": {}}",
                           "{\"otherData\": {\"made_by\": \"trireme\"}, \"traceEvents\": [3]}"})
    EXPECT_TRUE(refused(text)) << text;
  for (size_t n = 0; n + 3 < whole.size(); n += 7) EXPECT_TRUE(refused(whole.substr(0, n))) << n;
  auto with = [&](const std::string& from, const std::string& to) {
    std::string s = whole;
    size_t at = s.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return s.replace(at, from.size(), to);
  };
  EXPECT_TRUE(refused(with("\"cat\":\"op\"", "\"cat\":\"opera\"")));
  EXPECT_TRUE(refused(with("\"dur\":2.000", "\"dur\":-1")));
  EXPECT_TRUE(refused(with("\"dur\":2.000", "\"dur\":1e300")));
  EXPECT_TRUE(refused(with("\"flops\":5", "\"flops\":\"5\"")));
  EXPECT_TRUE(refused(with("\"weights\":100", "\"weights\":-1")));
  EXPECT_TRUE(refused(with("\"step\":1", "\"stop\":1")));
}

TEST(SpanRecorder, TakesWhatFitsAndCountsTheRest) {
  SpanRecorder r(2);
  size_t a = r.begin(span_of(SpanKind::op, "a", 1, 1)), b = r.begin(span_of(SpanKind::op, "b", 2, 2));
  EXPECT_EQ(r.begin(span_of(SpanKind::op, "c", 3, 3)), SpanRecorder::kNone);
  r.end(SpanRecorder::kNone, 9), r.end(b, 5, {.flops = 7}), r.end(a, 6);
  ASSERT_EQ(r.spans().size(), 2u);
  EXPECT_EQ(r.spans()[0].end_ns, 6);
  EXPECT_EQ(r.spans()[1].cost.flops, 7);
  EXPECT_EQ(r.dropped(), 1);
}

TEST(StepSet, RangesAndWhatIsNone) {
  StepSet s;
  EXPECT_EQ(StepSet::parse("", s), "");
  EXPECT_TRUE(s.empty() || s.contains(1));
  EXPECT_EQ(StepSet::parse("7,20-22,3", s), "");
  std::string in;
  for (int64_t i = 0; i < 30; i++)
    if (s.contains(i)) in += fmt::format("{} ", i);
  EXPECT_EQ(in, "3 7 20 21 22 ");
  EXPECT_EQ(s.first(), 3);
  for (const char* wrong :
       {"0", "-3", "3-", "x", "3-5-7", "5-3", "1,,2", ",", "1 2", "99999999999999999999", "3,"})
    EXPECT_NE(StepSet::parse(wrong, s), "") << wrong;
  EXPECT_TRUE(s.contains(20)) << "a wrong text changes nothing";
}

// What ranks send the one that writes: every field comes back, of several ranks in one list; and their memory
// and the first to begin are each rank's own in the file.
TEST_F(ChromeTraceTest, SpansOfSeveralRanksTravelAsText) {
  OwnedSpans all;
  std::vector<Span> want;
  for (int32_t rank : {2, 0, 1}) {
    std::vector<Span> mine = one_step(7, 5'000'000 - 1000 * rank);
    mine[2].name = "a name\nof two lines", mine[2].lane = "dp", mine[2].kind = SpanKind::comm;
    mine[2].group = "shard", mine[2].algorithm = "ring", mine[2].met_ns = mine[2].begin_ns + 3;
    mine[2].wire_bytes = 1 << 20;
    for (Span& s : mine) s.rank = rank;
    mine[3].memory[0] += rank;
    add_text(all, to_text(mine));
    want.insert(want.end(), mine.begin(), mine.end());
    mine[2].name = "";  // nothing of the sender's is pointed to
  }
  auto same = [](const Span& a, const Span& b) {
    return a.kind == b.kind && a.rank == b.rank && a.microbatch == b.microbatch && a.step == b.step &&
           a.name == b.name && a.layer == b.layer && a.action == b.action && a.lane == b.lane &&
           a.group == b.group && a.algorithm == b.algorithm &&
           a.end_ns - a.begin_ns == b.end_ns - b.begin_ns && a.met_ns == b.met_ns &&
           a.wire_bytes == b.wire_bytes && a.cost.flops == b.cost.flops &&
           a.cost.bytes_read == b.cost.bytes_read && a.cost.bytes_written == b.cost.bytes_written &&
           a.memory == b.memory && a.begin_ns == b.begin_ns;
  };
  ASSERT_EQ(all.spans.size(), want.size());
  for (size_t i = 0; i < want.size(); i++) EXPECT_TRUE(same(all.spans[i], want[i])) << i;
  OwnedSpans cut;
  EXPECT_THROW(add_text(cut, to_text(want).substr(0, 200)), Error);

  ChromeTraceFile(path_, {}).write(all.spans);
  Timeline t = read_chrome_trace(path_);
  ASSERT_EQ(t.spans.size(), want.size());
  const int64_t origin = want[0].begin_ns;  // rank 2 was first
  for (size_t i = 0; i < want.size(); i++) {
    EXPECT_EQ(t.spans[i].begin_ns, want[i].begin_ns - origin) << i;
    if (want[i].kind == SpanKind::op) {
      EXPECT_EQ(t.spans[i].memory, want[i].memory) << i;
    }
  }
  TraceSummary sum = summarize(t.spans);
  EXPECT_EQ(sum.ranks, 3);
  EXPECT_EQ(sum.steps, 3);
  ASSERT_EQ(sum.by_collective.size(), 1u);
  EXPECT_EQ(sum.by_collective[0].calls, 3);
  EXPECT_EQ(sum.by_collective[0].cost.bytes_read, 3 << 20);
}

}  // namespace
}  // namespace trireme
