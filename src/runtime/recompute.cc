#include "runtime/recompute.h"

#include "cost/flops.h"
#include "model/stages.h"

namespace trireme {

double recompute_flops_per_token(const RunSpec& run) {
  const ModelSpec& m = run.model;
  double flops = 0;
  for (const StageRange& s : split_layers(run, int(run.layout.pp * run.layout.chunks)))
    for (int64_t i = s.first; i < s.last; i++)
      flops += recompute_flops_per_token(m, run.data.seq_len, m.moe() && m.expert_block(i),
                                         recompute_of(run.layout, i - s.first));
  return flops;
}

double step_flops_per_token(const RunSpec& run) {
  return run.lora.active() ? frozen_flops_per_token(run.model, run.data.seq_len)
                           : train_flops_per_token(run.model, run.data.seq_len);
}

}  // namespace trireme
