// What ranks hold in closed form against what the generators' orders make them hold.
#include "cost/pipeline_held.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {
namespace {

// Of a chunk's microbatch: before its input gradient, behind it, and its logits.
struct Weights {
  double before, waiting, logits;
};
constexpr Weights kWeights[] = {{1, 1, 0},  {16, 17, 0}, {16, 17, 5}, {1, 17, 0},
                                {1, 17, 5}, {3, 2, 0},   {1, 1, 40}};

double counted(const std::vector<Action>& actions, int head, const Weights& w) {
  double now = 0, most = 0;
  for (const Action& a : actions) {
    const double logits = a.stage == head ? w.logits : 0;
    if (a.kind == Act::F) now += w.before + logits;
    if (a.kind == Act::I) now += w.waiting - w.before;
    if (a.kind == Act::W) now -= w.waiting + logits;
    if (a.kind == Act::B) now -= w.before + logits;
    most = std::max(most, now);
  }
  return most;
}

double closed(PipelineOrder o, int p, int v, int m, int rank, const Weights& w) {
  double most = 0;
  for (const HeldMoment& at : held_moments(o, p, v, m, rank))
    most = std::max(most, v * (at.before * w.before + at.waiting * w.waiting) + at.logits * w.logits);
  return most;
}

struct Known {
  const char* name;
  PipelineOrder order;
  int chunks;
};

TEST(PipelineHeld, IsWhatTheOrderHolds) {
  for (const Known& k : {Known{"1f1b", PipelineOrder::one_f_one_b, 1},
                         {"gpipe", PipelineOrder::gpipe, 1},
                         {"interleaved", PipelineOrder::one_f_one_b, 2},
                         {"interleaved", PipelineOrder::one_f_one_b, 3},
                         {"zb-h1", PipelineOrder::zb_h1, 1},
                         {"zb-h2", PipelineOrder::zb_h2, 1}})
    for (const int p : {2, 3, 4, 5, 8, 13})
      for (const int m : {1, 2, 3, 5, p, 2 * p - 1, 2 * p, 3 * p, 4 * p}) {
        if (k.chunks > 1 && m % p != 0) continue;
        const Schedule s = make_schedule(k.name, p, k.chunks, m);
        for (int r = 0; r < p; r++)
          for (const Weights& w : kWeights)
            EXPECT_NEAR(closed(k.order, p, k.chunks, m, r, w),
                        counted(s.ranks[size_t(r)], p * k.chunks - 1, w), 1e-9)
                << fmt::format("{} x{} p {} m {} rank {} weights {} {} {}", k.name, k.chunks, p, m, r,
                               w.before, w.waiting, w.logits);
      }
}

// Never less; of V-Half and V-Min up to a chunk more, of fewer than two microbatches a rank two at the most.
TEST(PipelineHeld, OfAVIsWhatTheOrderHolds) {
  for (const Known& k : {Known{"zb-v", PipelineOrder::zb_v, 2},
                         {"dualpipe-v", PipelineOrder::dualpipe_v, 2},
                         {"v-half", PipelineOrder::v_half, 2},
                         {"v-min", PipelineOrder::v_min, 2}})
    for (const int p : {2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31})
      for (const int m : {1, 2, 3, p, 2 * p - 1, 2 * p, 3 * p, 4 * p}) {
        const Schedule s = make_schedule(k.name, p, 2, m);
        const bool exact = k.order == PipelineOrder::zb_v || k.order == PipelineOrder::dualpipe_v;
        for (const Weights& w : kWeights) {
          // With so few the searched patterns are not at their best: what waits is not said.
          if (!exact && m < 2 * p && w.before != w.waiting) continue;
          double others = 0;
          for (int r = 1; r < p; r++) others = std::max(others, counted(s.ranks[size_t(r)], 2 * p - 1, w));
          const double first = counted(s.ranks[0], 2 * p - 1, w);
          const double chunk = (m < 2 * p ? 2.0 : exact ? 0 : 1) * std::max(w.before, w.waiting);
          SCOPED_TRACE(
              fmt::format("{} p {} m {} weights {} {} {}", k.name, p, m, w.before, w.waiting, w.logits));
          const double of_first = closed(k.order, p, 2, m, 0, w),
                       of_others = closed(k.order, p, 2, m, p - 1, w);
          EXPECT_GE(of_first, first - 1e-9);
          EXPECT_LE(of_first, first + chunk + 1e-9);
          EXPECT_GE(of_others, others - 1e-9);
          EXPECT_LE(of_others, others + chunk + 1e-9);
        }
      }
}

}  // namespace
}  // namespace trireme
