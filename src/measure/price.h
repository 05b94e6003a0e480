// What a step's pieces cost on a machine, and the step replayed with that: the forecast of its time.
#pragma once
#include <functional>
#include <vector>

#include "runtime/recording.h"
#include "sim/replay.h"
#include "spec/cluster_spec.h"

namespace trireme {

// Roofline: the larger of FLOPs / peak (of the compute type for products and attention, else of f32) and
// bytes / bandwidth. Seconds; 0 where the machine's peaks are not known.
struct OpSeconds {
  double seconds = 0;
  bool compute_bound = false;
};
OpSeconds op_seconds(std::string_view op, const Cost&, const ClusterSpec&, std::string_view compute);

// One price a piece, in nanoseconds. Where the machine's kernels were measured with as many ranks and threads
// (measure/speeds.h): expected seconds of ops and calls, and what lies between ops. Else, and for what was
// not measured: ops by op_seconds, calls by alpha and beta (call_seconds), or as libraries of devices make
// them where the cluster file says enough (catalog/call_price.h). Disk transfers by the machine's disk, whose
// bandwidth its ranks share; transfers to and from the host's memory by each device's own link to it.
std::vector<Price> price(const Tape&, const ClusterSpec&, const RunSpec&);
// The same machine without these measurements: its roof.
ClusterSpec at_the_roof(ClusterSpec);

// A step on the machine; with post-validation what each step adds to those before it. With AdamW replicas do
// the same but for the gradient norm, whose blocks they divide: one rank stands for all. With Muon the ranks
// of a shard group, and of tp, own different matrices, and each is recorded and replayed, of up to 64 ranks.
struct StepTime {
  double step_s = 0;     // until the last rank is done
  double compute_s = 0;  // of the rank that computes longest
  double comm_s = 0;     // of the rank with most of it: what the step would wait without overlap
  double disk_s = 0, exposed_disk_s = 0;  // likewise: transfers to and from the disk; compute waits for them
  double host_s = 0, exposed_host_s = 0;  // likewise: the host's memory
  double exposed_s = 0;  // of the rank with most of it: compute waits for the wire or for other ranks
  double bubble = 0;     // of the rank with most of it: idle for the pipeline, of its own span (OwnSpan)
};
// The first `steps` of a run, one behind the other, by rank. one: the tape of a rank that is known already.
Replay replay_steps(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, int steps,
                    const Tape* one = nullptr);
StepTime step_time(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const Tape& one_rank);
// Likewise, with the tapes of more ranks known.
using KnownTapes = std::vector<const Tape*>;
// recorded: called after each rank's tape, with the number of tapes so far and of all.
using RecordedRanks = std::function<void(int64_t done, int64_t all)>;
StepTime step_time(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const KnownTapes&,
                   const RecordedRanks& recorded = {});
// The ranks whose steps differ, of those that stand for the others (StepTime).
std::vector<int> distinct_ranks(const RunSpec&);

}  // namespace trireme
