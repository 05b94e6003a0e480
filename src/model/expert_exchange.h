// Experts over the ranks of ep: rows travel to their expert's owner and back (docs/expert_parallel.md). Each
// pass takes and returns the rows of this rank's choices, as one rank's experts would; between is what is
// computed while they are on their way.
//
// A rank has room for LayerGroups::expert_rows rows of others. What does not fit goes in further rounds,
// whose activations are not kept but computed again: so memory is a function of shapes alone, and nothing is
// dropped.
#pragma once
#include <functional>

#include "model/experts.h"
#include "model/routing.h"
#include "model/row_plan.h"

namespace trireme {

class ExpertExchange {
 public:
  ExpertExchange(std::string name, int64_t block, int64_t experts)
      : name_(std::move(name)), block_(block), experts_(experts) {}

  // x [N, hidden]; place [N, k], source [R] and offsets [E + 1] as RouteOrderArgs, the first two rewritten
  // where rows go in several rounds. Returns the answers [R, hidden], by source.
  Owned forward(Ctx&, const ExpertFfn&, const Tensor& x, const Tensor& place, const Tensor& source,
                const Tensor& offsets, Saved&, const std::function<void()>& between) const;
  // "u" and "a" of the rows that were kept (Layer::let_go). Nothing travels again.
  void let_go(const Recompute&, Saved&) const;
  void again(Ctx&, const ExpertFfn&, Saved&) const;
  // dy: gradient of the answers. Returns that of the rows, by source.
  Owned backward_input(Ctx&, const ExpertFfn&, const Tensor& dy, const Tensor& x, const Tensor& source,
                       Saved&, const std::function<void()>& between) const;
  void backward_weight(Ctx&, const ExpertFfn&, const Tensor& dy, const Tensor& x, const Tensor& source,
                       Saved&) const;

 private:
  // Of a round, on the device: RowPlan::Round's order, back and offsets.
  struct Tables {
    Owned order, back, offsets;
  };
  RowPlan agree(Ctx&, const Tensor& offsets, int64_t rows, Saved&) const;
  RowPlan agreed(Ctx&, int64_t rows, const Saved&) const;
  void reorder(Ctx&, const RowPlan&, const Tensor& place, const Tensor& source) const;
  void count(Ctx&, const RowPlan&) const;
  Tables tables(Ctx&, const RowPlan::Round&) const;
  Owned sent_rows(Ctx&, const Tensor& x, const Tensor& source) const;

  Event start(Ctx&, const Tensor& rows, const Tensor& arrived, const RowPlan::Round&) const;
  Owned sorted(Ctx&, const Tensor& arrived, const Tensor& order) const;
  Owned fetch(Ctx&, const Tensor& rows, const RowPlan::Round&, const Tensor& order) const;
  void give_back(Ctx&, Owned by_expert, const RowPlan::Round&, const Tensor& back, const Tensor& rows) const;

  void further_forward(Ctx&, const ExpertFfn&, const RowPlan&, const Tensor& xs, const Tensor& answers) const;
  void further_backward(Ctx&, const ExpertFfn&, const RowPlan&, const Tensor& x, const Tensor& source,
                        const Tensor& dy, const Tensor* dx) const;
  void book_room(Ctx&, const ExpertFfn&, const Tensor& x, const Tensor& u, const Tensor& a,
                 const Tensor& offsets, int64_t rows, bool weight) const;

  std::string name_;
  int64_t block_, experts_;
};

}  // namespace trireme
