// What one rank records of its traced steps, and how it comes to the rank that writes it.
#pragma once
#include <memory>
#include <optional>

#include "comm/comm_set.h"
#include "comm/wrap/traced.h"
#include "runtime/stage_runner.h"
#include "trace/span_text.h"
#include "trace/step_set.h"

namespace trireme {

// On every rank: ops, actions and waits of its own thread, collectives on the lanes of their streams.
class StepTrace {
 public:
  // launches: ops of a step, for room; 0 = not known. device and factory outlive this.
  StepTrace(const RunSpec&, Device&, CommFactory&, int64_t launches);
  // Through which groups are made, so that their calls are recorded.
  CommFactory& factory() { return traced_ ? *traced_ : factory_; }

  bool wants(int64_t step) const { return steps_.contains(step); }
  // Around the step, of which the runner records everything.
  void begin(StageRunner&, int64_t step);
  void end(StageRunner&);
  // After a wanted step, on all ranks: rank 0 gets the spans of every rank, the others none.
  OwnedSpans gather(Communicator& control);

 private:
  StepSet steps_;
  Device& device_;
  CommFactory& factory_;
  std::vector<std::string_view> lanes_;  // streams that carry collectives
  std::optional<SpanRecorder> spans_;
  std::unique_ptr<CommTracer> collectives_;  // null: nothing is traced, or there is one rank
  std::unique_ptr<CommFactory> traced_;
};

}  // namespace trireme
