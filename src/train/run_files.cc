#include "train/run_files.h"

#include <fmt/format.h>

#include "base/counted.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

// A resumed run leaves the trace of the start before as it is: its own is named by the step it goes on with.
fs::path trace_path(const fs::path& dir, int64_t done) {
  fs::path first = dir / "trace.json";
  return done > 0 && fs::exists(first) ? dir / fmt::format("trace-from-{}.json", done + 1) : first;
}

std::map<std::string, std::string> about(const RunSpec& run, const TrainOptions& o) {
  const ModelSpec& m = run.model;
  return {{"model",
           fmt::format("{} of {} layers, hidden {}, vocabulary {}", m.arch, m.layers, m.hidden, m.vocab)},
          {"batch", batch_text(run)},
          {"compute", run.precision.compute},
          {"machine", o.machine},
          {"peak_flops", fmt::format("{:.0f}", o.peak_flops)}};
}

}  // namespace

RunFiles::RunFiles(const RunSpec& run, const TrainOptions& options, int64_t done)
    : metrics_(fs::path(run.train.dir) / "metrics.jsonl", done),
      trace_path_(trace_path(run.train.dir, done)) {
  if (run.train.tensorboard) tensorboard_.emplace(run.train.dir, done, save_run(run));
  if (!run.train.trace_steps.empty())
    trace_ = std::make_unique<ChromeTraceFile>(trace_path_, about(run, options));
}

void RunFiles::write(const StepMetrics& m, const OwnedSpans* spans) {
  metrics_.write(m);
  if (tensorboard_) tensorboard_->write(m);
  if (!spans) return;
  trace_->write(spans->spans);
  traced_++, dropped_ += spans->dropped;
}

std::string RunFiles::traced() const {
  if (traced_ == 0) return "";
  std::string lost = dropped_ > 0 ? fmt::format(" ({} spans had no room)", dropped_) : "";
  return fmt::format("traced {} into {}{}; `trireme inspect` sums it up, ui.perfetto.dev shows it",
                     counted(traced_, "step"), trace_path_.string(), lost);
}

}  // namespace trireme
