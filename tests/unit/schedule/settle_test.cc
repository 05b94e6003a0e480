#include "schedule/settle.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme {
namespace {

// By hand. Rank 0 has sent microbatch 1 when it settles, and rank 1 has not come to it.
TEST(SettlePoints, OfOneForwardOneBackward) {
  const Schedule s = add_step(add_transfers(one_f_one_b(2, 3)));
  const std::vector<SettlePoint> points = settle_points(s);
  EXPECT_EQ(to_text(s.ranks[0][size_t(points[0].action)]), "0RecvB0");
  EXPECT_EQ(to_text(s.ranks[1][size_t(points[1].action)]), "1B0");
  EXPECT_TRUE(points[0].unread.empty());
  ASSERT_EQ(points[1].unread.size(), 1u);
  EXPECT_EQ(to_text(points[1].unread[0]), "1RecvF1");
}

// 0F0 2B0 0F1: a message of the first rank's that lies beyond its point ends the second one's before its own
// first backward pass.
TEST(SettlePoints, NobodyWaitsForWhatLiesBeyondAnothersPoint) {
  const Schedule turned = add_transfers(parse_schedule("0F0 2F0 2B0 0F1 2F1 2B1 0B0 0B1\n1F0 1F1 1B0 1B1\n"));
  const std::vector<SettlePoint> points = settle_points(turned);
  EXPECT_EQ(to_text(turned.ranks[0][size_t(points[0].action)]), "2B0");
  EXPECT_EQ(to_text(turned.ranks[1][size_t(points[1].action)]), "1RecvF1");
}

// Up to the points ranks need nobody beyond theirs, and what was sent is read before or left over: each once.
TEST(SettlePoints, AreReachedByAll) {
  for (std::string_view name : schedule_names())
    for (int pp : {2, 3, 4})
      for (int m : {1, 2, 5, 9, 12}) {
        if (name == "file" || name == "auto" || name == "dualpipe") continue;
        if (name == "interleaved" && m % pp != 0) continue;
        SCOPED_TRACE(testing::Message() << name << " " << pp << " " << m);
        const Schedule s = add_step(add_transfers(make_schedule(name, pp, default_chunks(name), m)));
        const std::vector<SettlePoint> points = settle_points(s);
        std::vector<Action> sent, read;
        for (size_t r = 0; r < s.ranks.size(); r++) {
          const std::vector<Action>& all = s.ranks[r];
          const auto end = all.begin() + points[r].action;
          EXPECT_TRUE(std::all_of(all.begin(), end, [](const Action& a) {
            return a.kind == Act::F || a.kind == Act::SendF || a.kind == Act::RecvF;
          }));
          for (auto a = all.begin(); a != end; a++) {
            if (a->kind == Act::SendF) sent.push_back({Act::RecvF, int16_t(a->stage + 1), a->mb});
            if (a->kind == Act::RecvF) read.push_back(*a);
          }
          ASSERT_NE(end, all.end());
        }
        const auto by_place = [](const Action& a, const Action& b) {
          return std::pair(a.stage, a.mb) < std::pair(b.stage, b.mb);
        };
        for (const Action& a : read)
          EXPECT_NE(std::find(sent.begin(), sent.end(), a), sent.end()) << to_text(a);
        for (const SettlePoint& p : points) read.insert(read.end(), p.unread.begin(), p.unread.end());
        std::sort(sent.begin(), sent.end(), by_place), std::sort(read.begin(), read.end(), by_place);
        EXPECT_EQ(read, sent);
      }
}

}  // namespace
}  // namespace trireme
