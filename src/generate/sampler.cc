#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {

Sampler::Sampler(const SampleOptions& o) : o_(o) {
  if (!(o.temperature >= 0 && o.temperature <= 1e3))
    bad_request("temperature {} must be from 0 (most likely token) to 1000", o.temperature);
  if (o.top_k < 0) bad_request("top-k {} must be 0 (all) or more", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) bad_request("top-p {} must be above 0 and at most 1", o.top_p);
}

// The k likeliest in descending order, and all that equal the k-th. A heap of the best so far turns nearly
// all others away at one comparison, where selecting from the whole vocabulary would move it about.
void Sampler::keep_top_k(std::span<const float> logits) {
  auto k = std::min(logits.size(), size_t(o_.top_k));
  float turned_away = -std::numeric_limits<float>::infinity();  // the largest
  items_.clear();
  for (size_t i = 0; i < logits.size(); i++) {
    Item item{int32_t(i), logits[i]};
    if (items_.size() == k) {
      if (!likelier(item, items_.front())) {
        turned_away = std::max(turned_away, item.weight);
        continue;
      }
      turned_away = std::max(turned_away, items_.front().weight);
      std::pop_heap(items_.begin(), items_.end(), likelier);
      items_.pop_back();
    }
    items_.push_back(item);
    std::push_heap(items_.begin(), items_.end(), likelier);
  }
  std::sort_heap(items_.begin(), items_.end(), likelier);
  const Item last = items_.back();
  if (turned_away < last.weight) return;
  for (auto i = size_t(last.id) + 1; i < logits.size(); i++)
    if (logits[i] == last.weight) items_.push_back({int32_t(i), last.weight});
}

// Items in the order of ids, or of likelihood; their weights are relative to the largest, which is 1. Keeps
// the fewest whose sum reaches p of the whole, in descending order. They are looked for among those that are
// likely at all, because sorting a vocabulary takes longer than a small model's forward pass.
void Sampler::keep_top_p() {
  double sum = 0;
  for (const Item& i : items_) sum += i.weight;
  for (float least : {1e-3f, 1e-6f, 0.0f}) {
    nucleus_.clear();
    double held = 0;
    for (const Item& i : items_)
      if (i.weight >= least) nucleus_.push_back(i), held += i.weight;
    if (held < o_.top_p * sum && least > 0) continue;
    std::sort(nucleus_.begin(), nucleus_.end(), likelier);
    double reached = 0;
    size_t n = 0;
    while (n < nucleus_.size() && (n == 0 || reached < o_.top_p * sum)) reached += nucleus_[n++].weight;
    nucleus_.resize(n);
    items_.swap(nucleus_);
    return;
  }
}

int32_t Sampler::next(std::span<const float> logits, uint64_t text, uint64_t index) {
  require(!logits.empty(), "no logits to sample from");
  Item top{0, logits[0]};
  for (size_t i = 0; i < logits.size(); i++) {
    if (!std::isfinite(logits[i]))
      run_failed("the logit of token {} is {}: the weights are damaged", i, logits[i]);
    if (logits[i] > top.weight) top = {int32_t(i), logits[i]};
  }
  if (o_.temperature < kGreedy) return top.id;
  if (o_.top_k > 0) {
    keep_top_k(logits);
  } else {
    items_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); i++) items_[i] = {int32_t(i), logits[i]};
  }
  const auto scale = float(1 / o_.temperature);
  for (Item& i : items_) i.weight = std::exp((i.weight - top.weight) * scale);
  if (o_.top_p < 1) keep_top_p();
  double sum = 0;
  for (const Item& i : items_) sum += i.weight;
  double u = uniform(rng_key(o_.seed, text, "sample"), index) * sum;
  for (const Item& i : items_)
    if ((u -= i.weight) < 0) return i.id;
  return top.id;  // rounding left a crumb of u
}

}  // namespace trireme
