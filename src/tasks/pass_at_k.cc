#include "tasks/pass_at_k.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  require(0 <= c && c <= n && 1 <= k && k <= n, "pass@k of impossible counts");
  if (n - c < k) return 1;
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; i++) none *= 1 - double(k) / double(i);
  return 1 - none;
}

MeanOfTasks mean_of_tasks(std::span<const double> values) {
  constexpr int64_t kResamples = 2000;
  require(!values.empty(), "the mean of no task");
  const auto n = values.size();
  MeanOfTasks m;
  for (double v : values) m.mean += v / double(n);
  double squares = 0;
  for (double v : values) squares += (v - m.mean) * (v - m.mean);
  m.standard_error = n > 1 ? std::sqrt(squares / double(n - 1) / double(n)) : std::nan("");
  std::vector<double> means(kResamples);
  for (int64_t r = 0; r < kResamples; r++) {
    const uint64_t key = rng_key(1, uint64_t(r), "bootstrap over tasks");
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += values[below(key, i, n)];
    means[size_t(r)] = sum / double(n);
  }
  std::sort(means.begin(), means.end());
  m.low = means[size_t(0.025 * kResamples)];
  m.high = means[size_t(0.975 * kResamples) - 1];
  return m;
}

}  // namespace trireme
