// Sizes, tokens and samples that a budget is best spent on.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scaling/law.h"
#include "scaling/samples.h"

namespace trireme {

// FLOPs of training, and FLOPs per token served (all of its samples).
struct Budgets {
  double train = 0, inference = 0;
};
struct Choice {
  double parameters = 0, tokens = 0, samples = 1;
  double value = 0;  // the task's loss (approach 1), or pass@k (approach 2)
};

// Approach 1. D = C_train / (6 N) and k = C_inf / (2 N) leave one unknown. The slope of the loss by log N,
//   -alpha A N^-alpha + beta B (6 N / C_train)^beta + gamma G (2 N / C_inf)^gamma,
// grows with N, so it has one zero: found by bisection. k >= 1 limits N to C_inf / 2.
Choice best_by_loss(const TaskLaw&, const Budgets&);
// The N to which approach 1 saturates as training grows at a fixed inference budget.
double saturated_size(const TaskLaw&, double inference);
// Approach 2. pass@k over log N may have several maxima: a scan, then golden section about the best.
Choice best_by_pass(const PassLaw&, const Budgets&);

// The best over a grid of N, for tests and doubts; `steps` points per factor of ten.
Choice brute_force(const std::function<double(double n, double d, double k)>& cost, const Budgets&,
                   int steps);

// A total of FLOPs is divided: a share s is for inference over all tokens that are ever served, the rest for
// training. One point per share.
struct SharePoint {
  double share = 0;
  Budgets budgets;
  Choice choice;
};
std::vector<SharePoint> share_frontier(const std::function<Choice(const Budgets&)>&, double total,
                                       double served, int points);

}  // namespace trireme
