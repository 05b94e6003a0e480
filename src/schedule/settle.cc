#include "schedule/settle.h"

#include <map>
#include <utility>

namespace trireme {
namespace {

struct SentAt {
  size_t rank, action;
};
using Message = std::pair<int16_t, int16_t>;  // the stage that reads it, microbatch

bool of_backward(Act a) {
  return a == Act::RecvB || a == Act::R || a == Act::B || a == Act::I || a == Act::W;
}

std::map<Message, SentAt> forward_sends(const Schedule& s) {
  std::map<Message, SentAt> out;
  for (size_t r = 0; r < s.ranks.size(); r++)
    for (size_t i = 0; i < s.ranks[r].size(); i++)
      if (const Action& a = s.ranks[r][i]; a.kind == Act::SendF) out[{int16_t(a.stage + 1), a.mb}] = {r, i};
  return out;
}

}  // namespace

std::vector<SettlePoint> settle_points(const Schedule& s) {
  const std::map<Message, SentAt> sends = forward_sends(s);
  std::vector<size_t> point(s.ranks.size());
  for (size_t r = 0; r < s.ranks.size(); r++)
    while (point[r] < s.ranks[r].size() && !of_backward(s.ranks[r][point[r]].kind)) point[r]++;
  const auto sent_before = [&](const Action& receive) {
    const SentAt& send = sends.at({receive.stage, receive.mb});
    return send.action < point[send.rank];
  };
  // Points only move towards the start, so this ends.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (size_t i = 0; i < point[r]; i++)
        if (s.ranks[r][i].kind == Act::RecvF && !sent_before(s.ranks[r][i])) point[r] = i, moved = true;
  }
  std::vector<SettlePoint> out(s.ranks.size());
  for (size_t r = 0; r < s.ranks.size(); r++) {
    out[r].action = int(point[r]);
    for (size_t i = point[r]; i < s.ranks[r].size(); i++)
      if (s.ranks[r][i].kind == Act::RecvF && sent_before(s.ranks[r][i]))
        out[r].unread.push_back(s.ranks[r][i]);
  }
  return out;
}

}  // namespace trireme
