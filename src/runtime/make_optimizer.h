// The optimizer that a run names.
#pragma once
#include "optim/optimizer.h"
#include "runtime/sharing.h"
#include "tensor/arena.h"

namespace trireme {

// What is given outlives the optimizer; the set is laid out and keeps its order.
std::unique_ptr<Optimizer> make_optimizer(const RunSpec&, const ParamSet&, const Sharing&, Device&, Arena&);

}  // namespace trireme
