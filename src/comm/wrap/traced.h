// Spans of collectives: when each began, met its peers and ended, on the lane of its stream.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_set.h"
#include "trace/span.h"

namespace trireme {

// Where the spans of one rank go. Driven from the rank's thread; the streams' threads write to a recorder of
// their own each.
class CommTracer {
 public:
  // capacity: spans a lane and start() hold; more are counted and dropped.
  CommTracer(int rank, size_t capacity) : rank_(rank), capacity_(capacity) {}
  // The name of a stream's lane, once and before its first call that is traced: "dp". Stream 0 is "compute".
  void name_lane(Stream, std::string_view);

  // Calls from now on are recorded, as of this step; stop() ends it.
  void start(int64_t step) { on_ = true, step_ = step; }
  void stop() { on_ = false; }
  // What the rank does now, for spans' action and microbatch; texts outlive the spans.
  void set_action(std::string_view action, int64_t microbatch) {
    action_ = action, microbatch_ = int32_t(microbatch);
  }
  // All spans since the last take(), by lane in the order they began. Only after the streams were waited for.
  std::vector<Span> take();
  int64_t dropped() const;

  // For communicators: what a call's span has when it is issued; not of this tracer's when `on` is false.
  bool on() const { return on_; }
  Span at_present(const CommCall&);
  void add(Stream, const Span&);

 private:
  struct Lane {
    std::string name;
    SpanRecorder spans;
    Lane(std::string_view name, size_t capacity) : name(name), spans(capacity) {}
  };
  static constexpr size_t kMostLanes = 64;
  Lane& lane(Stream);

  int rank_;
  size_t capacity_;
  bool on_ = false;
  int64_t dropped_ = 0;  // before the last take()
  int64_t step_ = 0;
  std::string_view action_;
  int32_t microbatch_ = -1;
  std::array<std::unique_ptr<Lane>, kMostLanes> lanes_;
};

// The tracer outlives the factory, its communicators the spans (group names).
std::unique_ptr<CommFactory> make_traced(std::unique_ptr<CommFactory>, Device*, CommTracer&);
std::unique_ptr<CommFactory> make_traced(CommFactory&, Device*, CommTracer&);  // which outlives what is made

}  // namespace trireme
