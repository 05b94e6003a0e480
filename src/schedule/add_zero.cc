// When replicas talk, as actions of the schedule. Actions that share an overlap id are issued together: a
// ReduceGrad beside a backward reduces each layer's gradients as soon as they are there, an Unshard beside a
// forward gathers each layer's weights just before they are used.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

bool adds_weight_grads(Act a) {
  return a == Act::B || a == Act::W;
}
bool uses_weights(Act a) {
  return a == Act::F || a == Act::B || a == Act::I || a == Act::R;
}

class Pass {
 public:
  Pass(int zero, bool reshard_after_forward) : zero_(zero), reshard_after_forward_(reshard_after_forward) {}

  std::vector<Action> run(const std::vector<Action>& actions) {
    for (size_t i = 0; i < actions.size(); i++) {
      const Action& a = actions[i];
      if (a.kind == Act::ReduceGrad) continue;  // each is put beside its backward
      bool last = adds_weight_grads(a.kind) && is_last(actions, i);
      bool reduce = adds_weight_grads(a.kind) && (zero_ >= 2 || last);
      bool unshard = zero_ == 3 && uses_weights(a.kind);
      if (reduce || unshard)
        together(a, unshard, reduce);
      else
        out_.push_back(a);
    }
    return std::move(out_);
  }

 private:
  static bool is_last(const std::vector<Action>& actions, size_t i) {
    return std::none_of(actions.begin() + std::ptrdiff_t(i) + 1, actions.end(), [&](const Action& later) {
      return adds_weight_grads(later.kind) && later.stage == actions[i].stage;
    });
  }

  void together(Action a, bool unshard, bool reduce) {
    require(a.overlap == 0, "add_zero on a schedule that overlaps actions already");
    if (id_ == std::numeric_limits<uint16_t>::max())
      bad_request(
          "schedule: more than {} microbatches overlap with communication in a step; give a larger "
          "batch.micro, or layout.zero = 1",
          id_ / 2);
    a.overlap = ++id_;
    bool reshard = unshard && (a.kind != Act::F || reshard_after_forward_);
    if (unshard) out_.push_back({Act::Unshard, a.stage, -1, id_});
    out_.push_back(a);
    if (reduce) out_.push_back({Act::ReduceGrad, a.stage, -1, id_});
    if (reshard) out_.push_back({Act::Reshard, a.stage, -1, id_});
  }

  int zero_;
  bool reshard_after_forward_;
  uint16_t id_ = 0;
  std::vector<Action> out_;
};

}  // namespace

Schedule add_zero(Schedule s, int zero, bool reshard_after_forward) {
  require(zero >= 0 && zero <= 3, "ZeRO has stages 0 to 3");
  for (std::vector<Action>& actions : s.ranks) actions = Pass(zero, reshard_after_forward).run(actions);
  return s;
}

}  // namespace trireme
