// A tiny model and batches of random tokens, for tests of the runner.
#pragma once
#include "base/rng.h"
#include "runtime/booking.h"

namespace trireme::test {

// Odd sizes on purpose: nothing is a multiple of a tile.
inline RunSpec tiny_run(std::string arch, std::string compute, int64_t microbatches,
                        std::string grads = "f32") {
  RunSpec r;
  r.model = ModelSpec::of(arch);
  r.model.vocab = 61, r.model.layers = 2, r.model.hidden = 36, r.model.heads = 3;
  r.model.kv_heads = arch == "gpt2" ? 3 : 1;
  if (arch == "qwen3") r.model.head_dim = 18;  // not hidden / heads
  r.model.ffn = 52;
  r.data.seq_len = 23;
  r.batch.micro = 2, r.batch.global = 2 * microbatches;
  r.precision.compute = compute, r.precision.grads = grads;
  r.optimizer.lr = 3e-3, r.optimizer.warmup = 2;
  r.train.steps = 20, r.train.seed = 11, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

// The next token depends on the one before, so there is something to learn.
inline void random_batch(const RunSpec& run, int64_t step, int64_t mb, const HostBatch& b) {
  int64_t seq = run.data.seq_len;
  for (size_t i = 0; i < b.tokens.size(); i++) {
    uint64_t key = rng_key(5, uint64_t(step), "data");
    uint64_t at = uint64_t(mb) * 1000003 + i;
    auto token = [&](uint64_t j) { return int32_t(below(key, j, uint64_t(run.model.vocab) / 3) * 3); };
    b.tokens[i] = token(at);
    b.targets[i] = (token(at) * 7 + 3) % int32_t(run.model.vocab);
    b.positions[i] = int32_t(int64_t(i) % seq);
  }
}

inline FillBatch random_batches(const RunSpec& run) {
  return [run](int64_t step, int64_t mb, const HostBatch& b) { random_batch(run, step, mb, b); };
}

struct Rig {
  RunSpec run;
  Schedule schedule;
  Booking booking;
  std::unique_ptr<Device> device;
  std::unique_ptr<StageRunner> runner;

  explicit Rig(RunSpec r, std::string_view schedule_name = "1f1b", int threads = 1) : run(std::move(r)) {
    schedule = add_step(make_schedule(schedule_name, 1, 1, int(run.microbatches())));
    booking = book_training(run, schedule, threads);
    device = make_device("cpu", {.threads = threads});
    runner = std::make_unique<StageRunner>(run, RunMode::train, *device, booking.arena_bytes);
    runner->init_weights();
  }
  StepResult step(int64_t s) {
    return runner->step(schedule.ranks[0], s, run.tokens_per_step(), random_batches(run));
  }
  std::vector<float> all(std::string_view what) const {
    std::vector<float> out, part;
    for (const Param& p : runner->params().params) {
      part.resize(size_t(p.numel()));
      runner->memory().read_param(p, what, part);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
};

}  // namespace trireme::test
