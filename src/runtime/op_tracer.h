// Records what a step does, op by op, into a SpanRecorder. Off, it costs the step a null pointer.
#pragma once
#include <utility>

#include "comm/wrap/traced.h"
#include "device/device.h"
#include "trace/span.h"

namespace trireme {

class OpTracer : public OpObserver {
 public:
  // `layer` and the ledger are read at each op: the runner keeps them as they are then. collectives: hear
  // which action runs; null = none are traced.
  OpTracer(SpanRecorder&, const Ledger&, const std::string_view& layer, CommTracer* collectives = nullptr);
  void before(std::string_view op) override;
  void after(std::string_view op, const Cost&, const Outputs&) override;

  void set_step(int64_t step) { now_.step = step; }
  // Ops from now on belong to that action. Returns the previous action.
  std::string_view action() const { return now_.action; }
  std::string_view set_action(std::string_view action) { return std::exchange(now_.action, action); }
  size_t begin(SpanKind, std::string_view name, int64_t microbatch);
  void end(size_t i);

 private:
  Span at_present(SpanKind, std::string_view name) const;

  SpanRecorder& spans_;
  const Ledger& ledger_;
  const std::string_view& layer_;
  CommTracer* collectives_;
  Span now_;  // step, action and microbatch of what runs now
  size_t op_ = SpanRecorder::kNone;
};

// A span for the life of the object; nothing without a tracer.
class TraceScope {
 public:
  TraceScope(OpTracer* t, SpanKind kind, std::string_view name, int64_t microbatch = -1)
      : tracer_(t), i_(t ? t->begin(kind, name, microbatch) : SpanRecorder::kNone) {}
  TraceScope(const TraceScope&) = delete;
  ~TraceScope() {
    if (tracer_) tracer_->end(i_);
  }

 private:
  OpTracer* tracer_;
  size_t i_;
};

// For its life, ops within a backward pass are those of recompute; nothing without a tracer.
class RecomputeScope {
 public:
  explicit RecomputeScope(OpTracer* t) : tracer_(t), action_(t ? t->set_action("R") : std::string_view()) {}
  RecomputeScope(const RecomputeScope&) = delete;
  ~RecomputeScope() {
    if (tracer_) tracer_->set_action(action_);
  }

 private:
  OpTracer* tracer_;
  std::string_view action_;
};

}  // namespace trireme
