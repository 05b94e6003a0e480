// Constants of step_time(): their priors, and their values by layer: device, software, site. `trireme score
// --fit` writes them (published/score_fit.h).
#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cost/step_time.h"

namespace trireme {

// Log-normal: a value around `center`, by a factor of exp(sigma) either way.
struct Prior {
  double center = 1, sigma = 0.3;
};
enum class ConstantLayer { device, software, site };
ConstantLayer layer_of(Fit);

// Whose a run or a measured row is: names of data/score_constants.json; "" = what all have in common.
struct Whose {
  std::string device, software, site;
};
// A layer and whose, from all to one: "software", "software:nemo",
// "software:nemo/26.06". A constant is the product of what each of these says:
// the first its value, the others how they differ from the one before.
std::vector<std::string> scopes_of(const Whose&, Fit);

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
  FitValues of(const Whose&) const;
};
// Errors (request): one line.
ScoreConstants parse_constants(std::string_view json, std::string_view file);
const ScoreConstants& shipped_constants();  // data/score_constants.json
std::string save_constants(const ScoreConstants&);

// Measured seconds over the forecast of 80 % of rows: percentiles 10 and 90.
struct MeasuredRatios {
  double low = 0, high = 0;
};

}  // namespace trireme
