// The step loop: data, steps, metrics, evaluation, checkpoints, resume.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "base/interrupt.h"
#include "comm/comm_set.h"
#include "comm/watch/judge.h"
#include "comm/watch/pulse.h"
#include "runtime/rank_threads.h"
#include "runtime/stage_runner.h"
#include "spec/cluster_spec.h"
#include "trace/metrics.h"
#include "train/task_scores.h"

namespace trireme {

// What a caller shows of a run, and what a test does to it. Every function may be empty.
struct TrainHooks {
  std::function<void(const std::string& line)> note;  // "resumed from step 200", "saved ...", warnings
  std::function<void(int64_t done)> start;            // steps done before this call: 0, or a checkpoint's
  std::function<void(const StepMetrics&)> step;       // after each step's metrics were written
  // While a shard is evaluated behind a step: windows done and in all.
  std::function<void(int64_t step, int64_t done, int64_t all)> eval;
  // Rank 0, in every train.sample_every-th step, while the other ranks wait: its checkpoint is complete.
  std::function<void(int64_t step, const fs::path& checkpoint)> sample;
  std::function<void(std::string_view phase)>
      phase;  // as StepControl::phase, and "metrics", "eval", "save:..." (train.async_save: the last from
              // a thread of its own)
  std::function<void(const std::string& line)> warn;  // from a thread of its own, while training goes on or
                                                      // hangs: "rank 2 is slow: ..."; empty = on stderr
};

struct TrainOptions {
  int64_t arena_bytes = 0;    // from a Booking
  double mtbf_s = 0;          // between failures of the whole world; 0 = as a cluster file's default says
  double peak_flops = 0;      // of this rank's device in the compute type; 0 = not known, MFU is 0
  int64_t launches = 0;       // ops of a step, from a Booking: room for a trace; 0 = not known
  std::string machine;        // named in a trace
  ClusterSpec cluster;        // whose links train.sum_order = "auto" looks at; the same on all ranks
  Deadline deadline;          // leave in good order then (--stop-after)
  WatchLimits watch;          // its timeout is train.timeout whatever it says
  Pulse* pulse = nullptr;     // of this rank: told what it does; launch.h gives each rank its own
  MakeDevice device;          // of each rank thread; null: that of train.device
  std::string forecast_json;  // goes into the run folder as forecast.json; empty = none
  std::string facts_json;     // versions and peaks, for the start event of the run folder; empty = none
  // The tasks of train.tasks, scored with each evaluation.
  std::vector<TrainTask> tasks;
  fs::path algorithms_cache;  // where runs share which algorithms of products were fastest; empty = nowhere
};

enum class Ending : uint8_t { done, interrupted };

struct TrainSummary {
  Ending ending = Ending::done;
  int64_t first_step = 1, last_step = 0;  // of this call
  double loss = 0;                        // of the last step
  std::optional<double> eval_loss;
  int64_t skipped = 0;  // steps of the run so far that moved nothing (f16)
  double seconds = 0;
  double tokens_per_s = 0, mfu = 0;  // medians over this call's steps, the first two left out
  int64_t peak_bytes = 0;
  fs::path checkpoint;  // newest complete one
  // Of saves that no step's line of metrics tells of, for they ended after the last: seconds that the end
  // waited, and until they were complete on disk. None where nothing was left to save.
  std::optional<double> last_stall_s, last_write_s;
};

// Trains run.train.dir up to run.train.steps, from its newest complete checkpoint or from the start. The
// folder is locked while it runs; a checkpoint of another run (its spec's hash differs) is refused with the
// keys that differ. Interrupted (signal or deadline): finishes the microbatch, saves the last finished step,
// returns. On every rank of the run, each with its device and its way to the others; rank 0 has the files,
// and the hooks that matter. An error is told to the other ranks before it leaves here.
TrainSummary train(const RunSpec&, const Schedule&, Device&, CommFactory&, const TrainOptions&,
                   const TrainHooks&);

// Mean loss per predicted token over sequential windows of seq_len, a last partial one dropped.
struct EvalResult {
  double loss = 0;  // nats
  int64_t tokens = 0;
};
// Several ranks share the batches; the sum is the same on any number of them. progress: called with windows
// done and in all after each batch; what it throws ends the evaluation.
EvalResult evaluate_shard(StageRunner&, const RunSpec&, const fs::path& shard, int64_t most_batches = 0,
                          const std::function<void(int64_t done, int64_t total)>& progress = {});

// Fresh weights (seeded), or those of model.from.
void initial_weights(StageRunner&, const RunSpec&);
// The same without lora.adapter: what a checkpoint of adapters, which lacks the base, is read on top of.
void base_weights(StageRunner&);

// Weights of the newest complete checkpoint of a run folder, into a runner of either mode; returns its step.
int64_t load_newest(StageRunner&, const fs::path& run_dir);

}  // namespace trireme
