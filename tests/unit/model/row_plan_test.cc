// Exchanges of rows by hand: every row goes to its expert's owner once, and comes back to its place.
#include "model/row_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace trireme {
namespace {

std::vector<int64_t> random_counts(int ranks, int64_t experts, uint64_t seed) {
  const uint64_t key = rng_key(seed, 0, "counts");
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < ranks * experts; i++)
    counts.push_back(below(key, uint64_t(2 * i), 4) == 0 ? 0 : int64_t(below(key, uint64_t(2 * i + 1), 9)));
  return counts;
}

// A row as a number: rank, expert, place among the rank's rows of the expert.
using Row = std::array<int64_t, 3>;
std::vector<Row> rows_of(const std::vector<int64_t>& counts, int64_t rank, int64_t experts) {
  std::vector<Row> rows;
  for (int64_t e = 0; e < experts; e++)
    for (int64_t i = 0; i < counts[size_t(rank * experts + e)]; i++) rows.push_back({rank, e, i});
  return rows;
}

TEST(RowPlan, EveryRowVisitsItsExpertOnce) {
  for (int ranks : {1, 2, 3, 4})
    for (int64_t capacity : {1, 3, 7, 1000})
      for (uint64_t seed = 1; seed <= 5; seed++) {
        const int64_t own = 3, experts = own * ranks;
        const std::vector<int64_t> counts = random_counts(ranks, experts, seed);
        std::vector<RowPlan> plans;
        std::vector<std::vector<Row>> out;  // in the order of sending
        for (int r = 0; r < ranks; r++) {
          plans.emplace_back(counts, ranks, r, capacity);
          const std::vector<Row> rows = rows_of(counts, r, experts);
          const std::vector<int32_t> to = plans.back().sending();
          ASSERT_EQ(to.size(), rows.size());
          out.emplace_back(rows.size());
          for (size_t i = 0; i < rows.size(); i++) out.back().at(size_t(to[i])) = rows[i];
        }
        std::map<Row, int> visits;
        for (int64_t t = 0; t < plans[0].rounds(); t++) {
          std::vector<RowPlan::Round> rounds;
          for (const RowPlan& p : plans) rounds.push_back(p.round(t));
          for (int r = 0; r < ranks; r++) {
            std::vector<Row> received;
            for (int from = 0; from < ranks; from++) {
              const auto& theirs = rounds[size_t(from)];
              ASSERT_EQ(theirs.send[size_t(r)], rounds[size_t(r)].receive[size_t(from)]);
              int64_t at = theirs.first;
              for (int d = 0; d < r; d++) at += theirs.send[size_t(d)];
              for (int64_t i = 0; i < theirs.send[size_t(r)]; i++)
                received.push_back(out[size_t(from)].at(size_t(at + i)));
            }
            const auto& mine = rounds[size_t(r)];
            ASSERT_LE(int64_t(received.size()), capacity);
            ASSERT_EQ(int64_t(mine.order.size()), capacity);
            ASSERT_EQ(mine.offsets.back(), int64_t(received.size()));
            for (int64_t e = 0; e < own; e++)
              for (int32_t i = mine.offsets[size_t(e)]; i < mine.offsets[size_t(e) + 1]; i++) {
                const Row& row = received.at(size_t(mine.order[size_t(i)]));
                EXPECT_EQ(row[1], r * own + e);
                EXPECT_EQ(mine.back[size_t(mine.order[size_t(i)])], i);
                visits[row]++;
              }
          }
        }
        int64_t all = 0;
        for (int r = 0; r < ranks; r++) all += plans[size_t(r)].sent() - plans[size_t(r)].received();
        EXPECT_EQ(all, 0);
        for (int r = 0; r < ranks; r++)
          for (const Row& row : out[size_t(r)]) EXPECT_EQ(visits[row], 1);
        if (capacity == 1000) {
          EXPECT_EQ(plans[0].rounds(), 1);
        }
      }
}

TEST(RowPlan, BalancedCountsAddUp) {
  for (int64_t rows : {0, 7, 92, 1000}) {
    const std::vector<int64_t> counts = RowPlan::balanced(rows, 3, 6);
    for (int r = 0; r < 3; r++) {
      const RowPlan p(counts, 3, r, rows + 3);
      EXPECT_EQ(p.sent(), rows);
      EXPECT_LE(std::abs(p.received() - rows), 3);
      EXPECT_EQ(p.rounds(), 1);
    }
  }
}

}  // namespace
}  // namespace trireme
