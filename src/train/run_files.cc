#include "train/run_files.h"

#include <fmt/format.h>

namespace trireme {
namespace {

// Beside a step's ops: the step, up to seven actions and a wait for data for each microbatch (ZeRO 3: Unshard
// and Reshard around F and B, ReduceGrad), and the ends of it.
size_t spans_of(const RunSpec& run, int64_t launches) {
  constexpr int64_t kUnknown = 1 << 16;
  return size_t((launches > 0 ? launches : kUnknown) + 8 * run.microbatches() + 8);
}

// A resumed run leaves the trace of the start before as it is: its own is named by the step it goes on with.
fs::path trace_path(const fs::path& dir, int64_t done) {
  fs::path first = dir / "trace.json";
  return done > 0 && fs::exists(first) ? dir / fmt::format("trace-from-{}.json", done + 1) : first;
}

std::map<std::string, std::string> about(const RunSpec& run, const TrainOptions& o) {
  const ModelSpec& m = run.model;
  return {{"model",
           fmt::format("{} of {} layers, hidden {}, vocabulary {}", m.arch, m.layers, m.hidden, m.vocab)},
          {"batch", fmt::format("{} sequences of {} tokens, {} a microbatch", run.batch.global,
                                run.data.seq_len, run.batch.micro)},
          {"compute", run.precision.compute},
          {"machine", o.machine},
          {"peak_flops", fmt::format("{:.0f}", o.peak_flops)}};
}

}  // namespace

RunFiles::RunFiles(const RunSpec& run, const TrainOptions& options, int64_t done)
    : metrics_(fs::path(run.train.dir) / "metrics.jsonl", done),
      trace_path_(trace_path(run.train.dir, done)) {
  if (run.train.tensorboard) tensorboard_.emplace(run.train.dir, done, save_run(run));
  if (std::string why = StepSet::parse(run.train.trace_steps, trace_steps_); !why.empty())
    bad_request("train.trace_steps: {}", why);
  if (trace_steps_.empty()) return;
  spans_.emplace(spans_of(run, options.launches));
  trace_ = std::make_unique<ChromeTraceFile>(trace_path_, about(run, options));
}

SpanRecorder* RunFiles::recorder(int64_t step) {
  if (!trace_steps_.contains(step)) return nullptr;
  spans_->clear();
  return &*spans_;
}

void RunFiles::write(const StepMetrics& m, std::span<const Span> collectives) {
  metrics_.write(m);
  if (tensorboard_) tensorboard_->write(m);
  if (!trace_steps_.contains(m.step)) return;
  trace_->write(spans_->spans());
  trace_->write(collectives);
  traced_++, dropped_ += spans_->dropped();
}

std::string RunFiles::traced() const {
  if (traced_ == 0) return "";
  std::string lost = dropped_ > 0 ? fmt::format(" ({} spans had no room)", dropped_) : "";
  return fmt::format("traced {} step(s) into {}{}; `trireme inspect` sums it up, ui.perfetto.dev shows it",
                     traced_, trace_path_.string(), lost);
}

}  // namespace trireme
