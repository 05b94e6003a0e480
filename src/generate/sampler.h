// The next token from logits: temperature, then top-k, then top-p, then a draw. generate/decode_rule.h states
// the rule; here it is applied without sorting the vocabulary.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

inline constexpr double kGreedy = 1e-5;  // a temperature below this one: the most likely token, no draw
struct SampleOptions {
  double temperature = 0.8;
  int64_t top_k = 0;   // keep the logits that are at least the k-th largest; 0 = all
  double top_p = 1.0;  // keep the fewest tokens whose probabilities reach p
  uint64_t seed = 1;
};

// Draws are functions of (seed, text, index), so it makes no difference which texts are sampled together.
// Reuses its buffers from call to call.
class Sampler {
 public:
  explicit Sampler(const SampleOptions&);  // bad_request on values out of range
  // logits [vocab]; text: the number of the prompt; index counts the draws of that text.
  int32_t next(std::span<const float> logits, uint64_t text, uint64_t index);

 private:
  struct Item {
    int32_t id;
    float weight;  // logit, then probability over that of the likeliest
  };
  // The likeliest first: ties go to the smaller id, so the order of equal logits is no chance.
  static bool likelier(const Item& a, const Item& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  }
  void keep_top_k(std::span<const float> logits);
  void keep_top_p();

  SampleOptions o_;
  std::vector<Item> items_, nucleus_;
};

}  // namespace trireme
