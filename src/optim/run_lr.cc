#include "optim/run_lr.h"

#include "base/error.h"

namespace trireme {

LrSchedule lr_schedule_of(const RunSpec& r) {
  require(r.optimizer.lr >= 0, "the learning rate is a number before a run starts");
  return {.lr = r.optimizer.lr,
          .min_lr = r.optimizer.min_lr,
          .warmup = r.optimizer.warmup,
          .steps = r.train.steps,
          .shape = lr_shape_from_name(r.optimizer.schedule)};
}

}  // namespace trireme
