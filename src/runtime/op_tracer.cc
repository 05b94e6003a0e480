#include "runtime/op_tracer.h"

#include <chrono>

namespace trireme {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

OpTracer::OpTracer(SpanRecorder& spans, const Ledger& ledger, const std::string_view& layer,
                   CommTracer* collectives)
    : spans_(spans), ledger_(ledger), layer_(layer), collectives_(collectives) {}

Span OpTracer::at_present(SpanKind kind, std::string_view name) const {
  Span s = now_;
  s.kind = kind, s.name = name;
  for (size_t i = 0; i < kBuckets; i++) s.memory[i] = ledger_.now(Bucket(i));
  s.begin_ns = s.end_ns = now_ns();
  return s;
}

void OpTracer::before(std::string_view op) {
  Span s = at_present(SpanKind::op, op);
  s.layer = layer_;
  op_ = spans_.begin(s);
}

void OpTracer::after(std::string_view, const Cost& cost, const Outputs&) {
  spans_.end(op_, now_ns(), cost);
}

size_t OpTracer::begin(SpanKind kind, std::string_view name, int64_t microbatch) {
  if (kind == SpanKind::action) {
    now_.action = name, now_.microbatch = int32_t(microbatch);
    if (collectives_) collectives_->set_action(name, microbatch);
  }
  return spans_.begin(at_present(kind, name));
}

void OpTracer::end(size_t i) {
  if (i == SpanRecorder::kNone) return;
  spans_.end(i, now_ns());
  if (spans_.spans()[i].kind != SpanKind::action) return;
  now_.action = {}, now_.microbatch = -1;
  if (collectives_) collectives_->set_action({}, -1);
}

}  // namespace trireme
