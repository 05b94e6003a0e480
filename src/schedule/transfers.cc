// Until when a sender must keep what crosses a border between ranks (add_transfers.cc).
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
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

// By vector clocks: actions in an order in which they can run, each knowing what is done before it. A send is
// known to have been received where the action that reads it on the other rank is known to be done.
std::vector<std::vector<int>> send_ends(const Schedule& s) {
  struct Place {
    int rank, step;
  };
  std::map<std::tuple<Act, int, int>, Place> places;
  for (int r = 0; r < int(s.ranks.size()); r++)
    for (int t = 0; t < int(s.ranks[size_t(r)].size()); t++) {
      const Action& a = s.ranks[size_t(r)][size_t(t)];
      if (has_microbatch(a.kind)) places[{a.kind, a.stage, a.mb}] = {r, t};
    }
  const auto find = [&](Act k, int stage, int mb) {
    const auto it = places.find({k, stage, mb});
    return it == places.end() ? std::optional<Place>() : it->second;
  };
  // The action that reads what a send sends.
  const auto reader = [&](const Action& a) {
    if (a.kind == Act::SendF) return *find(Act::F, a.stage + 1, a.mb);
    const auto split = find(Act::I, a.stage - 1, a.mb);
    return split ? *split : *find(Act::B, a.stage - 1, a.mb);
  };
  const size_t ranks = s.ranks.size();
  std::vector<std::vector<int>> ends(ranks);
  std::vector<std::vector<Clock>> sent(ranks);  // by action: what its rank knew when it was issued
  std::vector<Clock> now(ranks, Clock(ranks, 0));
  std::vector<int> next(ranks, 0);
  std::vector<std::vector<int>> open(ranks);  // sends whose end is not known yet
  for (size_t r = 0; r < ranks; r++) {
    ends[r].assign(s.ranks[r].size(), int(s.ranks[r].size()));
    sent[r].resize(s.ranks[r].size());
  }
  // The send that a receive waits for; its reader waits with it.
  const auto sender = [&](const Action& a) -> std::optional<Place> {
    if (a.kind == Act::RecvF) return find(Act::SendF, a.stage - 1, a.mb);
    if (a.kind == Act::RecvB) return find(Act::SendB, a.stage + 1, a.mb);
    return std::nullopt;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks; r++)
      for (; next[r] < int(s.ranks[r].size()); moved = true) {
        const int t = next[r];
        const Action& a = s.ranks[r][size_t(t)];
        const std::optional<Place> from = sender(a);
        if (from && next[size_t(from->rank)] <= from->step) break;
        if (from) merge(now[r], sent[size_t(from->rank)][size_t(from->step)]);
        now[r][r] = t + 1;
        for (size_t i = 0; i < open[r].size();) {
          const int send = open[r][i];
          const Place at = reader(s.ranks[r][size_t(send)]);
          if (now[r][size_t(at.rank)] > at.step)
            ends[r][size_t(send)] = t + 1, open[r].erase(open[r].begin() + std::ptrdiff_t(i));
          else
            i++;
        }
        if (a.kind == Act::SendF || a.kind == Act::SendB) sent[r][size_t(t)] = now[r], open[r].push_back(t);
        next[r]++;
      }
  }
  return ends;
}

}  // namespace trireme
