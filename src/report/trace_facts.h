// Facts of the traces of a run, in one pass over files of any size: timeline, ops, transfers, memory.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"
#include "sim/comb.h"

namespace trireme {

// Launches of one op in layers of one kind, of all traced steps and ranks.
struct TracedOp {
  std::string name, layer;  // "matmul", "blocks.*.attn"
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;
};

// Transfers of one group, of all traced steps and ranks.
struct TracedGroup {
  std::string name;  // "dp"
  int64_t calls = 0, wire_bytes = 0;
  double waited_s = 0, moved_s = 0;
};

// A pause of one rank's compute, in ns of the comb.
struct LongPause {
  int64_t begin = 0, end = 0;
  Use use = Use::unknown;
  std::string what;  // "waits for rank 1: all_reduce of dp, 3.1 MB, in B"
  int32_t microbatch = -1;
};

struct MemorySample {
  int64_t at = 0;  // ns of the comb
  BucketBytes bytes{};
};

struct TracedRank {
  int rank = 0;
  std::vector<UseTimes> steps;    // by traced step, between steps included
  std::vector<LongPause> pauses;  // the longest, longest first
  std::vector<MemorySample> memory;
  BucketBytes peak{};        // peak per bucket
  int64_t clock_offset = 0;  // ns that were subtracted, of the last step
};

struct TracedStep {
  int64_t step = 0, begin = 0,
          end = 0;     // ns of the comb; until the next step begins where that is traced too
  int64_t length = 0;  // the step alone, mean of its ranks
};

struct TraceFacts {
  std::map<std::string, std::string> about;
  std::vector<TracedStep> steps;
  std::vector<TracedRank> ranks;
  Comb comb;                  // a row per rank, as `ranks`; times add up to the makespan in each
  std::vector<TracedOp> ops;  // most time first
  std::vector<TracedGroup> groups;
  int64_t spans = 0, damaged = 0;
  std::string why_not;  // sentence: why there is no comb; empty if there is one

  bool any() const { return !steps.empty(); }
  double rank_steps() const { return double(steps.size() * ranks.size()); }
  // Seconds of a step in a use, mean over ranks and steps.
  double per_step(Use) const;
  double step_s() const;  // mean length of a traced step
  UseTimes totals() const;
};

// Traces of all starts, one after another; time between steps that do not follow one another is left out.
TraceFacts read_traces(const RunRecord&);

}  // namespace trireme
