// pass@k: the chance that one of k samples of a task passes (Chen et al., 2021, equation 1).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

// The unbiased estimate 1 - C(n - c, k) / C(n, k) from n samples of which c passed, as the product
// 1 - prod_{i = n - c + 1}^{n} (1 - k / i), in which nothing overflows. Requires 0 <= c <= n and 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

struct MeanOfTasks {
  double mean = 0;
  double standard_error = 0;  // over tasks: sample deviation / sqrt(tasks); NaN for one task
  double low = 0, high = 0;   // 95 % bootstrap interval over tasks (percentiles), of a fixed seed
};
MeanOfTasks mean_of_tasks(std::span<const double> values);

}  // namespace trireme
