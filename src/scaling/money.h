// Optima in dollars: training and serving priced on a cluster, instead of 6 N D and 2 N k.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "scaling/optimum.h"

namespace trireme {

// Device-seconds of a size on a cluster.
struct PricedSize {
  double parameters = 0;  // that a token visits
  double train_s = 0;     // per token, in the best layout
  double prefill_s = 0;   // per token of a prompt
  double decode_s = 0;    // per token of an answer
  std::string layout;     // best layout of training
  int64_t serving = 0;    // devices that serve one copy
};

// Use of the model over its life. Each problem has one prompt and k answers.
struct Life {
  double problems = 0;
  double prompt = 0, answer = 0;  // tokens
};

struct Market {
  std::vector<PricedSize> sizes;  // ascending, at least two
  double dollars_per_hour = 0;    // price of a device
  Life life;

  // Between sizes the logarithms are linear.
  double train_dollars(double parameters, double tokens) const;
  double serve_dollars(double parameters, double samples) const;

 private:
  double seconds(double parameters, double PricedSize::*) const;
};

struct Bargain {
  Choice choice;
  double train_dollars = 0, serve_dollars = 0;
  double total() const { return train_dollars + serve_dollars; }
};

// Least `cost` (a loss, or minus a pass rate) of N, D and k that the dollars pay for; N within the sizes.
// Throws Error (request) if serving one sample of the smallest size costs more.
Bargain best_for_dollars(const std::function<double(double n, double d, double k)>& cost, const Market&,
                         double dollars);

// Least dollars per solved problem, with any total: (train + serve) / (problems pass@k).
Bargain cheapest_solution(const std::function<double(double n, double d, double k)>& pass, const Market&);

}  // namespace trireme
