#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

class TransferPass {
 public:
  explicit TransferPass(const Schedule& s) : s_(s) {
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (const Action& a : s.ranks[r]) {
        require(a.kind < Act::SendF, "add_transfers on a schedule that has transfers or steps already");
        if (const size_t at = place(a.stage, a.mb); at >= rank_of_.size()) rank_of_.resize(at + 1, kNobody);
        rank_of_[place(a.stage, a.mb)] = int(r);
      }
  }

  std::vector<Action> run(int rank) const {
    const std::vector<Action>& actions = s_.ranks[size_t(rank)];
    std::vector<Action> out;
    for (size_t begin = 0, end; begin < actions.size(); begin = end) {
      for (end = begin + 1; end < actions.size(); end++)
        if (actions[begin].overlap == 0 || actions[end].overlap != actions[begin].overlap) break;
      for (size_t i = begin; i < end; i++) receive(rank, actions[i], out);
      out.insert(out.end(), actions.begin() + std::ptrdiff_t(begin), actions.begin() + std::ptrdiff_t(end));
      for (size_t i = begin; i < end; i++) send(rank, actions[i], out);
    }
    return out;
  }

 private:
  static constexpr int kNobody = -1;
  size_t place(int stage, int mb) const { return size_t(mb) * size_t(s_.stages) + size_t(stage); }
  bool elsewhere(int rank, int stage, int mb) const {
    if (stage < 0 || stage >= s_.stages) return false;
    const size_t at = place(stage, mb);
    return at < rank_of_.size() && rank_of_[at] != kNobody && rank_of_[at] != rank;
  }
  void receive(int rank, const Action& a, std::vector<Action>& out) const {
    if (a.kind == Act::F && elsewhere(rank, a.stage - 1, a.mb)) out.push_back({Act::RecvF, a.stage, a.mb});
    if ((a.kind == Act::B || a.kind == Act::I) && elsewhere(rank, a.stage + 1, a.mb))
      out.push_back({Act::RecvB, a.stage, a.mb});
  }
  void send(int rank, const Action& a, std::vector<Action>& out) const {
    if (a.kind == Act::F && elsewhere(rank, a.stage + 1, a.mb)) out.push_back({Act::SendF, a.stage, a.mb});
    if ((a.kind == Act::B || a.kind == Act::I) && elsewhere(rank, a.stage - 1, a.mb))
      out.push_back({Act::SendB, a.stage, a.mb});
  }

  const Schedule& s_;
  std::vector<int> rank_of_;  // by place()
};

}  // namespace

Schedule add_transfers(Schedule s) {
  Schedule out = s;
  const TransferPass pass(s);
  for (size_t r = 0; r < s.ranks.size(); r++) out.ranks[r] = pass.run(int(r));
  return out;
}

}  // namespace trireme
