// The automatic schedule against the published ones, against every order of small cases, and against the
// simulator that the rest of the program uses.
#include "sim/find_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "sanitized.h"

namespace trireme {
namespace {

// Ten times slower there.
const int kTrials = test::kSanitized ? 6 : 16, kMostRanks = test::kSanitized ? 4 : 8;

struct Took {
  int64_t makespan, span, idle;
};
Took took(const Schedule& s, std::span<const StageTimes> t) {
  const PipelineTapes tapes = tapes_of(s, t);
  const auto ranks = tapes.ranks();
  const Replay all = replay(ranks);
  const Bubble b = bubble(ranks, all);
  return {all.makespan, b.span, b.idle};
}
std::vector<StageTimes> equal_times(int p, const StageTimes& t) {
  return std::vector<StageTimes>(size_t(p), t);
}
Schedule found(std::span<const StageTimes> t, int m, int most, Aim aim) {
  return find_schedule(t, m, std::vector<HeldLimit>(t.size(), {.most = most}), aim);
}
void expect_within(const Schedule& s, int most) {
  for (const HeldPeak& h : held_peaks(s)) EXPECT_LE(h.all(), most);
}

// Random times, unequal too, with links: never longer than 1F1B and ZB-H1, whose memory is the limit, by
// either measure; nor than ZB-H2 with its memory. What is found is valid and within the limit.
TEST(FindSchedule, NeverLongerThanThePublishedOnes) {
  const uint64_t key = rng_key(7, 0, "find");
  uint64_t at = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    return low + int64_t(below(key, at++, uint64_t(high - low + 1)));
  };
  int cases = 0, shorter = 0;
  for (int trial = 0; trial < kTrials; trial++) {
    const int p = int(draw(1, 6)), m = int(draw(1, 3 * p + 2));
    const int64_t link = draw(0, 2) ? 0 : draw(1, 30);
    std::vector<StageTimes> t =
        equal_times(p, {.forward = draw(1, 60), .input = draw(1, 60), .weight = draw(1, 60), .send = link});
    if (trial % 3 != 0)
      for (StageTimes& s : t) s = {draw(1, 60), draw(0, 60), draw(1, 60), 0, 0, link};
    for (Aim aim : {Aim::step, Aim::span})
      for (int ahead : {1, 2}) {
        const int most = ahead * (p - 1) + 1;
        const Schedule s = found(t, m, most, aim);
        EXPECT_TRUE(validate(s).empty());
        expect_within(s, most);
        const auto length = [&](const Schedule& one) {
          const Took out = took(one, t);
          return aim == Aim::step ? out.makespan : out.span;
        };
        int64_t published = std::min(length(one_f_one_b(p, m)), length(zb_h1(p, m)));
        if (ahead == 2) published = std::min(published, length(zb_h2(p, m)));
        EXPECT_LE(length(s), published) << trial << ": p " << p << " m " << m << " limit " << most;
        cases++, shorter += length(s) < published;
      }
  }
  EXPECT_GT(shorter, cases / 5) << "of " << cases;  // it searches, and does not only choose
}

TEST(FindSchedule, ReachesZeroBubbleResultsWithTheirMemory) {
  for (int p = 2; p <= kMostRanks; p *= 2)
    for (int m : {2 * p})
      for (const StageTimes& t : {StageTimes{}, StageTimes{.forward = 3, .input = 4, .weight = 2},
                                  StageTimes{.forward = 2, .input = 2, .weight = 1}}) {
        const auto all = equal_times(p, t);
        EXPECT_LE(took(found(all, m, p, Aim::span), all).idle, (p - 1) * (t.forward + t.input - t.weight));
        EXPECT_LE(took(found(all, m, 2 * p - 1, Aim::span), all).idle,
                  (p - 1) * (t.forward + t.input - 2 * t.weight));
      }
}

// Every order of F, I and W of one rank with m microbatches in ascending order, that holds at most `most`.
void orders(int m, int most, std::vector<Act>& sofar, int f, int i, int w,
            std::vector<std::vector<Act>>& out) {
  if (w == m) return out.push_back(sofar);
  const auto go = [&](Act a, int nf, int ni, int nw) {
    sofar.push_back(a), orders(m, most, sofar, nf, ni, nw, out), sofar.pop_back();
  };
  if (f < m && f - w < most) go(Act::F, f + 1, i, w);
  if (i < f) go(Act::I, f, i + 1, w);
  if (w < i) go(Act::W, f, i, w + 1);
}
Schedule written_out(std::span<const std::vector<Act>* const> ranks, int m) {
  Schedule s{.stages = int(ranks.size()), .microbatches = m, .ranks = {}};
  for (size_t r = 0; r < ranks.size(); r++) {
    int16_t next[4] = {0, 0, 0, 0};
    std::vector<Action>& out = s.ranks.emplace_back();
    for (Act a : *ranks[r]) out.push_back({a, int16_t(r), next[size_t(a)]++});
  }
  return s;
}

TEST(FindSchedule, IsTheBestOfAllOrdersOfSmallCases) {
  const uint64_t key = rng_key(9, 0, "small");
  uint64_t at = 0;
  const auto draw = [&](int64_t most) { return 1 + int64_t(below(key, at++, uint64_t(most))); };
  for (int trial = 0; trial < 12; trial++) {
    const int m = 3, most = 1 + trial % 3;
    std::vector<StageTimes> t;
    for (int r = 0; r < 2; r++) t.push_back({draw(9), draw(9), draw(9), 0, 0, trial % 4 ? 0 : draw(5)});
    std::vector<std::vector<Act>> all;
    std::vector<Act> sofar;
    orders(m, most, sofar, 0, 0, 0, all);
    int64_t makespan = INT64_MAX, span = INT64_MAX;
    for (const auto& a : all)
      for (const auto& b : all) {
        const std::vector<Act>* const both[] = {&a, &b};
        const Schedule s = written_out(both, m);
        try {
          const Took one = took(s, t);
          makespan = std::min(makespan, one.makespan), span = std::min(span, one.span);
        } catch (const std::exception&) {  // ranks that wait for each other
        }
      }
    EXPECT_EQ(took(found(t, m, most, Aim::step), t).makespan, makespan) << trial << " of " << all.size();
    EXPECT_EQ(took(found(t, m, most, Aim::span), t).span, span) << trial;
  }
}

// Qi et al. 2024, table 5, column ZB-2p: its search, with room for 2p microbatches, on the measured times of
// its table 9. By its table 1 M_B : M_W is (34 + 5as/h) : 32.
TEST(FindSchedule, PublishedSearchOfZeroBubble2p) {
  const StageTimes one{.forward = 18522, .input = 18086, .weight = 9337, .send = 601};
  const int p = 8, m = 24, heads = 24, seq = 1024, hidden = 2304;
  const int64_t input = 34 + 5 * heads * seq / hidden, weight = 32;
  const auto t = equal_times(p, one);
  const std::vector<HeldLimit> limits(p, {2 * p * input, input, weight});
  const Took out = took(find_schedule(t, m, limits, Aim::span), t);
  const double whole = m * double(one.forward + one.input + one.weight);
  EXPECT_LE((double(out.span) - whole) / double(out.span), .04335);  // .0433 there; ZB-H2 has .1083
}

// The same of the 28.3B row with 32 ranks and 256 microbatches: .0018 there, .0023 here; ZB-H2 has .0257.
// .0018 is what rank 0 waits for its first gradient when its 2p forwards are done.
TEST(FindSchedule, PublishedSearchOfZeroBubble2pOf32Ranks) {
  if (test::kSanitized) GTEST_SKIP() << "a search of minutes there; the one of 8 ranks is of the same code";
  const StageTimes one{.forward = 10402, .input = 10248, .weight = 7698, .send = 460};
  const int p = 32, m = 256, heads = 48, seq = 1024, hidden = 6144;
  const int64_t input = 34 + 5 * heads * seq / hidden, weight = 32;
  const auto t = equal_times(p, one);
  const std::vector<HeldLimit> limits(p, {2 * p * input, input, weight});
  const Took out = took(find_schedule(t, m, limits, Aim::span), t);
  const double whole = m * double(one.forward + one.input + one.weight);
  EXPECT_LE((double(out.span) - whole) / double(out.span), .00235);
  EXPECT_GE(double(out.span) - whole,
            double(p * one.forward + (p - 1) * (one.input + 2 * one.send)) - double(2 * p * one.forward));
}

TEST(FindSchedule, OfManyRanksAndMicrobatches) {
  const auto t = equal_times(128, {.forward = 2, .input = 3, .weight = 2});
  const Schedule s = found(t, 300, 128, Aim::step);
  EXPECT_LE(took(s, t).makespan, took(zb_h1(128, 300), t).makespan);
  try {
    found(equal_times(1024, {}), 1000, 4, Aim::step);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
  }
}

// Two ranks with room for two microbatches: gradients of the weights come where memory asks for them.
TEST(FindSchedule, Golden) {
  const auto t = equal_times(2, {.forward = 2000, .input = 2000, .weight = 1000});
  const Schedule s = found(t, 4, 2, Aim::step);
  EXPECT_EQ(to_text(s),
            "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3\n"
            "1F0 1I0 1F1 1I1 1W0 1W1 1F2 1I2 1F3 1I3 1W2 1W3\n");
  EXPECT_EQ(took(s, t).makespan, 23000);
}

TEST(FindSchedule, EqualArgumentsGiveEqualSchedules) {
  const auto t = equal_times(4, {.forward = 5, .input = 7, .weight = 3, .send = 1});
  EXPECT_EQ(found(t, 9, 5, Aim::step), found(t, 9, 5, Aim::step));
}

}  // namespace
}  // namespace trireme
