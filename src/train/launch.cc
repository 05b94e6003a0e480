#include "train/launch.h"

#include "runtime/rank_threads.h"

namespace trireme {

TrainSummary train_on_threads(const RunSpec& run, const Schedule& schedule,
                              const DeviceOptions& device_options, const TrainOptions& options,
                              const TrainHooks& hooks) {
  TrainSummary summary;
  const TrainHooks none;
  run_rank_threads(int(run.world()), run.train.device, device_options,
                   [&](Device& device, CommFactory& ranks) {
                     const bool first = ranks.rank() == 0;
                     TrainSummary s = train(run, schedule, device, ranks, options, first ? hooks : none);
                     if (first) summary = std::move(s);
                   });
  return summary;
}

}  // namespace trireme
