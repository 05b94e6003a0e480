// routing.jsonl of a run folder: rows that each rank had for each expert in the steps of train.record_routing
// (trace/recorded_rows.h).
#pragma once
#include "runtime/stage_runner.h"
#include "trace/step_set.h"

namespace trireme {

class RoutingFile {
 public:
  // Steps after `done` follow; what a run before it recorded stays, in a file of its own. writes: this rank
  // has the files.
  RoutingFile(const RunSpec&, int64_t done, bool writes);

  bool wants(int64_t step) const { return steps_.contains(step); }
  // After a wanted step, on all ranks. A file that would grow beyond what is read takes no more of them.
  void write(const StageRunner&, Communicator& control, int64_t step);
  std::string written() const;  // "recorded the routing of 3 steps into ..."; empty if none was asked for

 private:
  const RunSpec& run_;
  StepSet steps_;
  fs::path path_;
  bool writes_, begun_ = false;
  int64_t recorded_ = 0, bytes_ = 0, left_out_ = 0;
};

}  // namespace trireme
