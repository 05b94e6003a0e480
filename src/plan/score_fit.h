// Constants of step_time(): their priors, their values by layer (device,
// software, site), and the fit that makes values of measured rows: Gauss-Newton
// on logarithms, with priors and weights that far-off rows lose.
#pragma once
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/score_rows.h"

namespace trireme {

// Log-normal: a value around `center`, by a factor of exp(sigma) either way.
struct Prior {
  double center = 1, sigma = 0.3;
};
enum class ConstantLayer { device, software, site };
ConstantLayer layer_of(Fit);

// A layer and whose, from all to one: "software", "software:nemo",
// "software:nemo/26.06". A constant is the product of what each of these says:
// the first its value, the others how they differ from the one before.
std::vector<std::string> scopes_of(const MeasuredRow&, Fit);

struct ScoreConstants {
  std::array<Prior, kFits> priors;
  std::map<std::string, std::map<Fit, Prior>> scope_priors;  // where a scope is known to differ
  std::map<std::string, std::map<Fit, double>> fitted;
  // Half width of an 80 % interval of a publication that the fit has not seen: logarithm of seconds; bytes in
  // spreads (memory_spread).
  double unseen_seconds = 0.2, unseen_bytes = 1.3;
  Prior prior(const std::string& scope, Fit) const;
  double factor(const std::string& scope,
                Fit) const;  // fitted, else the prior's center
  FitValues of(const MeasuredRow&) const;
};
// Errors (request): one line.
ScoreConstants parse_constants(std::string_view json, std::string_view file);
const ScoreConstants& shipped_constants();  // data/score_constants.json
std::string save_constants(const ScoreConstants&);

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
