// Where the time of some steps went: spans added up by op, by layer, and by both.
#pragma once
#include <string>
#include <vector>

#include "trace/span.h"

namespace trireme {

struct TimeRow {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;
};

struct TraceSummary {
  int64_t steps = 0, ranks = 0;             // each rank's step counts; ranks that had any
  double step_s = 0, op_s = 0, wait_s = 0;  // of all of them: whole steps, inside ops, waiting
  // Most time first. Layers of one kind are one row: "blocks.*.attn".
  std::vector<TimeRow> by_op, by_layer, by_both, by_action;
  std::vector<TimeRow> by_collective;  // the time from begin to end, waiting included; bytes on the wire
  BucketBytes at_peak{};               // the most that was booked at once
  int64_t peak_total = 0;
};
// "blocks.11.attn" -> "blocks.*.attn"
std::string kind_of_layer(std::string_view layer);
TraceSummary summarize(std::span<const Span>);

}  // namespace trireme
