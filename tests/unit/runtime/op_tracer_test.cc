// A traced step: every op is there, with what the booking on meta said of it, and nothing else is changed.
#include "runtime/op_tracer.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tiny.h"

namespace trireme {
namespace {

TEST(OpTracer, EveryOpWithItsCostItsPlaceAndTheMemoryOfThen) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    test::Rig rig(test::tiny_run("llama", "f32", 3), schedule);
    SpanRecorder spans(size_t(rig.booking.launches + 4 * 3 + 8));
    rig.step(1);
    rig.runner->arena().ledger().restart_peaks();
    rig.runner->trace(&spans);
    rig.step(2);
    rig.runner->trace(nullptr);
    size_t n = spans.spans().size();
    EXPECT_EQ(spans.dropped(), 0);
    std::map<std::string, int64_t> ops, kinds;
    std::map<std::string, Cost> costs;
    int64_t peak = 0, last = 0;
    const Span& step = spans.spans()[0];
    ASSERT_EQ(step.kind, SpanKind::step);
    for (const Span& s : spans.spans()) {
      kinds[std::string(kSpanKindNames[size_t(s.kind)])]++;
      EXPECT_EQ(s.step, 2);
      EXPECT_GE(s.begin_ns, last);  // in the order they began
      EXPECT_GE(s.end_ns, s.begin_ns);
      EXPECT_LE(s.end_ns, step.end_ns);
      last = s.begin_ns;
      peak = std::max(peak, std::accumulate(s.memory.begin(), s.memory.end(), int64_t(0)));
      if (s.kind == SpanKind::wait) {
        EXPECT_EQ(s.name, "data");
      }
      if (s.kind != SpanKind::op) continue;
      ops[std::string(s.name)]++;
      costs[std::string(s.name)] += s.cost;
      EXPECT_FALSE(s.layer.empty() || s.action.empty()) << s.name;
      if (s.name == "attention") {
        EXPECT_EQ(s.action, "F");
      }
      if (s.name == "attention_backward") {
        EXPECT_EQ(s.action, "B");
      }
      EXPECT_EQ(s.name == "adamw", s.action == "Step");
      EXPECT_EQ(s.microbatch >= 0, s.action == "F" || s.action == "B") << s.name;
    }
    EXPECT_EQ(kinds["step"], 1);
    EXPECT_EQ(kinds["wait"], 3);
    EXPECT_EQ(kinds["action"], 3 + 3 + 1 + 2);  // F, B, ReduceGrad; norm and Step
    EXPECT_EQ(kinds["op"], rig.booking.launches);
    for (const OpTotal& t : rig.booking.ops) {
      EXPECT_EQ(ops[t.op], t.launches) << t.op;
      EXPECT_EQ(costs[t.op], t.cost) << t.op;
    }
    EXPECT_EQ(peak, rig.runner->arena().ledger().peak_total());
    rig.step(3);
    EXPECT_EQ(spans.spans().size(), n) << "not traced any more";
  }
}

TEST(OpTracer, ATracedRunIsTheSameRun) {
  test::Rig plain(test::tiny_run("gpt2", "f32", 2)), traced(test::tiny_run("gpt2", "f32", 2));
  SpanRecorder few(7);  // too few: the rest is counted
  traced.runner->trace(&few);
  for (int64_t s = 1; s <= 3; s++) {
    StepResult a = plain.step(s), b = traced.step(s);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_TRUE(plain.all("") == traced.all(""));
  EXPECT_GT(few.dropped(), 50);
}

}  // namespace
}  // namespace trireme
