#include "optim/loss_scale.h"

#include <algorithm>

namespace trireme {

bool LossScale::overflow() {
  if (!dynamic() || state_.scale <= options_.least) return false;
  state_.scale = std::max(options_.least, state_.scale * options_.backoff);
  state_.good_steps = 0;
  state_.skipped++;
  return true;
}

void LossScale::good_step() {
  if (!dynamic() || ++state_.good_steps < options_.growth_interval) return;
  state_.scale = std::min(kMost, state_.scale * 2);
  state_.good_steps = 0;
}

bool LossScale::plausible(const LossScaleState& s) const {
  if (s.skipped < 0 || s.good_steps < 0) return false;
  if (!dynamic()) return s.scale == state_.scale && s.good_steps == 0 && s.skipped == 0;
  return s.scale >= options_.least && s.scale <= kMost && s.good_steps < options_.growth_interval;
}

}  // namespace trireme
