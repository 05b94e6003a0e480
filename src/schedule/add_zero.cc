// When replicas talk, as actions of the schedule. Actions that share an overlap id are issued together: a
// ReduceGrad beside a backward reduces each layer's gradients as soon as they are there, an Unshard beside a
// forward gathers each layer's weights just before they are used. Ids are given anew, also to what was issued
// together before.
#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

bool adds_weight_grads(Act a) {
  return a == Act::B || a == Act::W;
}

class ZeroPass {
 public:
  ZeroPass(int zero, bool reshard_after_forward, bool weights_in_w)
      : zero_(zero), reshard_after_forward_(reshard_after_forward), weights_in_w_(weights_in_w) {}

  std::vector<Action> run(std::vector<Action> actions) {
    std::erase_if(actions,
                  [](const Action& a) { return a.kind == Act::ReduceGrad; });  // put beside backwards
    find_last(actions);
    for (size_t begin = 0, end; begin < actions.size(); begin = end) {
      end = begin + 1;
      while (end < actions.size() && actions[begin].overlap && actions[end].overlap == actions[begin].overlap)
        end++;
      together({actions.data() + begin, end - begin}, begin);
    }
    return std::move(out_);
  }

 private:
  // By stage, the place of its last weight gradient.
  void find_last(const std::vector<Action>& actions) {
    last_.clear();
    for (size_t i = 0; i < actions.size(); i++)
      if (adds_weight_grads(actions[i].kind)) last_[actions[i].stage] = i;
  }
  bool uses_weights(Act a) const {
    return a == Act::F || a == Act::B || a == Act::I || a == Act::R || (a == Act::W && weights_in_w_);
  }
  bool unshards(const Action& a) const { return zero_ == 3 && uses_weights(a.kind); }
  bool reduces(const Action& a, size_t at) const {
    return adds_weight_grads(a.kind) && (zero_ >= 2 || last_.at(a.stage) == at);
  }

  // Actions that are issued together, the first of them the rank's `at`-th, and what replicas say beside
  // them.
  void together(std::span<const Action> group, size_t at) {
    bool alone = group.size() == 1;
    for (size_t i = 0; i < group.size(); i++) alone &= !unshards(group[i]) && !reduces(group[i], at + i);
    if (alone) return out_.push_back(group[0]);
    if (id_ == std::numeric_limits<uint16_t>::max())
      bad_request(
          "schedule: more than {} microbatches overlap with communication in a step; give a larger "
          "batch.micro, or layout.zero = 1",
          id_ / 2);
    id_++;
    std::vector<int16_t> gathered;  // of two actions of one stage, one gathers its weights
    for (const Action& a : group)
      if (unshards(a) && std::find(gathered.begin(), gathered.end(), a.stage) == gathered.end()) {
        gathered.push_back(a.stage);
        out_.push_back({Act::Unshard, a.stage, -1, id_});
      }
    for (Action a : group) a.overlap = id_, out_.push_back(a);
    for (size_t i = 0; i < group.size(); i++)
      if (reduces(group[i], at + i)) out_.push_back({Act::ReduceGrad, group[i].stage, -1, id_});
    for (int16_t stage : gathered)
      if (reshard_after_forward_ || std::any_of(group.begin(), group.end(), [&](const Action& a) {
            return a.stage == stage && a.kind != Act::F && uses_weights(a.kind);
          }))
        out_.push_back({Act::Reshard, stage, -1, id_});
  }

  int zero_;
  bool reshard_after_forward_, weights_in_w_;
  uint16_t id_ = 0;
  std::map<int16_t, size_t> last_;
  std::vector<Action> out_;
};

}  // namespace

Schedule add_zero(Schedule s, int zero, bool reshard_after_forward, bool weights_in_w) {
  require(zero >= 0 && zero <= 3, "ZeRO has stages 0 to 3");
  for (std::vector<Action>& actions : s.ranks)
    actions = ZeroPass(zero, reshard_after_forward, weights_in_w).run(std::move(actions));
  return s;
}

}  // namespace trireme
