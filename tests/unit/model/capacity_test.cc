#include "model/capacity.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace trireme {
namespace {

// Against one rank's tokens in order, in every placement, units of a sequence and of a microbatch.
TEST(Capacity, ManyRanksDropWhatOneDrops) {
  const int64_t sequences = 3, seq = 24, k = 2, experts = 5, capacity = 6;
  std::vector<int32_t> whole(size_t(sequences * seq * k));
  for (size_t i = 0; i < whole.size(); i += 2) {
    whole[i] = int32_t(below(rng_key(3, 0, "capacity"), i, uint64_t(experts)));
    whole[i + 1] = int32_t((whole[i] + 1 + below(rng_key(3, 1, "capacity"), i, 2)) % experts);
  }
  for (int64_t unit : {seq, sequences * seq}) {
    std::vector<int32_t> want = whole;
    int64_t dropped = 0;
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < int64_t(whole.size()); i++) {
      if (i % (unit * k) == 0) taken.assign(size_t(experts), 0);
      int32_t& id = want[size_t(i)];
      if (++taken[size_t(id)] > capacity) id = -1 - id, dropped++;
    }
    EXPECT_GT(dropped, 10);
    for (int ranks : {1, 2, 3, 4})
      for (auto placement :
           {ContextPlacement::contiguous, ContextPlacement::zigzag, ContextPlacement::striped}) {
        const ContextPlace place{.size = ranks, .rank = 0, .placement = placement};
        const int64_t part = seq / ranks;
        auto token = [&](int r, int64_t i) { return i / part * seq + place.position(i % part, seq, r); };
        auto apart = [&](const std::vector<int32_t>& all) {
          std::vector<int32_t> out;
          for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < sequences * part; i++)
              for (int64_t j = 0; j < k; j++) out.push_back(all[size_t(token(r, i) * k + j)]);
          return out;
        };
        std::vector<int32_t> got = apart(whole);
        mark_dropped(got, {.experts = experts,
                           .choices = k,
                           .unit = unit,
                           .capacity = capacity,
                           .seq = seq,
                           .ranks = place});
        EXPECT_EQ(got, apart(want)) << ranks << " ranks";
      }
  }
}

// A unit that is cut in two between tokens: the second half drops what it would behind the first.
TEST(Capacity, GoesOnBehindOthersChoices) {
  const int64_t tokens = 37, k = 2, experts = 3, capacity = 16;
  std::vector<int32_t> ids(size_t(tokens * k));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(below(rng_key(5, 0, "cut"), i, uint64_t(experts)));
  for (int64_t cut : {0, 1, 17, 36}) {
    std::vector<int32_t> whole = ids, part(ids.begin() + cut * k, ids.end());
    CapacityUnits u{.experts = experts,
                    .choices = k,
                    .unit = tokens,
                    .capacity = capacity,
                    .seq = tokens,
                    .ranks = {},
                    .before = {}};
    mark_dropped(whole, u);
    u.unit = u.seq = tokens - cut, u.before.assign(size_t(experts), 0);
    for (int64_t i = 0; i < cut * k; i++) u.before[size_t(ids[size_t(i)])]++;
    mark_dropped(part, u);
    EXPECT_EQ(part, std::vector<int32_t>(whole.begin() + cut * k, whole.end())) << cut;
    EXPECT_LT(part.back(), 0);
  }
}

}  // namespace
}  // namespace trireme
