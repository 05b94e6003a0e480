// Published bubbles and memory in virtual time, exactly: Qi et al. 2024 (2401.10241) tables 2 and 5,
// Narayanan et al. 2021, DeepSeek-V3 table 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/rng.h"
#include "sim/pipeline.h"

namespace trireme {
namespace {

struct InTime {
  Bubble bubble;
  int64_t makespan = 0;
};
InTime in_time(const Schedule& s, const StageTimes& t) {
  const PipelineTapes tapes = tapes_of(s, {&t, 1});
  const auto ranks = tapes.ranks();
  const Replay all = replay(ranks);
  return {bubble(ranks, all), all.makespan};
}

// Times with W no longer than F and I, where the hand-made schedules' formulas hold.
constexpr StageTimes kTimes[] = {{.forward = 1, .input = 1, .weight = 1},
                                 {.forward = 2, .input = 2, .weight = 1},
                                 {.forward = 3, .input = 4, .weight = 2},
                                 {.forward = 5, .input = 6, .weight = 4},
                                 {.forward = 4, .input = 3, .weight = 3}};

TEST(PublishedBubbles, ZeroBubbleTable2) {
  for (const StageTimes& t : kTimes)
    for (int p : {2, 4, 8})
      for (int m : {2 * p, 3 * p, 4 * p + 1}) {
        EXPECT_EQ(in_time(one_f_one_b(p, m), t).bubble.idle, (p - 1) * (t.forward + t.input + t.weight));
        EXPECT_EQ(in_time(zb_h1(p, m), t).bubble.idle, (p - 1) * (t.forward + t.input - t.weight));
        EXPECT_EQ(in_time(zb_h2(p, m), t).bubble.idle, (p - 1) * (t.forward + t.input - 2 * t.weight));
      }
}

TEST(PublishedBubbles, ZeroBubbleVHasNoneAtEqualTimes) {
  for (int p : {1, 2, 4, 8})
    for (int m : {2 * p, 3 * p, 4 * p + 1})
      EXPECT_EQ(in_time(zb_v(p, m), {}).bubble.idle, 0) << p << " " << m;
}

// (p - 1)(F + B) / v: times of a chunk are those of the rank's share divided by v.
TEST(PublishedBubbles, Interleaved) {
  for (const StageTimes& t : kTimes)
    for (int p : {2, 4, 8})
      for (int v : {2, 3, 4})
        for (int m : {p, 2 * p, 4 * p})
          EXPECT_EQ(in_time(interleaved(p, v, m), t).bubble.idle, (p - 1) * (t.forward + t.input + t.weight));
}

// (p/2 - 1)(F&B + B - 3W) with F&B = F + B; of the folded one (p - 1) in times of a chunk.
TEST(PublishedBubbles, DualPipe) {
  for (const StageTimes& t : {StageTimes{}, StageTimes{.forward = 2, .input = 2, .weight = 1},
                              StageTimes{.forward = 5, .input = 5, .weight = 3}})
    for (int p : {2, 4, 8})
      for (int m : {2 * p, 3 * p, 4 * p + 2}) {
        const int64_t b = t.input + t.weight, unit = (t.forward + b) + b - 3 * t.weight;
        EXPECT_EQ(in_time(dualpipe(p, m), t).bubble.idle, (p / 2 - 1) * unit) << p << " " << m;
        EXPECT_EQ(in_time(dualpipe_v(p, m), t).bubble.idle, (p - 1) * unit) << p << " " << m;
      }
}

// Where pairs hide h = F + B - F&B, and F is no shorter than I. With k = p/2 - 1 (folded: p - 1) the formula
// is exact as printed at F = I for k = 1; each further summand but one has an h less, and each F - I more.
TEST(PublishedBubbles, DualPipeWithOverlap) {
  for (const StageTimes& t : {StageTimes{.forward = 5, .input = 5, .weight = 3, .hidden = 2},
                              StageTimes{.forward = 9, .input = 9, .weight = 5, .hidden = 8},
                              StageTimes{.forward = 6, .input = 4, .weight = 3},
                              StageTimes{.forward = 6, .input = 4, .weight = 3, .hidden = 4},
                              StageTimes{.forward = 7, .input = 5, .weight = 5, .hidden = 1}})
    for (int p : {4, 8})
      for (int m : {2 * p, 3 * p, 4 * p + 2}) {
        const int64_t b = t.input + t.weight, printed = (t.forward + b - t.hidden) + b - 3 * t.weight;
        const auto idle = [&](int64_t k) { return k * (printed + t.forward - t.input) - (k - 1) * t.hidden; };
        EXPECT_EQ(in_time(dualpipe(p, m), t).bubble.idle, idle(p / 2 - 1)) << p << " " << m;
        EXPECT_EQ(in_time(dualpipe_v(p, m), t).bubble.idle, idle(p - 1)) << p << " " << m;
      }
  for (int m : {8, 14}) {
    const StageTimes t{.forward = 5, .input = 5, .weight = 3, .hidden = 2};
    EXPECT_EQ(in_time(dualpipe(4, m), t).bubble.idle, (5 + 8 - 2) + 8 - 3 * 3);
  }
}

// V-Half: half of 1F1B's bubble and p/2 + 1 microbatches; V-Min: two thirds, and p/3 + O(1). At equal times
// of a chunk 1F1B's is 6 (p - 1).
TEST(PublishedBubbles, ControllableMemory) {
  for (int p : {2, 3, 4, 5, 6, 7, 8})
    for (int m : {2 * p, 4 * p + 1}) {
      const Schedule half = v_half(p, m), min = v_min(p, m);
      EXPECT_LE(in_time(half, {}).bubble.idle, 3 * (p - 1)) << p;
      EXPECT_LE(in_time(min, {}).bubble.idle, 4 * (p - 1)) << p;
      for (const HeldPeak& peak : held_peaks(half)) EXPECT_LE(peak.all(), 2 * (p / 2 + 1)) << p;
      for (const HeldPeak& peak : held_peaks(min)) EXPECT_LE(peak.all(), 2 * ((p + 1) / 3 + 1)) << p;
    }
}

TEST(PublishedMemory, OfEachRank) {
  for (int p : {2, 4, 8})
    for (int m : {2 * p, 3 * p + 2}) {
      const auto g = held_peaks(gpipe(p, m)), o = held_peaks(one_f_one_b(p, m)), h1 = held_peaks(zb_h1(p, m)),
                 h2 = held_peaks(zb_h2(p, m)), v = held_peaks(zb_v(p, m)), d = held_peaks(dualpipe(p, m)),
                 dv = held_peaks(dualpipe_v(p, m));
      for (int r = 0; r < p; r++) {
        const auto at = size_t(r);
        EXPECT_EQ(g[at].all(), m);
        EXPECT_EQ(o[at].all(), p - r);
        // Worker i = r + 1: (p - i + 1) M_B + (i - 1) M_W; (2p - 2i + 1) M_B + (2i - 2) M_W.
        EXPECT_EQ(h1[at].before_input, p - r);
        EXPECT_EQ(h1[at].before_weight, r);
        EXPECT_EQ(h2[at].before_input, 2 * (p - r) - 1);
        EXPECT_EQ(h2[at].before_weight, 2 * r);
        EXPECT_EQ(v[at].all(), 2 * p);
        EXPECT_EQ(d[at].all(), p + 1);
        EXPECT_EQ(dv[at].all(), 2 * p + 1);
      }
      for (int chunks : {2, 3}) {  // on rank 0 p (1 + (p-1)/(p v)) of v chunks each; two chunks less a rank
        const auto i = held_peaks(interleaved(p, chunks, m - m % p));
        for (int r = 0; r < p; r++) EXPECT_EQ(i[size_t(r)].all(), chunks * p + p - 1 - 2 * r);
      }
    }
}

// V-Half holds (p+2)/2 microbatches and V-Min (p+4)/3, rounded down, by the table that their authors give
// beside the code; of two chunks each.
TEST(PublishedMemory, ControllableMemory) {
  for (int p = 2; p <= 16; p++)
    for (int m : {2 * p, 3 * p, 4 * p + 1}) {
      int half = 0, min = 0;
      for (const HeldPeak& peak : held_peaks(v_half(p, m))) half = std::max(half, peak.all());
      for (const HeldPeak& peak : held_peaks(v_min(p, m))) min = std::max(min, peak.all());
      EXPECT_EQ(half, 2 * ((p + 2) / 2)) << p << " " << m;
      EXPECT_EQ(min, 2 * ((p + 4) / 3)) << p << " " << m;
    }
}

std::vector<StageTimes> random_times(int stages, uint64_t seed, int most) {
  const uint64_t key = rng_key(seed, 0, "stage times");
  std::vector<StageTimes> t;
  for (uint64_t s = 0; s < uint64_t(stages); s++) {
    const auto draw = [&](uint64_t i) { return 1 + int64_t(below(key, 3 * s + i, uint64_t(most))); };
    t.push_back({draw(0), draw(1), draw(2)});
  }
  return t;
}
int64_t makespan_of(const Schedule& s, std::span<const StageTimes> t) {
  const PipelineTapes tapes = tapes_of(s, t);
  return replay(tapes.ranks()).makespan;
}

// Clock tick by clock tick: at each, every rank that is free begins its next action if what it reads is
// there; actions that are issued together begin when all of it is, and what they make is there when all end.
int64_t ticks_of(const Schedule& s, std::span<const StageTimes> t) {
  std::map<std::tuple<bool, int, int>, int64_t> ends;  // backward, stage, microbatch
  std::vector<size_t> next(s.ranks.size(), 0);
  std::vector<int64_t> free(s.ranks.size(), 0);
  size_t left = 0;
  for (const auto& actions : s.ranks) left += actions.size();
  const auto there = [&](const Action& a, int64_t now) {
    const int from = a.kind != Act::F ? a.stage + 1 : a.stage - 1;
    if (a.kind == Act::W || from < 0 || from >= s.stages) return true;
    const auto end = ends.find({a.kind != Act::F, from, a.mb});
    return end != ends.end() && end->second <= now;
  };
  for (int64_t now = 0;; now++)
    for (size_t r = 0; r < s.ranks.size(); r++) {
      if (free[r] > now || next[r] == s.ranks[r].size()) continue;
      const auto& actions = s.ranks[r];
      size_t end = next[r] + 1;
      while (actions[next[r]].overlap && end < actions.size() &&
             actions[end].overlap == actions[next[r]].overlap)
        end++;
      bool all = true;
      for (size_t i = next[r]; i < end; i++) all &= there(actions[i], now);
      if (!all) continue;
      free[r] = now;
      for (size_t i = next[r]; i < end; i++) {
        const Action& a = actions[i];
        const StageTimes& one = t[size_t(a.stage)];
        free[r] += a.kind == Act::F   ? one.forward
                   : a.kind == Act::I ? one.input
                   : a.kind == Act::W ? one.weight
                                      : one.input + one.weight;
      }
      if (end - next[r] == 2)  // generators issue a forward and a backward together
        free[r] -=
            std::min(t[size_t(actions[next[r]].stage)].hidden, t[size_t(actions[end - 1].stage)].hidden);
      for (size_t i = next[r]; i < end; i++)
        if (actions[i].kind != Act::W)
          ends[{actions[i].kind != Act::F, actions[i].stage, actions[i].mb}] = free[r];
      left -= end - next[r], next[r] = end;
      if (left == 0) return *std::max_element(free.begin(), free.end());
    }
}

TEST(UnequalStages, EverySchedulesTimeIsThatOfTheClock) {
  int pairs = 0;
  for (std::string_view name : schedule_names())
    for (int p : {2, 3, 4, 8})
      for (uint64_t seed : {1, 2, 3}) {
        const int v = default_chunks(name), m = 2 * p + int(seed);
        if (name == "dualpipe" && p % 2 != 0) continue;
        const Schedule s = make_schedule(name, p, v, m);
        auto t = random_times(s.stages, seed, 9);
        for (size_t i = 0; seed == 3 && i < t.size(); i++) t[i].hidden = int64_t(i % 3);
        EXPECT_EQ(makespan_of(s, t), ticks_of(s, t)) << name << " " << p << " " << seed;
        pairs += s.ranks[0].size() > 1 && name.starts_with("dualpipe");
      }
  EXPECT_GE(pairs, 18);
}

// Of a line of machines: every microbatch's forward passes the slowest one, then every backward.
TEST(UnequalStages, GPipe) {
  for (int p : {1, 2, 4, 8})
    for (int m : {1, 2, 5, 16})
      for (uint64_t seed : {1, 2, 3}) {
        const auto t = random_times(p, seed, 30);
        int64_t all = 0, forward = 0, backward = 0;
        for (const StageTimes& s : t) {
          all += s.forward + s.input + s.weight;
          forward = std::max(forward, s.forward), backward = std::max(backward, s.input + s.weight);
        }
        EXPECT_EQ(makespan_of(gpipe(p, m), t), all + (m - 1) * (forward + backward)) << p << " " << m;
      }
}

// 1F1B with one stage k whose every action takes longer than another stage's three: it never waits but for
// the first backward, while it runs p-1-k forwards ahead, and between its last p-1-k backwards.
TEST(UnequalStages, OneFOneBWithASlowStage) {
  for (int p : {2, 4, 8})
    for (int m : {p, p + 3, 3 * p})
      for (int k = 0; k < p; k++) {
        auto t = random_times(p, uint64_t(k + 1), 9);
        StageTimes& slow = t[size_t(k)];
        slow.forward += 27, slow.input += 27, slow.weight += 27;
        int64_t before = 0, behind = 0;
        for (int s = 0; s < p; s++) {
          const StageTimes& one = t[size_t(s)];
          (s < k ? before : behind) += s == k ? 0 : one.forward + one.input + one.weight;
        }
        const int64_t f = slow.forward, b = slow.input + slow.weight, ahead = p - 1 - k;
        EXPECT_EQ(makespan_of(one_f_one_b(p, m), t), before + m * (f + b) +
                                                         std::max<int64_t>(0, behind - ahead * f) +
                                                         std::max<int64_t>(0, behind - ahead * b))
            << p << " " << m << " " << k;
      }
}

// Table 5 from the measured times of table 9, in microseconds: (cost - m (F + I + W)) / cost, where cost is
// the longest time from a rank's first action to its last; printed with four digits.
TEST(PublishedBubbles, ZeroBubbleTable5FromMeasuredTimes) {
  struct Row {
    int p, m;
    StageTimes t;
    double one_f_one_b, h1, h2;
  };
  const auto times = [](int64_t f, int64_t i, int64_t w, int64_t link) {
    return StageTimes{.forward = f, .input = i, .weight = w, .send = link};
  };
  const Row rows[] = {{8, 24, times(18522, 18086, 9337, 601), .2431, .1585, .1083},
                      {8, 32, times(18513, 18086, 9331, 626), .1985, .1242, .0837},
                      {8, 64, times(18546, 18097, 9321, 762), .1240, .0674, .0444},
                      {8, 24, times(29718, 29444, 19927, 527), .2347, .1323, .0698},
                      {8, 32, times(29802, 29428, 19530, 577), .1898, .1045, .0559},
                      {8, 64, times(29935, 29621, 19388, 535), .1091, .0554, .0294},
                      {16, 48, times(11347, 11248, 8132, 377), .2552, .1397, .0672},
                      {16, 64, times(11307, 11254, 8101, 379), .2082, .1088, .0516},
                      {16, 128, times(11325, 11308, 8109, 378), .1251, .0576, .0266},
                      {32, 96, times(10419, 10207, 7715, 408), .2646, .1421, .0641},
                      {32, 128, times(10408, 10204, 7703, 408), .2168, .1106, .0490},
                      {32, 256, times(10402, 10248, 7698, 460), .1352, .0594, .0257}};
  for (const Row& row : rows) {
    const auto rate = [&](const Schedule& s) {
      const auto cost = double(in_time(s, row.t).bubble.span);
      return (cost - row.m * double(row.t.forward + row.t.input + row.t.weight)) / cost;
    };
    EXPECT_NEAR(rate(one_f_one_b(row.p, row.m)), row.one_f_one_b, 5.1e-5) << row.p << " " << row.m;
    EXPECT_NEAR(rate(zb_h1(row.p, row.m)), row.h1, 5.1e-5) << row.p << " " << row.m;
    EXPECT_NEAR(rate(zb_h2(row.p, row.m)), row.h2, 5.1e-5) << row.p << " " << row.m;
  }
  // Its interleaved column is .1055 at the first row. Three chunks a rank, by a sequence that table 5 does
  // not print, come out at .1090: 46 link times above (p-1)(F+I+W)/v (.0886 without links), where .1055
  // is 38.
  StageTimes chunk = rows[0].t;
  chunk.forward /= 3, chunk.input /= 3, chunk.weight /= 3;
  const auto cost = double(in_time(interleaved(8, 3, 24), chunk).bubble.span);
  const double whole = 24. * 3 * double(chunk.forward + chunk.input + chunk.weight);
  EXPECT_NEAR((cost - whole) / cost, .1090, 5.1e-5);
  EXPECT_NEAR((cost - whole) / double(chunk.send), 7. * 45945 / 3 / 601 + 46, 0.1);
}

// Qi et al. 2024, table 4, row 1.5B, GB of the fullest GPU, by what is printed with it: 22 layers and the
// embedding and the head, which count as one each, on 8 stages; hidden 2304, 24 heads, sequences of 1024, 6 a
// microbatch; 12 hidden^2 parameters a layer at 16 bytes (two in 16 bits, master copy and moments); a layer's
// activations by its table 1, s b h (34 + 5 a s / h), and 32 s b h from I to W. Within 6 %: allocators'
// holes, buffers of messages and logits are in the paper's and not here.
TEST(PublishedMemory, ZeroBubbleTable4) {
  const double h = 2304, s = 1024, b = 6, a = 24, layers = 3, gb = 1e-9;
  const double m_b = layers * s * b * h * (34 + 5 * a * s / h) * gb, m_w = layers * s * b * h * 32 * gb;
  const double states = layers * 12 * h * h * 16 * gb;
  const auto fullest = [&](const Schedule& one, double chunks) {
    double most = 0;  // of the ranks with three layers: the first and the last have two
    const auto peaks = held_peaks(one);
    for (size_t r = 1; r + 1 < peaks.size(); r++)
      most = std::max(most, (peaks[r].before_input * m_b + peaks[r].before_weight * m_w) / chunks);
    return most + states;
  };
  const auto near = [](double got, double printed) { EXPECT_NEAR(got / printed, 1, .06) << printed; };
  near(fullest(one_f_one_b(8, 24), 1), 30);
  near(fullest(interleaved(8, 3, 24), 3), 40);
  near(8 * m_b + states, 32);   // ZB-1p: the search's limit, p M_B
  near(16 * m_b + states, 59);  // ZB-2p: 2p M_B
}

}  // namespace
}  // namespace trireme
