// A run of three ranks, each of which a process trains as, over the fake NCCL.
#pragma once
#include <string>

#include "comm/nccl/nccl_world.h"
#include "comm/tcp/tcp_world.h"
#include "queue_device.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "train/launch.h"

namespace trireme::test {

inline RunSpec three_ranks(const fs::path& folder, int64_t steps, int64_t zero) {
  RunSpec r = tiny_run(folder, steps);
  r.layout.dp = 3, r.layout.zero = zero;
  r.batch.micro = 1;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  return r;
}

// One rank of the run, in this process: what it ends with, "" = well.
inline std::string train_as(RunSpec run, int rank, int port, const TrainHooks& hooks,
                            testing::QueueWaits* waits = nullptr) {
  const Schedule schedule = schedule_of(run);
  TrainOptions options;
  options.arena_bytes = book_training(run, schedule, 1).arena_bytes;
  auto device = testing::make_queue_device(nullptr, 0, waits != nullptr, waits);
  auto world =
      make_nccl_world(join_tcp_world({.port = port, .rank = rank, .size = int(run.world()), .timeout_s = 60}),
                      {.library = FAKE_NCCL});
  try {
    train_on_process(run, schedule, *device, options, hooks, *world);
  } catch (const Error& e) {
    return fmt::format("{} {}", int(e.fault), e.what());
  }
  return "";
}

}  // namespace trireme::test
