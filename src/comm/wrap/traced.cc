#include "comm/wrap/traced.h"

#include "comm/wrap/wrapped.h"

namespace trireme {

void CommTracer::name_lane(Stream s, std::string_view name) {
  require(s.id >= 0 && size_t(s.id) < kMostLanes, "a trace has 64 lanes");
  if (!lanes_[size_t(s.id)]) lanes_[size_t(s.id)] = std::make_unique<Lane>(name, capacity_);
}

CommTracer::Lane& CommTracer::lane(Stream s) {
  require(s.id >= 0 && size_t(s.id) < kMostLanes, "a trace has 64 lanes");
  auto& lane = lanes_[size_t(s.id)];
  if (!lane) lane = std::make_unique<Lane>(s.id == 0 ? "compute" : fmt::format("stream {}", s.id), capacity_);
  return *lane;
}

Span CommTracer::at_present(const CommCall& c) {
  Span s;
  s.kind = SpanKind::comm;
  s.rank = rank_, s.microbatch = microbatch_, s.step = step_, s.action = action_;
  s.name = name_of(c.kind), s.lane = lane(c.stream).name;
  s.group = c.group, s.algorithm = c.algorithm, s.wire_bytes = c.wire;
  return s;
}

void CommTracer::add(Stream s, const Span& span) {
  SpanRecorder& spans = lanes_[size_t(s.id)]->spans;  // made when the call was issued
  spans.end(spans.begin(span), span.end_ns);
}

std::vector<Span> CommTracer::take() {
  std::vector<Span> all;
  for (auto& lane : lanes_) {
    if (!lane) continue;
    all.insert(all.end(), lane->spans.spans().begin(), lane->spans.spans().end());
    dropped_ += lane->spans.dropped();
    lane->spans.clear();
  }
  return all;
}

int64_t CommTracer::dropped() const {
  int64_t n = dropped_;
  for (auto& lane : lanes_) n += lane ? lane->spans.dropped() : 0;
  return n;
}

namespace {

class TracedCommunicator final : public WrappedCommunicator {
 public:
  TracedCommunicator(std::unique_ptr<Communicator> inner, Device* device, CommTracer& tracer)
      : WrappedCommunicator(std::move(inner), device), tracer_(tracer) {}
  ~TracedCommunicator() override { finish(); }

 private:
  static constexpr int64_t kMost = 256;  // as WrappedCommunicator's
  struct Open {
    Span span;
    bool on = false;
  };
  void before(const CommCall& c) override {
    Open& o = open_[size_t(c.sequence % kMost)];
    o.on = tracer_.on();
    if (o.on) o.span = tracer_.at_present(c);
  }
  void finished(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    Open& o = open_[size_t(c.sequence % kMost)];
    if (o.on) {
      o.span.begin_ns = begin_ns, o.span.met_ns = met_ns, o.span.end_ns = end_ns;
      tracer_.add(c.stream, o.span);
    }
    tell(c, begin_ns, met_ns, end_ns);
  }
  CommTracer& tracer_;
  std::array<Open, size_t(kMost)> open_;
};

class TracedFactory final : public WrappedFactory {
 public:
  TracedFactory(std::unique_ptr<CommFactory> inner, Device* device, CommTracer& tracer)
      : WrappedFactory(std::move(inner)), device_(device), tracer_(tracer) {}
  TracedFactory(CommFactory& inner, Device* device, CommTracer& tracer)
      : WrappedFactory(inner), device_(device), tracer_(tracer) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<TracedCommunicator>(std::move(c), device_, tracer_);
  }
  Device* device_;
  CommTracer& tracer_;
};

}  // namespace

std::unique_ptr<CommFactory> make_traced(std::unique_ptr<CommFactory> inner, Device* device,
                                         CommTracer& tracer) {
  return std::make_unique<TracedFactory>(std::move(inner), device, tracer);
}

std::unique_ptr<CommFactory> make_traced(CommFactory& inner, Device* device, CommTracer& tracer) {
  return std::make_unique<TracedFactory>(inner, device, tracer);
}

}  // namespace trireme
