// All that a table of runs says: each fit that it has points for, as text, as JSON, and as a file that
// `scale optimum` and `scale plan` read.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "scaling/law.h"
#include "scaling/rates.h"
#include "scaling/samples.h"

namespace trireme {

struct FittedRange {
  Interval parameters, tokens, flops;
};

struct FitReport {
  std::string source;
  int rows = 0, runs = 0;
  std::vector<LossPoint> finals;  // the runs' last points, each size and tokens at its best rate and batch
  FittedRange range;
  std::optional<ParametricFit> parametric;
  std::string no_parametric;
  FrontierFit envelope, isoflop;
  std::vector<IsoFlop> budgets;
  RateLaw lr, batch;
  CriticalBatch critical;
  std::optional<TaskLaw> task;
  std::optional<PassLaw> pass;
  double task_error = -1, pass_error = -1;  // mean relative error over the fitted points
};

// The last point of each run; of runs of one N and D with several rates or batches those of the lowest loss.
std::vector<LossPoint> final_points(const std::vector<LossPoint>&);

// Throws Error (request) if the points have neither losses for a parametric fit nor samples for T2's.
FitReport fit_all(const std::vector<LossPoint>&, const std::string& source, const BootstrapOptions&);

// A run whose loss is forecast. parameters = 0: the best size for its FLOPs.
struct ForecastAt {
  double flops = 0, parameters = 0, tokens = 0;
};
// Its size and tokens by the law.
Allocation allocation_of(const ForecastAt&, const ChinchillaLaw&);

std::string fit_text(const FitReport&, const std::vector<ForecastAt>& forecasts);
std::string fit_json(const FitReport&, const std::vector<ForecastAt>& forecasts);

// Contents of a law file. A law without resamples has no intervals.
struct LawFile {
  ParametricFit parametric;
  std::optional<FittedRange> range;
  std::optional<TaskLaw> task;
  std::optional<PassLaw> pass;
  std::optional<RateLaw> lr, batch;
};
std::string law_file_text(const FitReport&);
// Throws Error (request): one line with file, key, value and what is allowed.
LawFile read_law_file(std::string_view text, const std::string& file);

}  // namespace trireme
