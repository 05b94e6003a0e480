// What the axes that divide a layer say to one another: tensor against context against expert parallelism,
// as ranks and sequences grow. The numbers are those of the real layers, recorded on meta: a step of two
// blocks less a step of one.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// One block, forward and backward, of `ranks` sequences of seq_len tokens, divided over so many ranks. What
// replicas say to each other (gradients, weights) is left out: it depends on neither.
struct AxisCost {
  std::string way;  // "tp", "tp sequence", "cp ring", "cp ulysses", "ep"
  int64_t ranks = 0, seq_len = 0;
  std::string refused;     // why this model or version cannot be divided so; then the rest is 0
  int64_t wire_bytes = 0;  // that a rank sends and receives, as `plan` counts them
  double comm_s = 0;       // of those calls on the machine's links
  double exposed_s = 0;    // of that, what compute waits for
  double compute_s = 0;    // at the roof
  bool operator==(const AxisCost&) const = default;
};

// Where the cheapest way changes: from seq_len tokens on `to` takes less wire time than `from`.
struct Crossover {
  int64_t ranks = 0, seq_len = 0;
  std::string from, to;
  bool operator==(const Crossover&) const = default;
};

// Two ways beside one another over the lengths of the table: `first` takes less wire time at the shortest,
// and each change is where the other one becomes the cheaper. Wire time is a straight line between two
// lengths of the table (latencies, and bytes that grow with the tokens), so a change is where two lines meet.
struct AxisPair {
  int64_t ranks = 0;
  std::string first, second;
  std::vector<int64_t> changes;  // tokens of a sequence, ascending; in turn for `second` and for `first`
  bool operator==(const AxisPair&) const = default;
};

struct AxisTable {
  std::vector<AxisCost> rows;  // by ranks, then by seq_len, then by way
  std::vector<Crossover> crossovers;
  std::vector<AxisPair> pairs;  // by ranks; every two ways that this model can be divided in
};

// The run gives model, precision and lengths: its data.seq_len and every fourfold of it up to `longest`.
// Links that are not known are a bad_request that says how to state them.
AxisTable compare_axes(const RunSpec&, const ClusterSpec&, int threads, std::vector<int64_t> ranks,
                       int64_t longest);

// The row with the least wire time; null: the model refuses all.
const AxisCost* cheapest(std::span<const AxisCost>);
std::string to_text(const AxisTable&, const RunSpec&, const ClusterSpec&);
std::string to_json(const AxisTable&);

}  // namespace trireme
