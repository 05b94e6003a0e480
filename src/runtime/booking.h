// What a step takes, found by running the real layers and the real schedule on meta: no data, the same code.
#pragma once
#include <array>
#include <set>
#include <string>
#include <vector>

#include "runtime/stage_runner.h"
#include "spec/cluster_spec.h"
#include "trace/tape.h"

namespace trireme {

struct OpTotal {
  std::string op;
  int64_t launches = 0;
  Cost cost;
};

// Collectives of a step, over ranks: what `comm_bytes` of a run's metrics says.
struct MostWire {
  CommCounts of{};  // by kind, of the rank with most bytes of it
  std::array<std::set<std::string>, kCollectives> algorithms;
  int64_t busiest = 0;  // bytes of all kinds, of the rank with most
  bool alike = true;    // all that were taken have as many bytes of each kind
  bool uneven = false;  // an all_reduce cuts its buffer into longer and shorter pieces
  int ranks = 0;        // that were taken
  // Of each rank whose experts are divided (ep): rows that it sends to owners, balanced, and all_to_all.
  struct Rows {
    int rank = 0;
    int64_t starts = 0, started = 0, all_to_all = 0;  // calls on the stream "ep", their bytes; bytes
  };
  std::vector<Rows> rows;
  void take(const Tape&);
  void take(const MostWire&);
};
// As CommSet::counts() has them.
CommCounts counts_of(const Tape&);

struct Booking {
  int64_t parameters = 0;
  int64_t trained = 0;    // parameters of adapters (lora.rank); without adapters all parameters
  BucketBytes peak{};     // of a step, by bucket
  BucketBytes at_peak{};  // what the peak of the total was made of
  int64_t peak_total = 0;
  int64_t snapshot_bytes = 0;  // of host memory, for checkpoints written beside training (train.async_save)
  int64_t waiting_bytes = 0;   // of host memory, where what is offloaded waits (layout.offload_to = "host")
  int64_t arena_bytes =
      0;       // the range that holds a step, an evaluation and a one-sequence forward, holes included
  Cost total;  // of a step
  int64_t launches = 0;
  std::vector<OpTotal> ops;    // of a step, by kind, most FLOPs first
  int64_t rollback_bytes = 0;  // of state, what post-validation keeps to put back
  BucketBytes state{};  // kept between steps: weights, gradients, optimizer, as far as they are this rank's
  CommCounts comm{};    // collectives of a step, as one rank counts them
  MostWire wire;        // of the rank; book_training: of the first rank of each stage
  Tape tape;            // what it issues in a step, in order
};

// One rank of the run's layout; under data parallelism all take the same. threads: of the rank, because
// kernels' scratch depends on it. book_stage books the first rank of the world at the pipeline rank
// `pp_rank`. book_training returns the stage whose peak is the largest, with the memory that is enough for
// each stage and for the smaller batches of batch.ramp. With several kinds of devices it is the stage that
// leaves the least memory. It composes steps of many microbatches (runtime/composed_tape.h,
// runtime/composed_booking.h).
Booking book_rank(const RunSpec&, const Schedule&, int threads, const ClusterSpec&, int rank);
Booking book_stage(const RunSpec&, const Schedule&, int threads, const ClusterSpec&, int pp_rank);
// book_stage's arena_bytes alone, without a tape.
int64_t arena_of_stage(const RunSpec&, const Schedule&, int threads, const ClusterSpec&, int pp_rank);
// others: gets the tapes of the other stages' first ranks.
Booking book_training(const RunSpec&, const Schedule&, int threads, const ClusterSpec& = {},
                      std::vector<Tape>* others = nullptr);
// The step's program of the first rank of each stage, checked, also against each other's messages.
std::vector<Program> programs_of(const RunSpec&, const Schedule&);
// Weights and a key/value cache: what generation takes.
struct GenerationShape {
  int64_t slots = 1, capacity = 1;  // texts at once; tokens of each
  std::vector<int64_t> prefills;    // lengths of the texts that come in
};
// pp_rank, here and below: kAlone = one rank has the whole model; else the first rank at this place of the
// pipeline, of an inference_run().
inline constexpr int kAlone = -1;
int64_t book_generation(const RunSpec&, int threads, const GenerationShape&, int pp_rank = kAlone);
// Weights and evaluations of given shapes.
struct BatchShape {
  int64_t sequences = 1, seq = 1;
  bool operator==(const BatchShape&) const = default;
};
// The batches in which a run scores texts of train.tasks: lengths from data.seq_len down by halves that all
// ranks can divide, as many texts as a microbatch has tokens for. Training's memory is booked for them.
std::vector<BatchShape> task_shapes(const RunSpec&);
int64_t book_evaluation(const RunSpec&, int threads, std::span<const BatchShape>, int pp_rank = kAlone);
// Weights only; evaluations of a microbatch and of fewer sequences; alone also one sequence forward at a
// time, every length up to seq_len.
int64_t book_inference(const RunSpec&, int threads, int pp_rank = kAlone);

}  // namespace trireme
