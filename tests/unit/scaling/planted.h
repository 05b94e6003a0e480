// Tables of runs made from known laws.
#pragma once
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "scaling/law.h"
#include "scaling/samples.h"

namespace trireme::test {

// Besiroglu's constants, with samples that are made up.
inline constexpr TaskLaw kTask{1.8172, 482.01, 2085.43, 0.3478, 0.3658, 1.0, 0.3};
inline constexpr PassLaw kPass{{}, {2.9, 6.0, 0.6, 2.0, -1.0}};

// Sizes around the best of each budget, from 1/8 to 8 times it; noise: of log loss.
inline std::vector<LossPoint> planted_runs(const ChinchillaLaw& law, double noise, uint64_t seed,
                                           int budgets = 6, int sizes = 9) {
  std::vector<LossPoint> points;
  const uint64_t key = rng_key(seed, 0, "planted");
  for (int b = 0; b < budgets; b++) {
    const double flops = 1e17 * std::pow(10.0, 0.8 * b);
    for (int i = 0; i < sizes; i++) {
      LossPoint p;
      p.flops = flops;
      p.parameters = chinchilla_optimum(law, flops).parameters * std::exp2(6.0 * i / (sizes - 1) - 3);
      p.tokens = flops / (6 * p.parameters);
      p.loss = law.loss(p.parameters, p.tokens) * std::exp(noise * normal(key, points.size()));
      p.run = int(points.size());
      points.push_back(p);
    }
  }
  return points;
}

}  // namespace trireme::test
