#include "cost/step_state.h"

#include <algorithm>

#include "spec/parameters.h"

namespace trireme {

Stored stored(const StepCase& c) {
  const ModelSpec& m = c.model;
  const double pp = double(c.pp), tp = double(c.tp);
  const double with = double(m.expert_blocks()), without = double(m.layers) - with;
  Stored s;
  if (with > 0) {
    s.experts = with * block_expert_parameters(m) / double(c.ep * c.expert_tp) / pp;
    s.dense = with * (double(block_parameters(m, 1)) - block_expert_parameters(m));
  }
  if (without > 0) s.dense += without * double(block_parameters(m, 1, false));
  s.dense = s.dense / (tp * pp) + double(m.hidden) * double(m.vocab) / tp * (c.pp == 1 && !m.tied ? 2 : 1);
  return s;
}

double sharers(const StepCase& c) {
  const double replicas = double(c.dp * c.cp);
  if (c.zero == 0) return 1;
  return c.shards > 0 ? std::min(double(c.shards), replicas) : replicas;
}

double expert_sharers(const StepCase& c) {
  const double replicas = std::max(1.0, double(c.dp * c.cp * c.tp) / double(c.ep * c.expert_tp));
  if (c.zero == 0) return 1;
  return c.shards > 0 ? std::min(double(c.shards), replicas) : replicas;
}

// Where ZeRO's collectives take lists of tensors, each slice of each is cut out, checked and copied back by
// calls of its own, which the device waits for: some five of PyTorch, 2 to 3 us each.
double sliced_time(const StepCase& c, double layers) {
  constexpr double kSlice = 12e-6;
  const double replicas = double(c.dp * c.cp);
  return c.zero > 0 && replicas > 1 ? kSlice * double(c.sliced) * layers * replicas : 0;
}

}  // namespace trireme
