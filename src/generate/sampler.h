// The next token from logits: temperature, then top-k, then top-p, then a draw that is a function of the
// seed.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

struct SampleOptions {
  double temperature = 0.8;  // below 1e-5: the most likely token
  int64_t top_k = 0;         // keep the k largest logits; 0 = all
  double top_p = 1.0;        // keep the fewest tokens whose probabilities reach p
  uint64_t seed = 1;
};

// Reuses its buffers from call to call.
class Sampler {
 public:
  explicit Sampler(const SampleOptions&);  // bad_request on values out of range
  // logits [vocab]; `index` counts the draws of a text, so that each has a number of its own.
  int32_t next(std::span<const float> logits, uint64_t index);

 private:
  struct Item {
    int32_t id;
    double weight;  // logit / temperature, then probability
  };
  SampleOptions o_;
  uint64_t key_;
  std::vector<Item> items_;
};

}  // namespace trireme
