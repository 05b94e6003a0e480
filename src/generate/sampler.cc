#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {

Sampler::Sampler(const SampleOptions& o) : o_(o) {
  if (!(o.temperature >= 0 && o.temperature <= 1e3))
    bad_request("temperature {} must be from 0 (most likely token) to 1000", o.temperature);
  if (o.top_k < 0) bad_request("top-k {} must be 0 (all) or more", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) bad_request("top-p {} must be above 0 and at most 1", o.top_p);
}

void Sampler::keep_top_k() {
  if (o_.top_k == 0 || size_t(o_.top_k) >= items_.size()) return;
  std::nth_element(items_.begin(), items_.begin() + o_.top_k, items_.end(), likelier);
  items_.resize(size_t(o_.top_k));
}

// The fewest items whose sum reaches p of the whole. Sorting a vocabulary takes longer than a small model's
// forward pass, so the likeliest are sorted in parts, each four times the last, until they are enough.
void Sampler::keep_top_p() {
  double sum = 0, reached = 0;
  for (const Item& i : items_) sum += i.weight;
  size_t n = 0;
  for (size_t sorted = 0, part = 256; n < items_.size(); part *= 4) {
    if (n == sorted) {
      size_t end = std::min(items_.size(), sorted + part);
      if (end < items_.size())
        std::nth_element(items_.begin() + int64_t(sorted), items_.begin() + int64_t(end), items_.end(),
                         likelier);
      std::sort(items_.begin() + int64_t(sorted), items_.begin() + int64_t(end), likelier);
      sorted = end;
    }
    while (n < sorted) {
      reached += items_[n++].weight;
      if (reached >= o_.top_p * sum) return items_.resize(n);
    }
  }
}

int32_t Sampler::next(std::span<const float> logits, uint64_t text, uint64_t index) {
  require(!logits.empty(), "no logits to sample from");
  items_.clear();
  for (size_t i = 0; i < logits.size(); i++) {
    if (!std::isfinite(logits[i]))
      run_failed("the logit of token {} is {}: the weights are damaged", i, logits[i]);
    items_.push_back({int32_t(i), logits[i]});
  }
  const Item top = *std::min_element(items_.begin(), items_.end(), likelier);
  if (o_.temperature < 1e-5) return top.id;
  keep_top_k();
  double sum = 0;
  for (Item& i : items_)
    i.weight = float(std::exp(float((double(i.weight) - double(top.weight)) / o_.temperature)));
  if (o_.top_p < 1) keep_top_p();
  for (const Item& i : items_) sum += i.weight;
  double u = uniform(rng_key(o_.seed, text, "sample"), index) * sum;
  for (const Item& i : items_)
    if ((u -= i.weight) < 0) return i.id;
  return top.id;  // rounding left a crumb of u
}

}  // namespace trireme
