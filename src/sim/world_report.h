// A replayed step as its reader wants it: a row for each group of ranks that do the same.
#pragma once
#include <string>
#include <vector>

#include "sim/comb.h"
#include "sim/memory_curve.h"

namespace trireme {

struct StepRow {
  std::string name;      // "stage 3", "rank 17, slow"
  int rank = 0, pp = 0;  // the first rank of it; its place in the pipeline
  int64_t ranks = 1;
  bool disturbed = false;
  size_t at = 0;  // in the replay's tapes
  std::vector<Stretch> stretches;
  UseTimes use{};                   // adds up to the makespan
  OwnSpan span;                     // where the bubble is
  std::vector<MemoryPoint> memory;  // empty = not known
  int64_t peak = 0;                 // bytes; 0 = not known
};
std::vector<StepRow> rows_of(const World&, const WorldReplay&);

// The bubble of a step: of the row that has the largest.
double bubble_of(const std::vector<StepRow>&);
// A line a row: shares of the step by use, those columns that have any, and the peak of memory.
std::string rows_text(const std::vector<StepRow>&, int64_t makespan);
// At most so many rows, those disturbed and the largest group of each pipeline rank first, in the order
// given.
std::vector<StepRow> chosen_rows(const std::vector<StepRow>&, size_t most);
Comb comb_of(const std::vector<StepRow>&, int64_t makespan);

// The timeline of the row's ranks as the spans of a real step: the step, its actions, what they are made of,
// and memory in the bucket of activations beyond what is there all along.
std::vector<Span> step_spans(const RankTape&, const RankReplay&, const std::vector<MemoryPoint>&, int rank,
                             int64_t makespan);

}  // namespace trireme
