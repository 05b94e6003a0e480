// A trace.json: the spans of an accepted one can be added up.
#include "fuzz.h"
#include "trace/chrome_trace.h"
#include "trace/summary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    const Timeline t = parse_chrome_trace(fuzz::text_of(data, size), "fuzz.json");
    for (const Span& s : t.spans)
      fuzz::expect(s.end_ns >= s.begin_ns && s.begin_ns >= 0, "a span that ends before it begins");
    fuzz::expect(summarize(t.spans).peak_total >= 0, "a peak below zero");
  });
  return 0;
}
