#include "train/probe.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "comm/comm_set.h"

namespace trireme {

LossProbe::LossProbe(const RunSpec& run) : micro_(run.batch.micro), seq_(run.data.seq_len) {
  for (auto* kept : {&tokens_, &targets_, &positions_}) kept->resize(size_t(micro_ * seq_));
}

FillBatch LossProbe::keep(FillBatch fill) {
  return [this, fill = std::move(fill)](int64_t step, int64_t mb, const HostBatch& b) {
    fill(step, mb, b);
    if (mb != 0) return;
    std::copy(b.tokens.begin(), b.tokens.end(), tokens_.begin());
    std::copy(b.targets.begin(), b.targets.end(), targets_.begin());
    std::copy(b.positions.begin(), b.positions.end(), positions_.begin());
  };
}

void LossProbe::check(StageRunner& runner, Communicator& control, int64_t step) const {
  const FillBatch kept = [this](int64_t, int64_t, const HostBatch& b) {
    std::copy(tokens_.begin(), tokens_.end(), b.tokens.begin());
    std::copy(targets_.begin(), targets_.end(), b.targets.begin());
    std::copy(positions_.begin(), positions_.end(), b.positions.begin());
  };
  try {
    const TokenLoss loss = runner.evaluator().evaluate(micro_, seq_, kept);
    if (agree_max(control, std::isfinite(loss.sum) ? 0 : 1) == 0) return;
    runner.evaluator().find_nonfinite_loss(micro_, seq_, kept);
  } catch (const Error& e) {
    if (e.fault != Fault::run) throw;
    run_failed("step {}: the update damaged the weights, so they were not saved: {}", step, e.what());
  }
}

}  // namespace trireme
