// Prefill and decode of a trained model on some devices: bounds by the roofline, for test-time budgets.
#pragma once
#include <optional>
#include <string>

#include "estimate/roofline.h"

namespace trireme {

struct Serving {
  int64_t tp = 1;            // devices of one copy
  int64_t batch = 1;         // texts decoded together
  int64_t prompt = 0;        // tokens
  double first_token_s = 0;  // prefill of one prompt
  double token_s = 0;        // one pass of decoding, one token of each text
  double per_device() const { return double(batch) / token_s / double(tp); }  // tokens/s
  double prefill_per_device() const { return double(prompt) / first_token_s / double(tp); }
};
// The model of `c` on c.figures, with a cache of prompt + answer / 2 tokens on average. It is divided by the
// fewest devices, at least c.tp, that have the weights in 16 bits and one text's cache in 0.9 of their
// memory. Nothing: a node does not have them.
std::optional<Serving> serving_of(RooflineCase, double prompt, double answer);

// "first token of 8192 tokens in 704 ms, 89.2 tokens/s per GPU from 4 texts at once (bounds; tp 2)".
std::string serving_text(const Serving&);

}  // namespace trireme
