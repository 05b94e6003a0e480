#include "train/launch.h"

#include <unistd.h>

#include <cstdio>
#include <deque>
#include <mutex>
#include <new>

#include "base/say.h"
#include "comm/options.h"
#include "comm/watch/watchdog.h"
#include "comm/wrap/checked.h"
#include "comm/wrap/watched.h"
#include "comm/wrap/wrapped.h"
#include "runtime/rank_threads.h"

namespace trireme {
namespace {

void warn_user(const TrainHooks& hooks, const std::string& line) {
  if (hooks.warn) return hooks.warn(line);
  say("{}\n", line);
}

struct Leave {
  Pulse& pulse;
  ~Leave() { pulse.leave(); }
};

// The first failure of a run's rank threads: what the others say of themselves then follows from it.
class FirstFailure {
 public:
  void note(int rank, std::string_view why) {
    std::lock_guard lock(mutex_);
    if (rank_ < 0) rank_ = rank, why_ = why;
  }
  // Of the rank that noted it.
  void fault(int rank, Fault f) {
    std::lock_guard lock(mutex_);
    if (rank_ == rank) fault_ = f;
  }
  // As its thread would have ended the run, had the others let it.
  [[noreturn]] void end(const TrainHooks& hooks, const std::string& verdict) {
    std::lock_guard lock(mutex_);
    if (rank_ >= 0) warn_user(hooks, fmt::format("trireme: rank {}: {}", rank_, why_));
    warn_user(hooks, "trireme: " + verdict);
    ::_exit(int(rank_ >= 0 ? fault_ : Fault::run));
  }

 private:
  std::mutex mutex_;
  int rank_ = -1;
  std::string why_;
  Fault fault_ = Fault::run;
};

// A rank's way to the others that tells the watchdog, too, when it fails.
class FailureTeller final : public WrappedFactory {
 public:
  FailureTeller(CommFactory& inner, FirstFailure& first, Pulse& pulse)
      : WrappedFactory(inner), first_(first), pulse_(pulse) {}
  void fail(std::string_view why) override {
    first_.note(rank(), why), pulse_.fail();
    WrappedFactory::fail(why);
  }

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return c;
  }
  FirstFailure& first_;
  Pulse& pulse_;
};

}  // namespace

namespace {

// A process without a sign of life: its machine, or the way to it.
Fault fault_of(Fate f) {
  return f == Fate::dead ? Fault::environment : Fault::run;
}

}  // namespace

WatchHooks watch_hooks(const TrainHooks& hooks) {
  return {.warn = [&hooks](const Verdict& v) { warn_user(hooks, "warning: " + v.text); },
          .end =
              [&hooks](const Verdict& v) {
                warn_user(hooks, "trireme: " + v.text);
                ::_exit(int(fault_of(v.fate)));
              }};
}

WatchLimits watch_limits(const RunSpec& run, WatchLimits limits) {
  limits.timeout_s = run.train.timeout;
  limits.slow_s = std::min(limits.slow_s, limits.timeout_s / 2);
  return limits;
}

void run_watched_threads(const RunSpec& run, const DeviceOptions& device_options, const TrainOptions& options,
                         const TrainHooks& hooks, const WatchedBody& body) {
  const int world = int(run.world());
  std::deque<Pulse> pulses;
  std::vector<const Pulse*> watched;
  for (int r = 0; r < world; r++) watched.push_back(&pulses.emplace_back(r));
  FirstFailure failure;
  WatchHooks ends = watch_hooks(hooks);
  ends.end = [&](const Verdict& v) { failure.end(hooks, v.text); };
  std::optional<Watchdog> dog;
  if (world > 1) dog.emplace(watched, make_thread_board(world), watch_limits(run, options.watch), ends);
  auto on_rank = [&](Device& device, CommFactory& ranks) {
    Pulse& pulse = pulses[size_t(ranks.rank())];
    Leave leave{pulse};
    if (world == 1) return body(device, ranks, nullptr);
    FailureTeller teller(ranks, failure, pulse);
    std::unique_ptr<CommFactory> told = make_watched(teller, &device, pulse);
    if (run.train.check_comm) told = make_checked(std::move(told), &device);
    try {
      body(device, *told, &pulse);
    } catch (const std::exception& e) {
      const Error* known = dynamic_cast<const Error*>(&e);
      told->fail(e.what());
      failure.fault(ranks.rank(), known                                     ? known->fault
                                  : dynamic_cast<const std::bad_alloc*>(&e) ? Fault::environment
                                                                            : Fault::run);
      throw;
    }
  };
  const MakeDevice named = [&] { return make_device(run.train.device, device_options); };
  run_rank_threads(world, options.device ? options.device : named, on_rank, options_of(run, options.cluster),
                   device_options.bind ? device_options.threads : 0);
}

