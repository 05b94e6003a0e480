// A trace.json: the spans of an accepted one can be added up.
#include <cstdlib>

#include "base/error.h"
#include "trace/chrome_trace.h"
#include "trace/summary.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  try {
    const Timeline t = parse_chrome_trace({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    for (const Span& s : t.spans)
      if (s.end_ns < s.begin_ns || s.begin_ns < 0) std::abort();
    if (summarize(t.spans).peak_total < 0) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
