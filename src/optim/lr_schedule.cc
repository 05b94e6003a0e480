#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme {

LrShape lr_shape_from_name(std::string_view name) {
  if (name == "constant") return LrShape::constant;
  if (name == "cosine") return LrShape::cosine;
  if (name == "linear") return LrShape::linear;
  if (name == "wsd") return LrShape::wsd;
  bad_request("optimizer.schedule: unknown '{}'; known are constant, cosine, linear, wsd", name);
}

double LrSchedule::at(int64_t step) const {
  if (step < warmup || (step == warmup && warmup > 0)) return lr * double(step) / double(warmup);
  if (shape == LrShape::constant) return lr;
  int64_t start = warmup;
  if (shape == LrShape::wsd) start = std::max(warmup, steps - std::max<int64_t>(1, steps / 10));
  if (step <= start) return lr;
  double t = std::min(1.0, double(step - start) / double(std::max<int64_t>(1, steps - start)));
  double left = shape == LrShape::cosine ? 0.5 * (1 + std::cos(M_PI * t)) : 1 - t;
  return min_lr + (lr - min_lr) * left;
}

}  // namespace trireme
