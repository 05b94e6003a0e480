#include "train/launch.h"

#include <unistd.h>

#include <cstdio>
#include <deque>
#include <new>

#include "comm/options.h"
#include "comm/watch/watchdog.h"
#include "comm/wrap/watched.h"
#include "runtime/rank_threads.h"

namespace trireme {
namespace {

void say(const TrainHooks& hooks, const std::string& line) {
  if (hooks.warn) return hooks.warn(line);
  fmt::print(stderr, "{}\n", line);
}

struct Leave {
  Pulse& pulse;
  ~Leave() { pulse.leave(); }
};

}  // namespace

WatchHooks watch_hooks(const TrainHooks& hooks) {
  return {.warn = [&hooks](const Verdict& v) { say(hooks, "warning: " + v.text); },
          .end =
              [&hooks](const Verdict& v) {
                say(hooks, "trireme: " + v.text);
                std::fflush(stderr);
                ::_exit(int(Fault::run));
              }};
}

WatchLimits watch_limits(const RunSpec& run, WatchLimits limits) {
  limits.timeout_s = run.train.timeout;
  limits.slow_s = std::min(limits.slow_s, limits.timeout_s / 2);
  return limits;
}

TrainSummary train_on_threads(const RunSpec& run, const Schedule& schedule,
                              const DeviceOptions& device_options, const TrainOptions& options,
                              const TrainHooks& hooks) {
  TrainSummary summary;
  const TrainHooks none;
  const int world = int(run.world());
  std::deque<Pulse> pulses;
  std::vector<const Pulse*> watched;
  for (int r = 0; r < world; r++) watched.push_back(&pulses.emplace_back(r));
  std::optional<Watchdog> dog;
  if (world > 1)
    dog.emplace(watched, make_thread_board(world), watch_limits(run, options.watch), watch_hooks(hooks));
  run_rank_threads(
      world, run.train.device, device_options,
      [&](Device& device, CommFactory& ranks) {
        const bool first = ranks.rank() == 0;
        TrainOptions mine = options;
        mine.pulse = world > 1 ? &pulses[size_t(ranks.rank())] : nullptr;
        Leave leave{pulses[size_t(ranks.rank())]};
        std::unique_ptr<CommFactory> told = mine.pulse ? make_watched(ranks, &device, *mine.pulse) : nullptr;
        TrainSummary s = train(run, schedule, device, told ? *told : ranks, mine, first ? hooks : none);
        if (first) summary = std::move(s);
      },
      options_of(run, options.cluster));
  return summary;
}

TrainSummary train_on_process(const RunSpec& run, const Schedule& schedule,
                              const DeviceOptions& device_options, const TrainOptions& options,
                              const TrainHooks& hooks, MpiWorld& world) {
  const TrainHooks none;
  try {
    std::unique_ptr<Device> device = make_device(run.train.device, device_options);
    std::unique_ptr<CommFactory> ranks = world.factory(device.get(), options_of(run, options.cluster));
    if (world.size() == 1) return train(run, schedule, *device, *ranks, options, hooks);
    Pulse pulse(world.rank());
    TrainOptions mine = options;
    mine.pulse = &pulse;
    const Watchdog dog({&pulse}, world.board(), watch_limits(run, options.watch), watch_hooks(hooks));
    Leave leave{pulse};
    std::unique_ptr<CommFactory> told = make_watched(*ranks, device.get(), pulse);
    return train(run, schedule, *device, *told, mine, world.rank() == 0 ? hooks : none);
  } catch (const Error& e) {
    throw world.end_failed(e);
  } catch (const std::bad_alloc&) {
    throw world.end_failed(Error("the system has no more memory to give"));
  } catch (const std::exception& e) {
    throw world.end_failed(Error(fmt::format("internal error: {}", e.what())));
  }
}

}  // namespace trireme
