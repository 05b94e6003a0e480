// The comb: how the compute lane of each group of ranks spends its time, bin by bin: the teeth are work, the
// gaps are named after what they wait for.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "sim/replay.h"

namespace trireme {

// What a rank's thread does, and what keeps it waiting. bubble: a message from a stage that has not made it
// yet. peers: ranks that have not come to a collective of tp, cp, ep or dp. agree: all ranks, on the
// gradient's norm. pp, tp, cp, ep, dp: data on its way. stopped: for a rank that has failed. done: the
// rank's step is over. The last five occur in measured steps only. data: the rank waits for input tokens.
// launch: host time between two ops. save: a checkpoint stalls training.
// between: other time between two steps. unknown: a longer pause that no span of the trace explains.
enum class Use : uint8_t {
  forward,
  input,
  weight,
  again,
  update,
  other_work,
  bubble,
  pp,
  tp,
  cp,
  ep,
  dp,
  peers,
  agree,
  disk,
  host,
  stopped,
  done,
  data,
  launch,
  save,
  between,
  unknown
};
inline constexpr size_t kUses = 23;
inline constexpr size_t kWorks = 6;  // the first of them are work
std::string_view name_of(Use);
char letter_of(Use);  // in comb_text
inline bool is_work(Use u) {
  return size_t(u) < kWorks;
}
using UseTimes = std::array<int64_t, kUses>;

// Returns the kind of work of an action ("F", "B", "Step").
Use use_of_action(std::string_view action);
// Returns the use of a rank that waits for data of a group ("dp", "dp+cp", "pp again"); agree: the group of
// all ranks.
Use use_of_group(std::string_view group);
// Returns the use of a rank that waits for others to reach the transfer, given the use that the transfer is.
Use late_of(Use transfer);

// A stretch of a rank's thread in one use; stretches follow one another from 0 to the step's end.
struct Stretch {
  Use use = Use::done;
  int64_t begin = 0, end = 0;
};
std::vector<Stretch> stretches_of(const RankTape&, const RankReplay&, int64_t makespan);
// All of them: adds up to the makespan.
UseTimes use_of(const std::vector<Stretch>&);

// Of a rank's own span, from its first to its last work on microbatches, what it idles for the pipeline
// (bubble and pp), divided by that span: the papers' bubble where messages take no time.
struct OwnSpan {
  int64_t begin = 0, end = 0, idle = 0;
  double bubble() const { return end > begin ? double(idle) / double(end - begin) : 0; }
};
OwnSpan own_span(const std::vector<Stretch>&);

struct CombRow {
  std::string name;  // "stage 3, 1024 ranks"
  std::vector<Stretch> stretches;
};
struct Comb {
  std::vector<CombRow> rows;
  int64_t makespan = 0;  // nanoseconds
};
// Of each bin of a row the time in each use; all bins are as long, but for rounding to nanoseconds.
std::vector<UseTimes> bins_of(const CombRow&, int64_t makespan, int bins);

// A row of eighths of blocks, the share of the bin that is work, and under it a letter for what most of the
// rest waits for; nothing where work is nine tenths.
std::string comb_text(const Comb&, int columns);
std::string_view comb_legend();
std::string comb_svg(const Comb&, std::string_view title);

}  // namespace trireme
