// Until when a sender must keep what crosses a border between ranks (add_transfers.cc).
#include <algorithm>

#include "base/error.h"
#include "schedule/places.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

// Of each rank, how many of its actions are surely done.
using Clock = std::vector<int>;

void merge(Clock& a, const Clock& b) {
  for (size_t i = 0; i < a.size(); i++) a[i] = std::max(a[i], b[i]);
}

}  // namespace

std::vector<int> rank_of_stages(const Schedule& s) {
  std::vector<int> rank;
  for (const std::vector<int>& holders : holders_of(s)) {
    require(holders.size() == 1, "every stage is on one rank");
    rank.push_back(holders[0]);
  }
  return rank;
}

namespace {

// By vector clocks: actions in an order in which they can run, each knowing what is done before it. A send is
// known to have been received where the action that reads it on the other rank is known to be done.
std::vector<std::vector<int>> find_send_ends(const Schedule& s) {
  ActionPlaces places(s);
  for (int r = 0; r < int(s.ranks.size()); r++)
    for (int t = 0; t < int(s.ranks[size_t(r)].size()); t++) {
      const Action& a = s.ranks[size_t(r)][size_t(t)];
      if (has_microbatch(a.kind)) places.put(a, {r, t});
    }
  // The action that reads what a send sends.
  const auto reader = [&](const Action& a) {
    if (a.kind == Act::SendF) return places.at(Act::F, a.stage + 1, a.mb);
    const ActionPlace split = places.at(Act::I, a.stage - 1, a.mb);
    return split.there() ? split : places.at(Act::B, a.stage - 1, a.mb);
  };
  const size_t ranks = s.ranks.size();
  std::vector<std::vector<int>> ends(ranks);
  std::vector<std::vector<Clock>> sent(ranks);  // by action: what its rank knew when it was issued
  std::vector<Clock> now(ranks, Clock(ranks, 0));
  std::vector<int> next(ranks, 0);
  struct Open {
    int send;
    ActionPlace reader;
  };
  std::vector<std::vector<Open>> open(ranks);  // sends whose end is not known yet
  for (size_t r = 0; r < ranks; r++) {
    ends[r].assign(s.ranks[r].size(), int(s.ranks[r].size()));
    sent[r].resize(s.ranks[r].size());
  }
  // The send that a receive waits for; its reader waits with it.
  const auto sender = [&](const Action& a) {
    if (a.kind == Act::RecvF) return places.at(Act::SendF, a.stage - 1, a.mb);
    if (a.kind == Act::RecvB) return places.at(Act::SendB, a.stage + 1, a.mb);
    return ActionPlace{};
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks; r++)
      for (; next[r] < int(s.ranks[r].size()); moved = true) {
        const int t = next[r];
        const Action& a = s.ranks[r][size_t(t)];
        const ActionPlace from = sender(a);
        if (from.there()) {
          if (next[size_t(from.rank)] <= from.step) break;
          Clock& then = sent[size_t(from.rank)][size_t(from.step)];
          merge(now[r], then);
          Clock().swap(then);  // nobody else waits for this one
        }
        now[r][r] = t + 1;
        std::erase_if(open[r], [&](const Open& o) {
          const bool read = now[r][size_t(o.reader.rank)] > o.reader.step;
          if (read) ends[r][size_t(o.send)] = t + 1;
          return read;
        });
        if (a.kind == Act::SendF || a.kind == Act::SendB)
          sent[r][size_t(t)] = now[r], open[r].push_back({t, reader(a)});
        next[r]++;
      }
  }
  return ends;
}

}  // namespace

// Every rank of a pipeline asks for the ends of one schedule.
std::vector<std::vector<int>> send_ends(const Schedule& s) {
  thread_local Schedule last;
  thread_local std::vector<std::vector<int>> ends;
  if (s == last && !ends.empty()) return ends;
  ends = find_send_ends(s);
  last = s;
  return ends;
}

}  // namespace trireme
