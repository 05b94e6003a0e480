// The fit that makes constants of step_time() of measured rows: Gauss-Newton on logarithms, with priors and
// weights that far-off rows lose.
#pragma once
#include <span>

#include "catalog/constants.h"
#include "published/score_rows.h"

namespace trireme {

// Seconds of each of the row's cases.
struct RowForecast {
  double low = 0, high = 0, middle = 0;  // over the cases: least, most;
                                         // geometric mean
};
RowForecast forecast_of(const MeasuredRow&, const FitValues&);  // seconds
RowForecast memory_of(const MeasuredRow&, const FitValues&);    // bytes

// What a fit moves: every constant that `rows` depend on, from its prior; or those of their sites alone, from
// where they are (a user's few own measurements).
enum class Moves { all, sites_alone };
// start: constants near the result, from which the search begins; null = the priors. It moves the number of
// steps, not the result.
ScoreConstants fit_constants(const ScoreConstants&, std::span<const MeasuredRow* const> rows,
                             Moves = Moves::all, const ScoreConstants* start = nullptr);

// Standard deviation of measured memory around its forecast by `fitted`, in logarithms. It adds the noise of
// a measurement, the difference of two publications of one thing, and the prior spread of each constant that
// no fitted row has, times its effect on this row.
double memory_spread(const MeasuredRow&, const ScoreConstants& fitted);

}  // namespace trireme
