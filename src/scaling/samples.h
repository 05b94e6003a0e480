// T2: what training and test-time samples are best spent on together (Roberts et al. 2026, arXiv 2604.01411).
//
// Approach 1 fits the task's loss: E_i[-log(1 - (1 - p_i)^k)] = E + A/N^alpha + B/D^beta + G/k^gamma.
// Approach 2 fits the pass rate: p ~ Beta(a, b), and pass@k = 1 - B(a, b + k) / B(a, b), with
//   a = mu nu, b = (1 - mu) nu, mu = t2 / (1 + exp(t1 (L - t0))), nu = exp(t3 + t4 L),
// L the loss of the model by Chinchilla's law. Budgets: 6 N D <= C_train, and 2 N k <= C_inf FLOPs per token
// served.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "scaling/law.h"

namespace trireme {

struct TaskLaw {
  double E = 0, A = 0, B = 0, alpha = 0, beta = 0, G = 0, gamma = 0;
  double loss(double parameters, double tokens, double samples) const;
};

// 1 - B(a, b + k) / B(a, b): the chance that one of k attempts succeeds, if p ~ Beta(a, b).
double beta_pass(double a, double b, double samples);

struct PassLaw {
  ChinchillaLaw loss;
  std::array<double, 5> theta{};  // t0 .. t4
  double pass(double parameters, double tokens, double samples) const;
};

// Fits the points with task_loss. Sum of squares over models and k, as in the paper.
// Throws Error (request) if there are fewer than eight points, or three numbers of samples.
TaskLaw fit_task(const std::vector<LossPoint>&);
// Fits the points with pass; the loss is `loss`, or of rows with k = 1 task_loss.
PassLaw fit_pass(const std::vector<LossPoint>&);

// Mean of |forecast / measured - 1| over the points with such a measurement; < 0: there is none.
double relative_error(const TaskLaw&, const std::vector<LossPoint>&);
double relative_error(const PassLaw&, const std::vector<LossPoint>&);

}  // namespace trireme
