// Reads a trace of any size line by line, in the form that ChromeTraceFile writes: one event per line.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/file.h"
#include "trace/span.h"

namespace trireme {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Spans in the order of the file. Their texts live as long as the scan; memory is what the rank's ledger
  // held.
  virtual void span(const Span&) = 0;
  // After the last span, while texts still live.
  virtual void end() {}
};

struct TraceScan {
  std::map<std::string, std::string> about;
  int64_t spans = 0;
  int64_t damaged = 0;  // lines that are not an event of trireme
  bool whole = false;   // the closing brackets exist
};

// Throws Error (request) if the file is not a trace of trireme.
TraceScan scan_trace(const fs::path&, TraceSink&);
TraceScan scan_trace(std::string_view text, std::string_view file, TraceSink&);

}  // namespace trireme
