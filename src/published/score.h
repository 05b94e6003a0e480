// Forecasts held against measured runs: errors of what was not fitted, beside
// two controls.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "published/score_fit.h"

namespace trireme {

struct ScoreStats {
  std::string source;
  int64_t rows = 0;
  double mape = 0, median = 0, p90 = 0;  // percent
  double bias = 0;                       // percent, of the geometric mean
  double coverage = 0;                   // percent of rows inside their 80 % interval
  double control_mape = 0, fitted_control_mape = 0;
  // Sheets: rows that differ in their layout alone. regret: how much slower the layout is that the forecast
  // puts first than the fastest measured, mean of the sheets; ordered: of their pairs.
  int64_t sheets = 0, pairs = 0;
  double regret = 0, ordered = 0;  // percent
};
// Verdicts "fits", "risky", "does not fit" against what ran and what did not.
struct VerdictStats {
  std::string source;
  int64_t rows = 0;
  double right = 0, risky = 0, wrong = 0, control_right = 0;  // percent
  int64_t ran = 0, failed = 0;  // a run that is not forecast for its states' size counts as one that ran
  double ran_refused = 0;       // percent of those that ran: "does not fit", or not forecast for that
  double failed_fits = 0;       // percent of those that ran out of memory: "fits"
};
struct ScoredRow {
  std::string id, source, family, metric;
  bool experts = false;  // a mixture of experts
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
// Of rows with experts, or without.
MeasuredRatios measured_ratios(const std::vector<ScoredRow>&, bool experts);
// Which rows a forecast's constants have not seen.
enum class LeaveOut {
  publication,  // all of the row's publication
  half,         // half of each family, by configuration; `splits` times
  nothing       // none: constants unchanged
};
struct ScoreReport {
  Tables<ScoreStats> time, memory;
  Tables<VerdictStats> fits;
  std::vector<ScoredRow> rows, memory_rows;  // seconds; bytes
  std::vector<SkippedRow> skipped, notes;
  std::vector<RowVerdict> verdicts;
  int64_t measured_rows = 0, splits = 0;  // with seconds
  // Half width that holds 80 % of the measurements, each publication alike (ScoreConstants::unseen_seconds).
  double unseen_seconds = 0, unseen_bytes = 0;
  LeaveOut leave_out = LeaveOut::publication;
};

struct ScoreOptions {
  LeaveOut leave_out = LeaveOut::publication;
  int splits = 5;
  // Rows that are fitted too, and not scored, except rows of a publication that is left out.
  std::span<const MeasuredRow> others = {};
};
ScoreReport score_rows(const std::vector<MeasuredRow>&, const ScoreConstants&, const ScoreOptions& = {});

// Mean over families of `least` rows or more, of a table of seconds; how many have a mean error below that of
// both controls.
struct SourceSummary {
  int64_t sources = 0, below_both = 0;
  double mape = 0, median = 0, coverage = 0, regret = 0, ordered = 0;
};
SourceSummary summary_of(const std::vector<ScoreStats>&, int64_t least = 5);

// step = FLOPs with recompute / (devices x peak x 0.5) x (1 + (p - 1) / (v m)),
// nothing fitted.
double control_seconds(const MeasuredRow&);
// Weights, gradients and optimizer alone.
double control_bytes(const MeasuredRow&);

std::string score_text(const ScoreReport&, bool rows);
std::string score_json(const ScoreReport&);

}  // namespace trireme
