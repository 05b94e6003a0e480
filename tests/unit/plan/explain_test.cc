// What plan --explain counts, on tapes and schedules that are known.
#include "forecast/explain.h"

#include <gtest/gtest.h>

#include "sim/pipeline.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme {
namespace {

TEST(Explain, MeetingsOfATape) {
  Tape t;
  t.groups = {{"tp", {0, 1, 2}}, {"dp", {0, 3}}};
  const auto call = [&](int group, int stream, const char* name, const char* action, int64_t wire) {
    Piece p;
    p.kind = PieceKind::call, p.group = group, p.stream = stream, p.wire = wire;
    p.name = t.keep(name), p.action = t.keep(action);
    t.pieces.push_back(p);
  };
  call(0, 0, "all_reduce", "F", 100);
  call(1, 2, "all_gather", "F", 7);
  call(0, 1, "all_reduce", "F", 20);  // one of two is in compute's way
  call(0, 0, "all_reduce", "B", 3);
  call(1, 2, "all_gather", "F", 8);
  Piece op;
  op.name = t.keep("matmul"), op.wire = 1000;
  t.pieces.push_back(op);
  Piece send;
  send.kind = PieceKind::send, send.stream = 3, send.wire = 50, send.peer = 4, send.action = t.keep("SendF");
  t.pieces.push_back(send);
  const std::vector<Meeting> m = meetings_of(t);
  ASSERT_EQ(m.size(), 4u);
  const auto expect = [&](size_t i, const char* group, const char* what, const char* action, int64_t ranks,
                          int64_t calls, int64_t wire, bool beside) {
    SCOPED_TRACE(i);
    EXPECT_EQ(m[i].group, group);
    EXPECT_EQ(m[i].collective, what);
    EXPECT_EQ(m[i].action, action);
    EXPECT_EQ(m[i].ranks, ranks);
    EXPECT_EQ(m[i].calls, calls);
    EXPECT_EQ(m[i].wire, wire);
    EXPECT_EQ(m[i].beside, beside);
  };
  expect(0, "tp", "all_reduce", "F", 3, 2, 120, false);
  expect(1, "dp", "all_gather", "F", 2, 2, 15, true);
  expect(2, "tp", "all_reduce", "B", 3, 1, 3, false);
  expect(3, "pp", "send", "SendF", 2, 1, 50, true);
}

// Qi et al. 2024, table of memory: 1F1B and ZB-H1 hold p - r and p microbatches, ZB-H2 2p - 1, GPipe all.
TEST(Explain, MicrobatchesInFlight) {
  const int p = 4, m = 9;
  for (int r = 0; r < p; r++) {
    EXPECT_EQ(most_in_flight(make_schedule("1f1b", p, 1, m), r), p - r);
    EXPECT_EQ(most_in_flight(make_schedule("gpipe", p, 1, m), r), m);
    for (const char* name : {"zb-h1", "zb-h2"}) {
      const Schedule s = make_schedule(name, p, 1, m);
      EXPECT_EQ(most_in_flight(s, r), held_peaks(s)[size_t(r)].all()) << name << r;
    }
  }
  EXPECT_EQ(most_in_flight(make_schedule("zb-h2", p, 1, m), 0), 2 * p - 1);
  EXPECT_EQ(most_in_flight(make_schedule("zb-h1", p, 1, m), 0), p);
}

TEST(Explain, WhereWhatIsOffloadedWaits) {
  RunSpec run = test::tiny_llama(2, 4);
  run.train.device = "cuda", run.layout.offload = "all", run.layout.recompute = "full";
  for (const auto& [to, place] : {std::pair("host", "the host's memory"), {"file", "a file"}}) {
    run.layout.offload_to = to;
    const Schedule s = schedule_of(run);
    const Explanation e = explain(run, s, forecast(run, s, {}, 1), 1, {});
    EXPECT_NE(e.parameters_are.find(fmt::format("optimizer state waits in {}", place)), std::string::npos);
    EXPECT_NE(e.activations_are.find(fmt::format("kept inputs wait in {}", place)), std::string::npos);
  }
}

// Copies of stages: said, and met for once a step, each unit's gradients on compute's own stream.
TEST(Explain, CopiesOfStages) {
  RunSpec run = test::tiny_llama(2, 4);
  for (const char* schedule : {"1f1b", "dualpipe"}) {
    run.layout.pp = 2, run.layout.schedule = schedule;
    const Schedule s = schedule_of(run);
    const Explanation e = explain(run, s, forecast(run, s, {}, 1), 1, {});
    const bool copies = run.layout.schedule == "dualpipe";
    EXPECT_EQ(e.parameters_are,
              copies ? "layers are divided over 2 pipeline ranks, each layer on more than one of them"
                     : "layers are divided over 2 pipeline ranks");
    int64_t sums = 0;
    for (const Meeting& m : e.meetings)
      if (m.collective == "all_reduce" && m.group != "control") sums += m.wire;
    EXPECT_EQ(sums > 0, copies);
  }
}

// Whose collectives are shown is said, and what the other stages say to theirs.
TEST(Explain, SaysWhoseMeetingsTheseAre) {
  RunSpec run = test::tiny_llama(4, 4, 2);
  run.layout.pp = 3, run.model.layers = 3;
  const Schedule s = schedule_of(run);
  const Explanation e = explain(run, s, forecast(run, s, {}, 1), 1, {});
  ASSERT_EQ(e.of_stages.size(), 3u);
  for (const Explanation::OfStage& o : e.of_stages) {
    int64_t calls = 0, wire = 0;
    for (const Meeting& m : meetings_of(record_training(run, s, 1, o.rank, {})))
      calls += m.calls, wire += m.wire;
    EXPECT_EQ(o.calls, calls);
    EXPECT_EQ(o.wire, wire);
    if (o.stage == e.stage) {
      int64_t own = 0;
      for (const Meeting& m : e.meetings) own += m.calls;
      EXPECT_EQ(own, calls);
    }
  }
  EXPECT_NE(e.of_stages[0].calls, e.of_stages[1].calls);  // the one between sends to both sides
  const std::string text = explain_text(e);
  EXPECT_NE(text.find(fmt::format("(of rank {} of pipeline rank {}, the one whose peak is the largest; ",
                                  e.rank, e.stage)),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(fmt::format("pipeline rank 1 {} and ", e.of_stages[1].calls)), std::string::npos)
      << text;
  EXPECT_NE(explain_json(e).find("\"by_pipeline_rank\""), std::string::npos);
}

// A rank may wait longer than its bytes travel: for ranks that have not come so far.
TEST(Explain, NoMoreIsWaitedForThanTravels) {
  Explanation e;
  e.step_s = 10, e.compute_s = 5, e.comm_s = 2, e.exposed_s = 1;
  EXPECT_NE(explain_text(e).find("on the wire 2.00 s, of which compute waits for 1.00 s\n"),
            std::string::npos)
      << explain_text(e);
  e.exposed_s = 4;
  EXPECT_NE(explain_text(e).find(
                "on the wire 2.00 s; compute waits 4.00 s for it and for the ranks at its other end\n"),
            std::string::npos)
      << explain_text(e);
}

}  // namespace
}  // namespace trireme
