// Times and bytes of stages out of traces: spans with durations that are known.
#include "sim/traced_stages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

// Rank r of `stages` (dp replicas of each, `slow` times slower) in m microbatches and two steps, actions one
// behind the other: F F I W I W ... Of each kind one microbatch took much longer, which a median does not
// see.
struct Made {
  int stages = 3, m = 5;
  std::vector<StageTimes> times;    // ns
  std::vector<int64_t> kept, left;  // bytes of a microbatch, behind F and behind I
  std::vector<Span> spans;

  explicit Made(uint64_t seed, bool again = false) {
    const uint64_t key = rng_key(seed, 0, "traced");
    uint64_t drawn = 0;
    const auto draw = [&] { return 1000 + int64_t(below(key, drawn++, 9000)); };
    for (int s = 0; s < stages; s++) {
      times.push_back(
          {.forward = draw(), .input = draw(), .weight = draw(), .recompute = again ? draw() : 0});
      times.back().send = draw();
      kept.push_back(4 * draw()), left.push_back(draw());
    }
    for (int step = 4; step < 6; step++)
      for (int rank = 0; rank < 2 * stages; rank++) add_rank(step, rank);
  }
  void add_rank(int step, int rank) {
    const int s = rank / 2;  // "pp dp": pairs are replicas; the first is faster
    int64_t now = 1000000 * step, held = 77;
    const auto act = [&](std::string_view name, int mb, int64_t ns, int64_t by) {
      Span a{.kind = SpanKind::action, .rank = rank, .microbatch = mb, .step = step, .name = name};
      const int64_t took = mb == 1 ? 3 * ns : rank % 2 ? ns : ns - 10;
      a.memory[size_t(Bucket::activations)] = held, held += by;
      a.begin_ns = now, a.end_ns = now += took;
      spans.push_back(a);
    };
    const StageTimes& t = times[size_t(s)];
    for (int mb = 0; mb < m; mb++) act("F", mb, t.forward, kept[size_t(s)]), act("SendF", mb, 5, 0);
    for (int mb = 0; mb < m; mb++) {
      act("RecvB", mb, 500, 0);
      if (t.recompute) act("R", mb, t.recompute, 0);
      act("I", mb, t.input, left[size_t(s)] - kept[size_t(s)]);
      act("W", mb, t.weight, -left[size_t(s)]);
    }
    act("Step", -1, 9, 0);
    message(rank, s, s + 1, "forward to", s + 1 < stages), message(rank, s, s - 1, "backward to", s > 0);
    message(rank, s, s - 1, "forward from", s > 0), message(rank, s, s + 1, "backward from", s + 1 < stages);
  }
  void message(int rank, int s, int peer, const char* way, bool there) {
    static constexpr std::string_view kLanes[] = {
        "pp forward to 0",   "pp forward to 1",    "pp forward to 2",    "pp backward to 0",
        "pp backward to 1",  "pp backward to 2",   "pp forward from 0",  "pp forward from 1",
        "pp forward from 2", "pp backward from 0", "pp backward from 1", "pp backward from 2"};
    for (std::string_view lane : kLanes) {
      if (!there || lane != std::string("pp ") + way + " " + std::to_string(peer)) continue;
      Span c{.kind = SpanKind::comm, .rank = rank, .name = "p2p", .lane = lane};
      c.begin_ns = 100, c.met_ns = 700, c.end_ns = 700 + times[size_t(s)].send;  // 600 of waiting
      spans.push_back(c);
    }
  }
};

TEST(TracedStages, MediansOfEachStage) {
  for (bool again : {false, true}) {
    const Made made(again ? 2 : 1, again);
    const TracedStages t = traced_stages(made.spans);
    EXPECT_EQ(t.microbatches, 5);
    ASSERT_EQ(t.times.size(), 3u);
    for (size_t s = 0; s < 3; s++) {
      EXPECT_EQ(t.times[s].forward, made.times[s].forward) << s;
      EXPECT_EQ(t.times[s].input, made.times[s].input + made.times[s].recompute) << s;
      EXPECT_EQ(t.times[s].weight, made.times[s].weight) << s;
      EXPECT_EQ(t.times[s].send, made.times[s].send) << s;
      EXPECT_EQ(t.held[s].before_input, made.kept[s]) << s;
      EXPECT_EQ(t.held[s].before_weight, made.left[s]) << s;
    }
  }
}

std::string refusal(std::vector<Span> spans) {
  try {
    traced_stages(spans);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}

TEST(TracedStages, WhatSaysTooLittleIsRefused) {
  EXPECT_NE(refusal({}).find("no forward pass"), std::string::npos);
  const Made made(3);
  std::vector<Span> whole = made.spans, twice = made.spans, lost;
  for (Span& s : whole)
    if (s.name == "I") s.name = "B";
  EXPECT_NE(refusal(whole).find("layout.schedule = \"zb-h1\""), std::string::npos);
  twice.push_back(twice.front());
  EXPECT_NE(refusal(twice).find("several stages a rank"), std::string::npos);
  for (const Span& s : made.spans)
    if (s.rank / 2 != 1) lost.push_back(s);
  EXPECT_EQ(refusal(lost), "the trace has no action of stage 1 of 3");
}

// Numbers of a file that nobody's run has.
TEST(TracedStages, WhatCannotBeIsRefused) {
  const Made made(1);
  const auto with_lane = [&](std::string_view lane) {
    std::vector<Span> spans = made.spans;
    for (Span& s : spans)
      if (s.kind == SpanKind::comm && s.rank == made.spans.back().rank) s.lane = lane;
    return refusal(spans);
  };
  for (const char* lane : {"pp forward to 0", "pp forward to 2147483647", "pp forward from 2147483647",
                           "pp backward from -3", "pp backward to 1024"})
    EXPECT_NE(with_lane(lane).find("right are neighbours from 0 to 1023"), std::string::npos)
        << with_lane(lane);
  std::vector<Span> two = made.spans, late = made.spans, number = made.spans;
  Span lane = *std::find_if(two.begin(), two.end(), [](const Span& s) { return s.kind == SpanKind::comm; });
  lane.lane = "pp forward to 9";
  two.push_back(lane);
  EXPECT_NE(refusal(two).find("right is one stage a rank"), std::string::npos) << refusal(two);
  for (Span& s : late)
    if (s.name.starts_with("F")) s.end_ns += 1'000'000'000'000'000;
  EXPECT_NE(refusal(late).find("right are up to 1e+12"), std::string::npos) << refusal(late);
  for (Span& s : number)
    if (s.name.starts_with("F")) s.microbatch = 2147483647;
  EXPECT_NE(refusal(number).find("right are those from 0 to 65535"), std::string::npos) << refusal(number);
}

}  // namespace
}  // namespace trireme
