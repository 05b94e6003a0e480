// Random steps of three and four ranks against an oracle that walks the step in one global order, and against
// what holds of every timeline.
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "tapes.h"

namespace trireme {
namespace {

using test::Rank;

// Groups whose order of calls is the same on each of their ranks, because one loop writes all of them.
struct Step {
  std::vector<Rank> ranks;
  struct Entry {
    size_t rank, piece;
    int64_t meeting;  // of a call: which, from 0; else -1
  };
  std::vector<Entry> order;  // of all pieces, in which everything is known when it is needed
};

Step random_step(uint64_t seed) {
  const uint64_t key = rng_key(seed, 0, "replay");
  uint64_t at = 0;
  auto draw = [&](uint64_t n) { return int64_t(below(key, at++, n)); };
  Step s;
  const int world = 3 + int(draw(2));
  std::vector<TapeGroup> groups = {{"world", {}}, {"pair", {0, 2}}};
  for (int r = 0; r < world; r++) groups[0].ranks.push_back(r);
  for (int r = 0; r < world; r++) {
    std::vector<TapeGroup> mine = {groups[0]};
    if (r == 0 || r == 2) mine.push_back(groups[1]);
    s.ranks.emplace_back(r, mine);
  }
  int64_t meetings = 0, messages = 0;
  auto wrote = [&](size_t r, int64_t meeting = -1) {
    Rank& rank = s.ranks[r];
    rank.prices.back().before = draw(3) == 0 ? draw(4) : 0;
    s.order.push_back({r, rank.tape.pieces.size() - 1, meeting});
  };
  for (int i = 0; i < 60; i++) {
    const size_t r = size_t(draw(uint64_t(world)));
    switch (draw(6)) {
      case 0:
      case 1:
        s.ranks[r].op(draw(12)), wrote(r);
        break;
      case 2: {
        const size_t g = size_t(draw(2));
        const int64_t time = draw(9);
        for (int member : groups[g].ranks)
          s.ranks[size_t(member)].call(int(draw(3)), time, "call", int(g)), wrote(size_t(member), meetings);
        meetings++;
        break;
      }
      case 3:
        s.ranks[r].wait(1 + int(draw(2))), wrote(r);
        break;
      case 4:
        s.ranks[r].wait(1, 2), wrote(r);
        break;
      case 5: {
        const size_t to = (r + 1) % size_t(world);
        s.ranks[r].send(1 + int(draw(2)), int(to), messages, draw(7)), wrote(r);
        s.ranks[to].recv(int(r), messages++), wrote(to);
        break;
      }
    }
  }
  return s;
}

// Every lane's clock, moved on piece by piece in the global order; a call's ranks stand together in it.
std::vector<std::vector<PieceTime>> walk(const Step& s) {
  std::vector<std::vector<PieceTime>> times;
  std::vector<std::vector<int64_t>> clock(s.ranks.size(), std::vector<int64_t>(3));
  std::vector<std::vector<std::vector<int64_t>>> ends(s.ranks.size(), {3, std::vector<int64_t>()});
  std::map<int64_t, int64_t> there;
  for (const Rank& r : s.ranks) times.emplace_back(r.tape.pieces.size());
  for (size_t e = 0; e < s.order.size();) {
    size_t last = e + 1;
    while (last < s.order.size() && s.order[e].meeting >= 0 && s.order[last].meeting == s.order[e].meeting)
      last++;
    int64_t met = 0;
    for (size_t k = e; k < last; k++) {
      const auto& [r, i, meeting] = s.order[k];
      const Piece& p = s.ranks[r].tape.pieces[i];
      clock[r][0] += s.ranks[r].prices[i].before;
      times[r][i].begin = std::max(clock[r][0], clock[r][size_t(p.stream)]);
      met = std::max(met, times[r][i].begin);
    }
    for (size_t k = e; k < last; k++) {
      const auto& [r, i, meeting] = s.order[k];
      const Piece& p = s.ranks[r].tape.pieces[i];
      PieceTime& t = times[r][i];
      t.end = t.begin;
      if (p.kind == PieceKind::op || p.kind == PieceKind::send) t.end += s.ranks[r].prices[i].time;
      if (p.kind == PieceKind::call) t.end = met + s.ranks[r].prices[i].time;
      if (p.kind == PieceKind::send) there[p.mark] = t.end;
      if (p.kind == PieceKind::recv) t.end = std::max(t.end, there.at(p.mark));
      if (p.kind == PieceKind::wait && p.mark > 0)
        t.end = std::max(t.end, ends[r][size_t(p.on)].at(size_t(p.mark) - 1));
      clock[r][size_t(p.stream)] = t.end;
      ends[r][size_t(p.stream)].push_back(t.end);
    }
    e = last;
  }
  return times;
}

TEST(RandomReplay, EqualsAWalkInOneGlobalOrder) {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    const Step s = random_step(seed);
    std::vector<RankTape> ranks;
    for (const Rank& r : s.ranks) ranks.push_back(r.view());
    const Replay all = replay(ranks);
    const auto want = walk(s);
    int64_t makespan = 0;
    for (size_t r = 0; r < ranks.size(); r++)
      for (size_t i = 0; i < want[r].size(); i++) {
        ASSERT_EQ(all.ranks[r].pieces[i].begin, want[r][i].begin)
            << "seed " << seed << " rank " << r << " " << i;
        ASSERT_EQ(all.ranks[r].pieces[i].end, want[r][i].end) << "seed " << seed << " rank " << r << " " << i;
        makespan = std::max(makespan, want[r][i].end);
      }
    ASSERT_EQ(all.makespan, makespan);
  }
}

TEST(RandomReplay, OnePieceAStreamNothingBeforeItsInputsNoTimeLost) {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    const Step s = random_step(seed);
    std::vector<RankTape> ranks;
    for (const Rank& r : s.ranks) ranks.push_back(r.view());
    const Replay all = replay(ranks);
    for (size_t r = 0; r < ranks.size(); r++) {
      const RankReplay& out = all.ranks[r];
      std::vector<int64_t> free(3), busy(3);
      int64_t stood = 0, issued_at = 0;
      for (size_t i = 0; i < out.pieces.size(); i++) {
        const Piece& p = s.ranks[r].tape.pieces[i];
        const PieceTime& t = out.pieces[i];
        issued_at += s.ranks[r].prices[i].before;
        ASSERT_GE(t.begin, free[size_t(p.stream)]) << "seed " << seed;
        ASSERT_GE(t.begin, issued_at) << "seed " << seed;
        ASSERT_GE(t.met, t.begin);
        ASSERT_GE(t.end, t.met);
        free[size_t(p.stream)] = t.end;
        if (p.stream == 0) issued_at = t.end;
        busy[size_t(p.stream)] += t.end - t.begin;
        if (p.stream == 0 && p.kind != PieceKind::op) stood += t.end - t.begin;
      }
      ASSERT_EQ(out.exposed, stood);
      ASSERT_LE(out.late, out.exposed);
      ASSERT_EQ(out.busy + out.exposed, issued_at);  // the thread works or stands still
      for (int64_t b : busy) ASSERT_LE(b, all.makespan);
    }
  }
}

}  // namespace
}  // namespace trireme
