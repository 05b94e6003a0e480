// A forward pass before each save: does the next loss stay finite?
#pragma once
#include "runtime/stage_runner.h"

namespace trireme {

// Keeps the first microbatch of this rank's last step, and evaluates it with the weights after the update. An
// update that damages the weights is found before they are saved, also after the last step, which no other
// step follows.
class LossProbe {
 public:
  explicit LossProbe(const RunSpec&);

  // Wraps the run's data: keeps a copy of each step's first microbatch. This object outlives the result.
  FillBatch keep(FillBatch);
  // On all ranks. Throws Error naming step, and weight or layer and op, if the loss of the kept microbatch is
  // not finite.
  void check(StageRunner&, Communicator& control, int64_t step) const;

 private:
  int64_t micro_;
  int64_t seq_;
  std::vector<int32_t> tokens_, targets_, positions_;  // [micro, seq]
};

}  // namespace trireme
