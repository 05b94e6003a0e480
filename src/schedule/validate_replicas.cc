// Steps, and what replicas say to each other (add_step.cc, add_zero.cc), held against the weight gradients
// and the uses of weights beside which they stand.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "schedule/faults.h"

namespace trireme {
namespace {

bool adds_weight_grads(const Action& a) {
  return a.kind == Act::B || a.kind == Act::W;
}

class ReplicaCheck {
 public:
  explicit ReplicaCheck(const Schedule& s) : s_(s) {}

  void run() {
    count();
    for (int r = 0; r < int(s_.ranks.size()); r++) check_step(r);
    if (steps_)
      for (int r = 0; r < int(s_.ranks.size()); r++)
        with_each() ? check_each_reduced(r) : check_reduced_once(r);
    for (int r = 0; r < int(s_.ranks.size()); r++) check_weights(r);
    check_kept();
  }

 private:
  template <class... A>
  [[noreturn]] void fail(std::span<const ActionPlace> here, fmt::format_string<A...> f, A&&... a) const {
    schedule_fault(s_, here, fmt::format(f, std::forward<A>(a)...));
  }
  template <class... A>
  [[noreturn]] void fail(ActionPlace here, fmt::format_string<A...> f, A&&... a) const {
    schedule_fault(s_, {&here, 1}, fmt::format(f, std::forward<A>(a)...));
  }
  const std::vector<Action>& actions(int r) const { return s_.ranks[size_t(r)]; }
  std::string text(ActionPlace p) const { return to_text(Action{at(p).kind, at(p).stage, at(p).mb}); }
  const Action& at(ActionPlace p) const { return actions(p.rank)[size_t(p.step)]; }
  ActionPlace end_of(int r) const { return {r, int(actions(r).size()) - 1}; }
  bool together(ActionPlace a, ActionPlace b) const {
    const uint16_t id = at(a).overlap;
    if (id == 0) return false;
    for (int t = a.step; t <= b.step; t++)
      if (actions(a.rank)[size_t(t)].overlap != id) return false;
    return true;
  }

  void count() {
    sharded_.assign(size_t(s_.stages), false);
    for (const auto& list : s_.ranks) {
      std::map<int, std::pair<int, int>> of_stage;  // weight gradients, reductions
      for (const Action& a : list) {
        if (adds_weight_grads(a)) of_stage[a.stage].first++;
        if (a.kind == Act::ReduceGrad) of_stage[a.stage].second++;
        if (a.kind == Act::Unshard) sharded_[size_t(a.stage)] = true;
      }
      for (const auto& [stage, n] : of_stage) grads_ += n.first, reductions_ += n.second, once_++;
    }
  }
  // Is each weight gradient reduced by itself? Of what a faulty schedule could mean, the nearer.
  bool with_each() const {
    if (std::find(sharded_.begin(), sharded_.end(), true) != sharded_.end()) return true;
    return std::abs(reductions_ - grads_) < std::abs(reductions_ - once_);
  }

  void check_step(int r) {
    const auto& list = actions(r);
    const auto step = std::find_if(list.begin(), list.end(), [](auto& a) { return a.kind == Act::Step; });
    const bool steps = step != list.end();
    if (r > 0 && steps_ != steps)
      fail(end_of(r), "rank {} has {} Step, unlike rank 0", r, steps ? "a" : "no");
    steps_ = steps;
    if (!steps && std::any_of(list.begin(), list.end(), [](auto& a) { return a.kind == Act::ReduceGrad; }))
      fail(end_of(r), "rank {} has a ReduceGrad and no Step", r);
    if (!steps) return;
    const int t = int(step - list.begin());
    if (step + 1 != list.end()) fail({r, t + 1}, "rank {}: {} comes after its Step", r, to_text(step[1]));
    std::vector<bool> unreduced(size_t(s_.stages), false);
    for (const Action& a : list) {
      if (adds_weight_grads(a)) unreduced[size_t(a.stage)] = true;
      if (a.kind == Act::ReduceGrad) unreduced[size_t(a.stage)] = false;
    }
    const auto left = std::find(unreduced.begin(), unreduced.end(), true) - unreduced.begin();
    if (left < s_.stages) fail({r, t}, "rank {}: {}ReduceGrad is missing before its Step", r, left);
  }

  // By stage of a rank, weight gradients that wait for their reduction, or the last reduction.
  using ByStage = std::map<int, std::vector<ActionPlace>>;

  void check_each_reduced(int r) const {
    ByStage waiting, reduced;
    for (int t = 0; t < int(actions(r).size()); t++) {
      const ActionPlace here{r, t};
      const Action& a = at(here);
      std::vector<ActionPlace>& w = waiting[a.stage];
      if (adds_weight_grads(a)) {
        if (!w.empty() && !together(w.back(), here))
          fail({w.back()}, "rank {}: {}ReduceGrad is missing behind {}; other weight gradients have theirs",
               r, a.stage, text(w.back()));
        w.push_back(here);
      }
      if (a.kind != Act::ReduceGrad) continue;
      if (w.empty()) doubled(here, reduced[a.stage]);
      w.pop_back();
      reduced[a.stage] = {here};
    }
    for (const auto& [stage, w] : waiting)
      if (!w.empty())
        fail(w, "rank {}: {}ReduceGrad is missing behind {}; other weight gradients have theirs", r, stage,
             text(w.back()));
  }

