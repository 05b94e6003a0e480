// What a run writes about its steps: metrics.jsonl, TensorBoard's event file, and the trace of chosen steps.
#pragma once
#include <memory>
#include <optional>

#include "spec/run_spec.h"
#include "trace/chrome_trace.h"
#include "trace/metrics.h"
#include "trace/step_set.h"
#include "trace/tensorboard.h"
#include "train/trainer.h"

namespace trireme {

class RunFiles {
 public:
  // Steps after `done` follow.
  RunFiles(const RunSpec&, const TrainOptions&, int64_t done);

  // Where the next step is recorded; null: it is not traced.
  SpanRecorder* recorder(int64_t step);
  // And the spans of this step, if it was traced: those of the recorder, then those of its collectives.
  void write(const StepMetrics&, std::span<const Span> collectives = {});
  std::string traced() const;  // "traced 3 steps into ..."; empty if none was

 private:
  MetricsFile metrics_;
  std::optional<TensorBoardFile> tensorboard_;
  StepSet trace_steps_;
  std::optional<SpanRecorder> spans_;
  fs::path trace_path_;
  std::unique_ptr<ChromeTraceFile> trace_;
  int64_t traced_ = 0, dropped_ = 0;
};

}  // namespace trireme
