// Pictures of fits and optima: SVG files, and a sketch for a terminal.
#pragma once
#include <string>
#include <vector>

#include "scaling/fit_report.h"
#include "scaling/optimum.h"

namespace trireme {

struct Picture {
  std::string name;  // name of the file
  std::string svg;
};

// Draws the pictures that the table has points for:
// - isoflop.svg: budgets with parabolas;
// - envelope.svg: training curves, and the best sizes;
// - forecast.svg: loss against compute, with the interval of a run, up to the largest forecast.
std::vector<Picture> fit_pictures(const FitReport&, const std::vector<LossPoint>& points,
                                  const std::vector<ForecastAt>& forecasts);
// optimum.svg: parameters, tokens per parameter and samples against the inference budget.
Picture optimum_picture(const std::vector<std::pair<double, Choice>>& by_inference);

// Loss against compute in text: o runs, * the law's best. "" without a law.
std::string fit_sketch(const FitReport&);

}  // namespace trireme
