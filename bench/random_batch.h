// Tokens for steps that only take time.
#pragma once
#include "base/rng.h"
#include "runtime/stage_runner.h"

namespace trireme {

// Token i of a microbatch is uniform in [0, vocab); the target is the next one.
inline FillBatch random_batch(const RunSpec& run) {
  return [vocab = double(run.model.vocab), seq = run.data.seq_len](int64_t step, int64_t mb,
                                                                   const HostBatch& b) {
    const uint64_t key = rng_key(uint64_t(step), uint64_t(mb), "bench");
    auto token = [&](size_t i) { return int32_t(uniform(key, i) * vocab); };
    for (size_t i = 0; i < b.tokens.size(); i++) {
      b.tokens[i] = token(i), b.targets[i] = token(i + 1);
      b.positions[i] = int32_t(int64_t(i) % seq);
    }
  };
}

}  // namespace trireme
