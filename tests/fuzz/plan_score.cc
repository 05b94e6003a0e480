// Measured runs as somebody else's file has them: each row is a case that can be priced, or says why not, and
// the report of few rows, as the verb prints it, has finite errors and no control bytes.
#include <cmath>

#include "catalog/data_texts.h"
#include "cost/step_memory.h"
#include "fuzz.h"
#include "published/score.h"
#include "published/score_curves.h"

namespace {

void expect_printable(std::string_view text) {
  for (char c : text)
    trireme::fuzz::expect(c == '\n' || (uint8_t(c) >= 0x20 && c != 0x7f), "a control byte is printed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (is_microbench(fuzz::text_of(data, size))) {
    fuzz::accepts([&] {
      const CurveScore score = score_curves(fuzz::text_of(data, size), "curves.json");
      expect_printable(to_text(score)), to_json(score);
      for (const Curve& c : score.curves)
        for (const CurvePoint& p : c.points)
          fuzz::expect(std::isfinite(p.error()) && p.predicted > 0, "a point without a forecast");
    });
    return 0;
  }
  fuzz::accepts([&] {
    FitValues ones{};
    ones.fill(1);
    const std::vector<MeasuredRow> rows =
        read_rows(fuzz::text_of(data, size), "rows.json", shipped_catalog());
    for (const MeasuredRow& r : rows) {
      fuzz::expect(r.skipped.empty() == !r.cases.empty(), "a row that is neither a case nor left out");
      for (const StepCase& c : r.cases) {
        const double seconds = step_time(c, r.figures, ones).total, bytes = step_memory(c, ones).total;
        fuzz::expect(std::isfinite(seconds) && seconds > 0, "a case without seconds");
        fuzz::expect(std::isfinite(bytes) && bytes > 0, "a case without bytes");
      }
    }
    if (rows.size() > 4) return;
    static const ScoreConstants constants = parse_constants(kScoreConstants, "constants.json");
    const ScoreReport report = score_rows(rows, constants, {.leave_out = LeaveOut::half, .splits = 1});
    expect_printable(score_text(report, true)), score_json(report);
    for (const auto* scored : {&report.rows, &report.memory_rows})
      for (const ScoredRow& r : *scored)
        fuzz::expect(std::isfinite(r.predicted) && r.predicted > 0, "a row without a forecast");
  });
  return 0;
}
