// Minimisation of smooth functions of a few variables: L-BFGS (Liu, Nocedal 1989) with a line search that
// satisfies the strong Wolfe conditions (Nocedal, Wright 2006, algorithms 3.5 and 3.6).
#pragma once
#include <functional>
#include <span>
#include <vector>

namespace trireme {

// Returns f(x) and writes its gradient. Values that are not finite are rejected by the line search.
using Objective = std::function<double(std::span<const double> x, std::span<double> gradient)>;

struct Minimum {
  std::vector<double> x;
  double value = 0;
  int iterations = 0;
  // The last ten iterations lowered f by less than 1e-13 of it, or the gradient vanished.
  bool converged = false;
};

Minimum minimise(const Objective&, std::vector<double> start, int most_iterations = 1000);

// A function without a gradient; the gradient is by central differences.
Objective with_differences(std::function<double(std::span<const double>)>);

// Solves the normal equations of min sum_i w_i (y_i - sum_j x_ij c_j)^2; x is row-major, [rows, columns].
// Returns an empty vector if the columns are dependent.
std::vector<double> least_squares(std::span<const double> x, std::span<const double> y,
                                  std::span<const double> weights, size_t columns);

}  // namespace trireme
