#include "model/stages.h"

#include <algorithm>

#include "cost/flops.h"

namespace trireme {
namespace {

// Of each block, the head added to the last one.
std::vector<double> costs_of(const ModelSpec& m, int64_t seq) {
  const double head = 2.0 * double(m.vocab) * double(m.hidden);
  const double dense = block_flops_per_token(m, seq, false);
  const double experts = m.moe() ? block_flops_per_token(m, seq, true) : dense;
  std::vector<double> costs;
  for (int64_t i = 0; i < m.layers; i++) costs.push_back(m.moe() && m.expert_block(i) ? experts : dense);
  costs.back() += head;
  return costs;
}

// Blocks of each stage when none may cost more than `most`: as many as fit, one at least, leaving one for
// each stage to come. Empty: the last stage would cost more.
std::vector<int64_t> fill(const std::vector<double>& costs, int stages, double most) {
  std::vector<int64_t> counts;
  size_t at = 0;
  for (int s = 0; s < stages; s++) {
    const size_t left = costs.size() - size_t(stages - 1 - s);  // the end of what this stage may take
    double sum = costs[at];
    size_t end = at + 1;
    while (end < left && sum + costs[end] <= most) sum += costs[end++];
    if (sum > most) return {};
    counts.push_back(int64_t(end - at)), at = end;
  }
  return at == costs.size() ? counts : std::vector<int64_t>();
}

}  // namespace

std::vector<StageRange> split_layers(const ModelSpec& m, int64_t seq, int stages) {
  require(stages >= 1 && stages <= m.layers, "each stage has a block");
  const std::vector<double> costs = costs_of(m, seq);
  // The least of the sums of neighbours that is enough.
  std::vector<double> sums;
  for (size_t i = 0; i < costs.size(); i++) {
    double sum = 0;
    for (size_t j = i; j < costs.size(); j++) sums.push_back(sum += costs[j]);
  }
  std::sort(sums.begin(), sums.end());
  const auto enough = std::partition_point(
      sums.begin(), sums.end(), [&](double most) { return fill(costs, stages, most * (1 + 1e-12)).empty(); });
  std::vector<StageRange> out;
  int64_t first = 0;
  for (int64_t n : fill(costs, stages, *enough * (1 + 1e-12))) {
    out.push_back(
        {.first = first, .last = first + n, .embedding = first == 0, .head = first + n == m.layers});
    first += n;
  }
  return out;
}

}  // namespace trireme