TrainSummary train_on_threads(const RunSpec& run, const Schedule& schedule,
                              const DeviceOptions& device_options, const TrainOptions& options,
                              const TrainHooks& hooks) {
  TrainSummary summary;
  const TrainHooks none;
  run_watched_threads(run, device_options, options, hooks,
                      [&](Device& device, CommFactory& ranks, Pulse* pulse) {
                        const bool first = ranks.rank() == 0;
                        TrainOptions mine = options;
                        mine.pulse = pulse;
                        TrainSummary s = train(run, schedule, device, ranks, mine, first ? hooks : none);
                        if (first) summary = std::move(s);
                      });
  return summary;
}

namespace {

template <class Work>
auto ended_well(ProcessWorld& world, const Work& work) {
  try {
    return work();
  } catch (const Error& e) {
    throw world.end_failed(e);
  } catch (const std::bad_alloc&) {
    throw world.end_failed(Error("the system has no more memory to give", Fault::environment));
  } catch (const std::exception& e) {
    throw world.end_failed(Error(fmt::format("internal error: {}", e.what())));
  }
}

// Runs the body as this process's rank, with a watchdog over it.
void run_as_rank(const RunSpec& run, Device& device, const TrainOptions& options, const TrainHooks& hooks,
                 ProcessWorld& world, const WatchedBody& body) {
  std::unique_ptr<CommFactory> ranks = world.factory(&device, options_of(run, options.cluster));
  if (world.size() == 1) return body(device, *ranks, nullptr);
  Pulse pulse(world.rank());
  WatchHooks ends = watch_hooks(hooks);
  ends.end = [&world, end = ends.end](const Verdict& v) {
    if (v.rank >= 0)
      world.condemn(v.rank, v.text, fault_of(v.fate));  // the others' launcher may not end them
    end(v);
  };
  const Watchdog dog({&pulse}, world.board(), watch_limits(run, options.watch), ends);
  Leave leave{pulse};
  std::unique_ptr<CommFactory> told = make_watched(*ranks, &device, pulse);
  if (run.train.check_comm) told = make_checked(std::move(told), &device);
  body(device, *told, &pulse);
}

TrainSummary train_as_rank(const RunSpec& run, const Schedule& schedule, Device& device,
                           const TrainOptions& options, const TrainHooks& hooks, ProcessWorld& world) {
  const TrainHooks none;
  TrainSummary summary;
  run_as_rank(run, device, options, hooks, world, [&](Device& own, CommFactory& ranks, Pulse* pulse) {
    TrainOptions mine = options;
    mine.pulse = pulse;
    summary = train(run, schedule, own, ranks, mine, world.rank() == 0 ? hooks : none);
  });
  return summary;
}

}  // namespace

void run_watched_process(const RunSpec& run, const DeviceOptions& device_options, const TrainOptions& options,
                         const TrainHooks& hooks, ProcessWorld& world, const WatchedBody& body) {
  ended_well(world, [&] {
    const std::unique_ptr<Device> device = make_device(run.train.device, device_options);
    run_as_rank(run, *device, options, hooks, world, body);
  });
}

TrainSummary train_on_process(const RunSpec& run, const Schedule& schedule, Device& device,
                              const TrainOptions& options, const TrainHooks& hooks, ProcessWorld& world) {
  return ended_well(world, [&] { return train_as_rank(run, schedule, device, options, hooks, world); });
}

TrainSummary train_on_process(const RunSpec& run, const Schedule& schedule,
                              const DeviceOptions& device_options, const TrainOptions& options,
                              const TrainHooks& hooks, ProcessWorld& world) {
  return ended_well(world, [&] {
    std::unique_ptr<Device> device = make_device(run.train.device, device_options);
    return train_as_rank(run, schedule, *device, options, hooks, world);
  });
}

}  // namespace trireme
