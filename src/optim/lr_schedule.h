// Learning rate of a step.
#pragma once
#include <cstdint>
#include <string_view>

namespace trireme {

enum class LrShape : uint8_t { constant, cosine, linear, wsd };
LrShape lr_shape_from_name(std::string_view);  // bad_request on an unknown name

struct LrSchedule {
  double lr = 1e-3, min_lr = 0;
  int64_t warmup = 0, steps = 1;
  LrShape shape = LrShape::cosine;

  // Step s counts from 1. lr * s / warmup up to `warmup`; then from lr to min_lr, which the last step has:
  // cosine, linear, or wsd: constant, then linear over the last tenth of all steps (at least one).
  double at(int64_t step) const;
};

}  // namespace trireme
