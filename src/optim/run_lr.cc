#include "optim/run_lr.h"

namespace trireme {

LrSchedule lr_schedule_of(const RunSpec& r) {
  return {.lr = r.optimizer.lr,
          .min_lr = r.optimizer.min_lr,
          .warmup = r.optimizer.warmup,
          .steps = r.train.steps,
          .shape = lr_shape_from_name(r.optimizer.schedule)};
}

}  // namespace trireme
