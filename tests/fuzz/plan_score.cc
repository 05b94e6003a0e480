// Measured runs as somebody else's file has them: each row is a case that can be priced, or says why not, and
// what is printed of a file has no control bytes.
#include <cmath>

#include "cost/step_memory.h"
#include "fuzz.h"
#include "plan/score_curves.h"
#include "plan/score_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (is_microbench(fuzz::text_of(data, size))) {
    fuzz::accepts([&] {
      const CurveScore score = score_curves(fuzz::text_of(data, size), "curves.json");
      for (char c : to_text(score))
        fuzz::expect(c == '\n' || (uint8_t(c) >= 0x20 && c != 0x7f), "a control byte is printed");
      to_json(score);
      for (const Curve& c : score.curves)
        for (const CurvePoint& p : c.points)
          fuzz::expect(std::isfinite(p.error()) && p.predicted > 0, "a point without a forecast");
    });
    return 0;
  }
  fuzz::accepts([&] {
    FitValues ones{};
    ones.fill(1);
    for (const MeasuredRow& r : read_rows(fuzz::text_of(data, size), "rows.json", shipped_catalog())) {
      fuzz::expect(r.skipped.empty() == !r.cases.empty(), "a row that is neither a case nor left out");
      for (const StepCase& c : r.cases) {
        const double seconds = step_time(c, r.figures, ones).total, bytes = step_memory(c, ones).total;
        fuzz::expect(std::isfinite(seconds) && seconds > 0, "a case without seconds");
        fuzz::expect(std::isfinite(bytes) && bytes > 0, "a case without bytes");
      }
    }
  });
  return 0;
}
