// How the routers of a mixture of experts are trained (docs/moe.md): part of a run, not of what weights mean.
#pragma once
#include <string>
#include <string_view>

#include "spec/field.h"

namespace trireme {

struct MoeSpec {
  double aux_loss = 0, z_loss = 0, bias_rate = 0, capacity = 0;
  std::string unit = "sequence";
  bool operator==(const MoeSpec&) const = default;

  template <class V>
  void visit(V& v) {
    static constexpr std::string_view kUnits[] = {"sequence", "microbatch", "global"};
    v("aux_loss", aux_loss, "",
      "factor of the loss that evens out the experts' load, sum over layers and experts of experts * share "
      "of "
      "tokens * mean score; 0 = none",
      between(0, 1e6));
    v("z_loss", z_loss, "",
      "factor of the mean square of the router's logsumexp, a sum over layers; 0 = none", between(0, 1e6));
    v("bias_rate", bias_rate, "",
      "model.router_bias: once a step a router's bias of an expert moves by so much, up where the expert was "
      "chosen "
      "less often than the mean and down where more; 0 = it stays",
      between(0, 1e6));
    v("capacity", capacity, "",
      "training: an expert takes at most so many times the mean number of choices, and drops the others; 0 = "
      "nothing is dropped",
      between(0, 1e6));
    v("unit", unit, "",
      "tokens over which aux_loss and capacity are taken: each sequence, each microbatch of a replica, or "
      "(global) the microbatches of all replicas together; aux_loss: also those since the step began",
      one_of(kUnits));
  }
};

}  // namespace trireme
