// What a run writes about its steps: metrics.jsonl, TensorBoard's event file, and the trace of chosen steps.
#pragma once
#include <memory>
#include <optional>

#include "spec/run_spec.h"
#include "trace/chrome_trace.h"
#include "trace/metrics.h"
#include "trace/span_text.h"
#include "trace/tensorboard.h"
#include "train/trainer.h"

namespace trireme {

class RunFiles {
 public:
  // Steps after `done` follow.
  RunFiles(const RunSpec&, const TrainOptions&, int64_t done);

  // And the spans of all ranks, of a step that was traced; null = it was not.
  void write(const StepMetrics&, const OwnedSpans* = nullptr);
  // What the save behind the last step cost, which its own line of metrics could not know.
  void add_last_save(std::optional<double> stall_s, std::optional<double> write_s) {
    metrics_.add_last_save(stall_s, write_s);
  }
  std::string traced() const;  // "traced 3 steps into ..."; empty if none was

 private:
  MetricsFile metrics_;
  std::optional<TensorBoardFile> tensorboard_;
  fs::path trace_path_;
  std::unique_ptr<ChromeTraceFile> trace_;
  int64_t traced_ = 0, dropped_ = 0;
};

}  // namespace trireme
