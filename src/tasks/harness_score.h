// Metrics and filters of lm-evaluation-harness.
#pragma once
#include "tasks/harness_prompts.h"
#include "tasks/pass_at_k.h"

namespace trireme {

struct HarnessScore {
  std::string metric, filter;  // "acc", "none"
  double value = 0;
  double standard_error = 0;  // NaN with one document, or if the metric has none

  // "acc", or with a filter "exact_match,strict-match".
  std::string name() const { return filter == "none" ? metric : metric + "," + filter; }
};

// multiple_choice. log_likelihoods: by request, then by choice, in nats.
std::vector<HarnessScore> score_choices(const HarnessTask&, const std::vector<HarnessRequest>&,
                                        const std::vector<std::vector<double>>& log_likelihoods);
// generate_until. texts: one of each request.
std::vector<HarnessScore> score_texts(const HarnessTask&, const std::vector<HarnessRequest>&,
                                      const std::vector<std::string>& texts);
// loglikelihood_rolling. log_likelihoods: one per request, its whole text's.
std::vector<HarnessScore> score_rolling(const HarnessTask&, const std::vector<HarnessRequest>&,
                                        const std::vector<double>& log_likelihoods);

// bad_request names a function that is not supported, an argument that it does not have or that has the wrong
// type, and a regular expression that is not valid.
void check_filter(const HarnessFilter&);
// An answer after all functions of a filter that check_filter() passes.
std::string filtered_answer(const HarnessFilter&, const std::string& answer);

}  // namespace trireme
