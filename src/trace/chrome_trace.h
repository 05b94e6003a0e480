// Timelines in the JSON that chrome://tracing and Perfetto (ui.perfetto.dev) show.
//
// {"displayTimeUnit": "ms", "otherData": {...}, "traceEvents": [...]}: one event a line, those of one lane in
// the order they began; a rank is a process and each of its lanes a row. Times are microseconds from the
// first span. A span is a complete event ("ph": "X") whose args are what the span has and, of an op or a
// collective, what it achieved; what the ledger holds is a counter track ("ph": "C") in bytes.
#pragma once
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "trace/span.h"

namespace trireme {

// Grows with each step that is traced, and is whole after each.
class ChromeTraceFile {
 public:
  // Nothing is written before the first spans, which replace the trace of an earlier start. `about` says what
  // was traced: model, machine, peak.
  ChromeTraceFile(fs::path, std::map<std::string, std::string> about);
  ~ChromeTraceFile();
  ChromeTraceFile(const ChromeTraceFile&) = delete;
  void write(std::span<const Span>);

 private:
  size_t row_of(const Span&, std::string& text);
  fs::path path_;
  std::map<std::string, std::string> about_;
  int fd_ = -1;
  int64_t end_ = 0;                               // where the next event goes: before the closing brackets
  int64_t origin_ns_ = 0;                         // of the first span
  std::map<int32_t, BucketBytes> memory_;         // by rank, as last written
  std::vector<std::string> lanes_ = {"compute"};  // the index is the row's number
  std::set<std::pair<int32_t, size_t>> rows_ = {{0, 0}};  // rank and lane: that have a name in the file
};

// A trace as read back; spans point into texts.
struct Timeline {
  std::map<std::string, std::string> about;
  std::vector<Span> spans;
  std::deque<std::string> texts;
  Timeline() = default;
  Timeline(Timeline&&) = default;
};

inline constexpr uint64_t kMostTraceBytes = uint64_t(256) << 20;
// Traces of trireme only; anything else is a bad_request that names `file`.
Timeline parse_chrome_trace(std::string_view json, std::string_view file);
Timeline read_chrome_trace(const fs::path&);

}  // namespace trireme