  void check_reduced_once(int r) const {
    ByStage grads, reduced;
    for (int t = 0; t < int(actions(r).size()); t++) {
      if (adds_weight_grads(actions(r)[size_t(t)])) grads[actions(r)[size_t(t)].stage] = {{r, t}};
    }
    for (int t = 0; t < int(actions(r).size()); t++) {
      const ActionPlace here{r, t};
      if (at(here).kind != Act::ReduceGrad) continue;
      const int stage = at(here).stage;
      if (grads[stage].empty() || !reduced[stage].empty()) doubled(here, reduced[stage]);
      if (grads[stage][0].step > t)
        fail(std::vector<ActionPlace>{here, grads[stage][0]},
             "rank {}: {} comes before {}, the last weight gradient of stage {}", r, text(here),
             text(grads[stage][0]), stage);
      reduced[stage] = {here};
    }
  }
  [[noreturn]] void doubled(ActionPlace here, std::vector<ActionPlace> before) const {
    if (before.empty()) fail(here, "rank {}: {} has no weight gradient before it", here.rank, text(here));
    const int first = before[0].step;
    before.insert(before.begin(), here);
    fail(before, "rank {}: {} is there twice, at steps {} and {}, without a weight gradient in between",
         here.rank, text(here), first, here.step);
  }

  // What a stage's gathered weights have been used for since they were asked for; the last place of each.
  struct Gathered {
    std::optional<ActionPlace> asked, forward, backward, weight;
    bool used() const { return forward || backward || weight; }
  };

  void check_weights(int r) {
    std::map<int, Gathered> by_stage;
    for (int t = 0; t < int(actions(r).size()); t++) {
      const ActionPlace here{r, t};
      const Action& a = at(here);
      if (!sharded_[size_t(a.stage)]) {
        if (a.kind == Act::Reshard) fail(here, "rank {}: {} lets go what is not gathered", r, text(here));
        continue;
      }
      Gathered& g = by_stage[a.stage];
      if (a.kind == Act::Unshard) unshard(g, here);
      if (a.kind == Act::Reshard) reshard(g, here);
      use(g, here);
    }
    for (const auto& [stage, g] : by_stage)
      if (g.asked) fail(end_of(r), "rank {}: {}Reshard is missing at its end", r, stage);
  }
  void use(Gathered& g, ActionPlace here) const {
    const Action& a = at(here);
    const bool backward = a.kind == Act::B || a.kind == Act::I || a.kind == Act::R;
    if ((backward || a.kind == Act::F) && !g.asked)
      fail(here, "rank {}: {} uses weights that are not gathered; {}Unshard is missing before it", here.rank,
           text(here), a.stage);
    if (backward) g.backward = here;
    if (a.kind == Act::F) g.forward = here;
    if (a.kind == Act::W) g.weight = here;  // which may use them (add_zero: weights_in_w)
  }
  void unshard(Gathered& g, ActionPlace here) {
    if (g.asked && !g.used())
      fail(std::vector<ActionPlace>{here, *g.asked},
           "rank {}: {} is there twice, at steps {} and {}, without a use of weights in between", here.rank,
           text(here), g.asked->step, here.step);
    if (g.asked && g.backward)
      fail(*g.backward, "rank {}: {}Reshard is missing behind {}", here.rank, at(here).stage,
           text(*g.backward));
    if (g.asked && g.weight && !g.forward)  // W alone used them
      fail(*g.weight, "rank {}: {}Reshard is missing behind {}", here.rank, at(here).stage, text(*g.weight));
    if (g.asked && g.forward && !kept_) kept_ = g.forward;
    g = {.asked = here, .forward = {}, .backward = {}, .weight = {}};
  }
  void reshard(Gathered& g, ActionPlace here) {
    if (!g.asked) fail(here, "rank {}: {} lets go what is not gathered", here.rank, text(here));
    if (!g.used())
      fail(std::vector<ActionPlace>{*g.asked, here}, "rank {}: {} gathers what nothing uses before {}",
           here.rank, text(*g.asked), text(here));
    if (g.forward && !g.backward && !g.weight) let_go_ = true;
    g = {};
  }
  void check_kept() const {
    if (kept_ && let_go_)
      fail(*kept_, "rank {}: {}Reshard is missing behind {}; other forward passes have theirs", kept_->rank,
           at(*kept_).stage, text(*kept_));
  }

  const Schedule& s_;
  std::vector<bool> sharded_;                      // by stage: are its weights gathered for a use?
  int64_t grads_ = 0, reductions_ = 0, once_ = 0;  // of all ranks; stages of ranks
  bool steps_ = false;
  std::optional<ActionPlace> kept_;  // a forward pass behind which weights stay
  bool let_go_ = false;              // does a forward pass let go its own?
};

}  // namespace

void check_replicas(const Schedule& s) {
  ReplicaCheck(s).run();
}

}  // namespace trireme
