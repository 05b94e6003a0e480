// Until when senders keep what they sent: against the plainest way to find out. The action that reads a
// message is held back for ever, and all else runs as far as it can: where the sender then stands still, it
// would have known.
#include <gtest/gtest.h>

#include "schedule/schedule.h"

namespace trireme {
namespace {

// Where rank `of` comes to when `held` on rank `by` never runs.
size_t reach(const Schedule& s, size_t by, size_t held, size_t of) {
  std::vector<size_t> next(s.ranks.size(), 0);
  const auto sent = [&](const Action& a) {
    if (a.kind != Act::RecvF && a.kind != Act::RecvB) return true;
    const bool f = a.kind == Act::RecvF;
    const Action want{f ? Act::SendF : Act::SendB, int16_t(a.stage + (f ? -1 : 1)), a.mb};
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (size_t t = 0; t < next[r]; t++)
        if (s.ranks[r][t] == want) return true;
    return false;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.ranks.size(); r++)
      while (next[r] < s.ranks[r].size() && !(r == by && next[r] == held) && sent(s.ranks[r][next[r]]))
        next[r]++, moved = true;
  }
  return next[of];
}

TEST(SendEnds, AreWhereTheSenderKnows) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"})
    for (int pp : {2, 3}) {
      const Schedule s = add_step(add_transfers(make_schedule(name, pp, default_chunks(name), 2 * pp)));
      const auto ends = send_ends(s);
      for (size_t r = 0; r < s.ranks.size(); r++)
        for (size_t t = 0; t < s.ranks[r].size(); t++) {
          const Action& a = s.ranks[r][t];
          if (a.kind != Act::SendF && a.kind != Act::SendB) continue;
          const int stage = a.stage + (a.kind == Act::SendF ? 1 : -1);
          for (size_t by = 0; by < s.ranks.size(); by++)
            for (size_t held = 0; held < s.ranks[by].size(); held++) {
              const Action& b = s.ranks[by][held];
              const bool reads =
                  a.kind == Act::SendF ? b.kind == Act::F : b.kind == Act::B || b.kind == Act::I;
              if (!reads || b.stage != stage || b.mb != a.mb) continue;
              const size_t at = reach(s, by, held, r), size = s.ranks[r].size();
              EXPECT_EQ(size_t(ends[r][t]), std::min(at + 1, size)) << name << " " << to_text(a);
            }
        }
    }
}

}  // namespace
}  // namespace trireme
