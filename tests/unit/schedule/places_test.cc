// The table of places, full and by hash.
#include "schedule/places.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

void expect_places(const Schedule& s) {
  ActionPlaces places(s);
  for (int r = 0; r < int(s.ranks.size()); r++)
    for (int t = 0; t < int(s.ranks[size_t(r)].size()); t++)
      if (const Action& a = s.ranks[size_t(r)][size_t(t)]; has_microbatch(a.kind)) {
        EXPECT_FALSE(places.put(a, {r, t}).there()) << to_text(a);
      }
  for (int kind = 0; kind <= int(Act::Step); kind++)
    for (int stage = -1; stage <= s.stages; stage++)
      for (int mb = -1; mb <= s.microbatches; mb++) {
        ActionPlace want;
        for (int r = 0; r < int(s.ranks.size()); r++)
          for (int t = 0; t < int(s.ranks[size_t(r)].size()); t++) {
            const Action& a = s.ranks[size_t(r)][size_t(t)];
            if (has_microbatch(a.kind) && int(a.kind) == kind && a.stage == stage && a.mb == mb)
              want = {r, t};
          }
        const ActionPlace got = places.at(Act(kind), stage, mb);
        EXPECT_EQ(got.rank, want.rank) << kind << " " << stage << " " << mb;
        EXPECT_EQ(got.step, want.step) << kind << " " << stage << " " << mb;
      }
}

TEST(ActionPlaces, AreWhereTheScheduleHasThem) {
  expect_places(add_step(add_transfers(zb_h1(3, 4))));
  expect_places(add_recompute(interleaved(2, 2, 4)));
  // Few actions for their sizes: by hash.
  Schedule sparse{.stages = 40, .microbatches = 30, .ranks = {{{Act::F, 39, 29}}, {{Act::B, 0, 0}}}};
  expect_places(sparse);
}

TEST(ActionPlaces, KeepTheFirstOfTwo) {
  for (const int microbatches : {1, 30000}) {
    const Schedule s{.stages = 1, .microbatches = microbatches, .ranks = {{{Act::F, 0, 0}, {Act::F, 0, 0}}}};
    ActionPlaces places(s);
    EXPECT_FALSE(places.put(s.ranks[0][0], {0, 0}).there());
    const ActionPlace before = places.put(s.ranks[0][1], {0, 1});
    EXPECT_TRUE(before.there());
    EXPECT_EQ(before.step, 0);
    EXPECT_EQ(places.at(Act::F, 0, 0).step, 0);
  }
}

}  // namespace
}  // namespace trireme
