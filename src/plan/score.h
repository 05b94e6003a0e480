// Forecasts held against measured runs: errors of what was not fitted, beside
// two controls.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/score_fit.h"

namespace trireme {

struct ScoreStats {
  std::string source;
  int64_t rows = 0;
  double mape = 0, median = 0, p90 = 0;  // percent
  double coverage = 0;                   // percent of rows inside their 80 % interval
  double control_mape = 0, fitted_control_mape = 0;
};
// Verdicts "fits", "risky", "does not fit" against what ran and what did not.
struct VerdictStats {
  std::string source;
  int64_t rows = 0;
  double right = 0, risky = 0, wrong = 0, control_right = 0;  // percent
};
struct ScoredRow {
  std::string id, source, family, metric;
  double predicted = 0, low = 0, high = 0,
         measured = 0;  // forecast by constants that never saw it
  std::string verdict;  // of its memory
};
// Whether a row fits into its device: of all that are forecast, also those that ran out of memory and have
// neither seconds nor bytes.
struct RowVerdict {
  std::string id, source, verdict;     // "fits", "risky", "does not fit"
  double low = 0, high = 0, room = 0;  // bytes
  bool ran = true, timed = true;       // timed: it is among `rows` too
};
struct SkippedRow {
  std::string id, source, reason;
};
// Of a quantity: over all rows, by source, by family.
template <class Stats>
struct Tables {
  Stats all;
  std::vector<Stats> sources, families;
};
struct ScoreReport {
  Tables<ScoreStats> time, memory;
  Tables<VerdictStats> fits;
  std::vector<ScoredRow> rows, memory_rows;  // seconds; bytes
  std::vector<SkippedRow> skipped, notes;
  std::vector<RowVerdict> verdicts;
  int64_t measured_rows = 0, splits = 0;  // with seconds
};

// Halves of each family by configuration, `splits` times; constants fitted on
// one half forecast the other.
ScoreReport score_rows(const std::vector<MeasuredRow>&, const ScoreConstants&, int splits = 5);

// step = FLOPs with recompute / (devices x peak x 0.5) x (1 + (p - 1) / (v m)),
// nothing fitted.
double control_seconds(const MeasuredRow&);
// Weights, gradients and optimizer alone.
double control_bytes(const MeasuredRow&);

std::string score_text(const ScoreReport&, bool rows);
std::string score_json(const ScoreReport&);

}  // namespace trireme
