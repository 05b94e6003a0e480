// Bytes by bucket of composed programs (runtime/composed_booking.h) against the papers' closed forms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "oracle.h"
#include "run_of.h"

namespace oracle {
namespace {

using namespace trireme;

double of(const BucketBytes& b, Bucket k) {
  return double(b[size_t(k)]);
}

TEST(OracleBytes, StateIsZerosTable) {
  for (const double t : {1, 2})
    for (const double p : {1, 2, 4})
      for (const int stage : {0, 1, 2, 3}) {
        const Sizes z{.t = t, .p = p, .D = 4, .m = p};
        const RunSpec run = run_of(z, {.zero = stage});
        LayerTapes tapes;
        const Schedule schedule = schedule_of(run);
        for (int r = 0; r < int(p); r++) {
          SCOPED_TRACE(fmt::format("tp {} pp {} zero {} rank {}", t, p, stage, r));
          const ComposedRank rank(run, schedule, 1, {}, r, tapes);
          const State s = zero(z.stage(r == 0, r == int(p) - 1), 4, stage, z.D);
          const Ledger& held = rank.tapes().booked;
          const auto expect = [&](Bucket b, double bytes) {
            EXPECT_NEAR(double(held.now(b)), bytes, kPadding * bytes) << kBucketNames[size_t(b)];
          };
          expect(Bucket::weights, s.weights);
          expect(Bucket::grads, s.grads);
          expect(Bucket::optimizer, s.optimizer);
        }
      }
}

// Activations that one more microbatch in flight adds: gpipe holds them all.
double added_by_a_microbatch(Sizes z, const RunOptions& o) {
  double peaks[2];
  for (double& peak : peaks) {
    const RunSpec run = run_of(z, o);
    const Schedule schedule = schedule_of(run);
    LayerTapes tapes;
    const ComposedRun composed(run, schedule, 1, {}, tapes);
    peak = of(composed.booked(1).peak, Bucket::activations);
    z.m += 1;
  }
  return peaks[1] - peaks[0];
}

// Tokens, targets and positions of 4 bytes and a loss of 4; the input that arrived is a block's own.
double batch(const Sizes& z) {
  return 16 * z.s * z.b / z.c;
}

TEST(OracleBytes, BlocksKeepWhatKorthikantiCounts) {
  for (const double t : {1, 2, 4})
    for (const double c : {1, 2})
      for (const double b : {1, 2}) {
        SCOPED_TRACE(fmt::format("tp {} cp {} of {} sequences", t, c, b));
        const Sizes z{.b = b, .t = t, .p = 4, .c = c, .m = 4};
        const double blocks = z.L / z.p;
        // The stage's output leaves, and its input is the first block's.
        EXPECT_EQ(added_by_a_microbatch(z, {.schedule = "gpipe"}), blocks * kept(z) + batch(z));
        EXPECT_EQ(added_by_a_microbatch(z, {.schedule = "gpipe", .recompute = "full"}),
                  blocks * kept_full(z) + batch(z));
      }
}

// Microbatches in flight by the peaks of ranks that have the same blocks: in units of one microbatch's bytes.
double in_flight(const RunSpec& run, int rank, double unit) {
  const Schedule schedule = schedule_of(run);
  LayerTapes tapes;
  const ComposedRun composed(run, schedule, 1, {}, tapes);
  return of(composed.booked(rank).peak, Bucket::activations) / unit;
}

TEST(OracleBytes, SchedulesHoldTheirMicrobatches) {
  const Sizes z{.L = 16, .p = 8, .m = 32};
  const double unit = z.L / z.p * kept(z) + batch(z);
  const double pass = 2;  // a backward pass adds less than this
  for (int r = 1; r < 7; r++) {
    SCOPED_TRACE(fmt::format("rank {}", r));
    const double held = in_flight(run_of(z, {.schedule = "1f1b"}), r, unit);
    EXPECT_GE(held, in_flight_1f1b(z.p, z.m, r));
    EXPECT_LT(held, in_flight_1f1b(z.p, z.m, r) + pass);
    const double all = in_flight(run_of(z, {.schedule = "gpipe"}), r, unit);
    EXPECT_GE(all, z.m);
    EXPECT_LT(all, z.m + pass);
  }
  // Qi et al. 2024 (2405.15362), table 1: of p microbatches of a whole stage ZB-V holds p, V-Half p/2 + 1 and
  // V-Min p/3 + 2 or fewer.
  const auto v = [&](const char* schedule) {
    return in_flight(run_of(z, {.schedule = schedule, .chunks = 2}), 3, unit);
  };
  EXPECT_LE(v("zb-v"), z.p + pass);
  EXPECT_LE(v("v-half"), std::ceil(z.p / 2) + 1 + pass);
  EXPECT_LE(v("v-min"), std::ceil(z.p / 3) + 2 + pass);
  EXPECT_LT(v("v-min"), v("v-half"));
  EXPECT_LT(v("v-half"), v("zb-v"));
  // Narayanan et al. 2021, section 2.2: interleaving holds more, by (p - 1) / (p v).
  const double chunks = in_flight(run_of(z, {.schedule = "interleaved", .chunks = 2}), 1, unit);
  EXPECT_LE(chunks, in_flight_interleaved(z.p, 2) + pass);
  EXPECT_GT(chunks, in_flight_1f1b(z.p, z.m, 1));
}

}  // namespace
}  // namespace oracle
