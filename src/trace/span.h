// A piece of a timeline, measured or predicted, and the buffer that a step's pieces are recorded into.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "trace/ledger.h"

namespace trireme {

// Kinds in the order they nest: ops and waits lie within actions, those within a step.
// A comm span is a collective, on the lane of its stream.
enum class SpanKind : uint8_t { step, action, op, wait, comm };
inline constexpr std::array<std::string_view, 5> kSpanKindNames = {"step", "action", "op", "wait", "comm"};

struct Span {
  SpanKind kind = SpanKind::op;
  int32_t rank = 0, microbatch = -1;  // -1 = of none
  int64_t step = 0;
  // Texts outlive the span: literals, names of layers, or the Timeline that was read.
  std::string_view name;    // "matmul", "F", "data"
  std::string_view layer;   // of an op: "blocks.3.attn"
  std::string_view action;  // of an op or a wait: "F"
  std::string_view lane;    // the stream that it ran on; empty = compute
  int64_t begin_ns = 0, end_ns = 0;
  Cost cost;
  BucketBytes memory{};  // booked when it began, an op's own scratch included; of no comm span
  // Of a comm span: "dp"; "ordered"; bytes to and from others; when the last peer had come. Until then it
  // waited, from then on it moved data.
  std::string_view group, algorithm;
  int64_t wire_bytes = 0, met_ns = 0;

  double seconds() const { return double(end_ns - begin_ns) * 1e-9; }
};

// Memory is taken once; what does not fit is counted and dropped. Spans are in the order they began.
class SpanRecorder {
 public:
  explicit SpanRecorder(size_t capacity) { spans_.reserve(capacity); }
  static constexpr size_t kNone = ~size_t(0);

  size_t begin(const Span& s) {  // kNone: there was no room
    if (spans_.size() == spans_.capacity()) return dropped_++, kNone;
    spans_.push_back(s);
    return spans_.size() - 1;
  }
  void end(size_t i, int64_t end_ns, const Cost& cost = {}) {
    if (i != kNone) spans_[i].end_ns = end_ns, spans_[i].cost = cost;
  }
  std::span<const Span> spans() const { return spans_; }
  int64_t dropped() const { return dropped_; }
  void clear() { spans_.clear(), dropped_ = 0; }

 private:
  std::vector<Span> spans_;
  int64_t dropped_ = 0;
};

}  // namespace trireme
