#include "train/step_trace.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr size_t kMostCalls = 1 << 14;  // of a step and stream

// Beside a step's ops: the step, up to seven actions and a wait for data for each microbatch (ZeRO 3: Unshard
// and Reshard around F and B, ReduceGrad), four more for what passes to other stages, and the ends of it. In
// a pipeline the rank that was booked is not the one with the most ops.
size_t spans_of(const RunSpec& run, int64_t launches) {
  constexpr int64_t kUnknown = 1 << 16;
  const int64_t ops = launches > 0 ? launches * (run.layout.pp > 1 ? 2 : 1) : kUnknown;
  return size_t(ops + 12 * run.layout.chunks * run.microbatches() + 8);
}

}  // namespace

StepTrace::StepTrace(const RunSpec& run, Device& device, CommFactory& factory, int64_t launches)
    : device_(device), factory_(factory) {
  if (std::string why = StepSet::parse(run.train.trace_steps, steps_); !why.empty())
    bad_request("train.trace_steps: {}", why);
  if (steps_.empty()) return;
  spans_.emplace(spans_of(run, launches));
  if (factory.world() == 1) return;
  collectives_ = std::make_unique<CommTracer>(factory.rank(), kMostCalls);
  lanes_ = {"compute", "dp"};
  if (run.layout.tp_chunks > 1) lanes_.push_back("tp");
  for (std::string_view lane : lanes_) collectives_->name_lane(device.stream(lane), lane);
  traced_ = make_traced(factory, &device, *collectives_);
}

void StepTrace::begin(StageRunner& runner, int64_t step) {
  if (!wants(step)) return;
  spans_->clear();
  if (const PipelineComm* const pipeline = runner.passes().pipeline(); collectives_ && pipeline)
    for (const auto& [stream, name] : pipeline->lanes()) {
      if (std::find(lanes_.begin(), lanes_.end(), name) != lanes_.end()) continue;
      lanes_.push_back(name);
      collectives_->name_lane(stream, lanes_.back());
    }
  runner.trace(&*spans_, collectives_.get());
  if (collectives_) collectives_->start(step);
}

void StepTrace::end(StageRunner& runner) {
  runner.trace(nullptr);
  if (collectives_) collectives_->stop();
}

OwnedSpans StepTrace::gather(Communicator& control) {
  std::vector<Span> mine(spans_->spans().begin(), spans_->spans().end());
  for (Span& s : mine) s.rank = factory_.rank();
  int64_t dropped = spans_->dropped();
  if (collectives_) {
    for (std::string_view lane : lanes_) device_.sync(device_.stream(lane));
    const std::vector<Span> calls = collectives_->take();
    mine.insert(mine.end(), calls.begin(), calls.end());
    dropped += collectives_->dropped();
  }
  OwnedSpans all;
  const std::vector<std::string> texts = gather_texts(control, to_text(mine));
  all.dropped = agree_sum(control, dropped);
  if (factory_.rank() == 0)
    for (const std::string& text : texts) add_text(all, text);
  return all;
}

}  // namespace trireme
