#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {

Sampler::Sampler(const SampleOptions& o) : o_(o), key_(rng_key(o.seed, 0, "sample")) {
  if (!(o.temperature >= 0 && o.temperature <= 1e3))
    bad_request("temperature {} must be from 0 (most likely token) to 1000", o.temperature);
  if (o.top_k < 0) bad_request("top-k {} must be 0 (all) or more", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) bad_request("top-p {} must be above 0 and at most 1", o.top_p);
}

int32_t Sampler::next(std::span<const float> logits, uint64_t index) {
  require(!logits.empty(), "no logits to sample from");
  // Ties go to the smaller id, so the order of equal logits is no chance.
  auto larger = [](const Item& a, const Item& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  double t = std::max(o_.temperature, 1e-5);
  items_.clear();
  for (size_t i = 0; i < logits.size(); i++) {
    if (!std::isfinite(logits[i]))
      run_failed("the logit of token {} is {}: the weights are damaged", i, logits[i]);
    items_.push_back({int32_t(i), double(logits[i]) / t});
  }
  if (o_.temperature < 1e-5) return std::min_element(items_.begin(), items_.end(), larger)->id;
  size_t keep = o_.top_k > 0 ? std::min(items_.size(), size_t(o_.top_k)) : items_.size();
  if (keep < items_.size())
    std::nth_element(items_.begin(), items_.begin() + int64_t(keep), items_.end(), larger);
  items_.resize(keep);
  std::sort(items_.begin(), items_.end(), larger);
  double top = items_[0].weight, sum = 0;
  for (Item& it : items_) sum += it.weight = std::exp(it.weight - top);
  double reached = 0, kept = 0;
  size_t n = 0;
  while (n < items_.size() && (n == 0 || reached < o_.top_p)) {
    kept += items_[n].weight;
    reached = kept / sum;
    n++;
  }
  double u = uniform(key_, index) * kept;
  for (size_t i = 0; i < n; i++)
    if ((u -= items_[i].weight) < 0) return items_[i].id;
  return items_[n - 1].id;
}

}  // namespace trireme
