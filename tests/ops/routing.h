// Choices of experts for the cases of mixture-of-experts ops, and where their rows lie, by plain loops.
#pragma once
#include <vector>

#include "case.h"

namespace trireme::harness {

struct Routing {
  int64_t n, e, k;
  std::vector<int64_t> ids, place, source, offsets, load;
};
// Keys: n tokens, e experts, k choices a token, skew (1: all experts alike; more: the low ones are chosen
// more often), capacity and unit (0: nothing is dropped).
Routing routing_of(const Problem&);

inline Builder::Fill numbers(std::vector<int64_t> values) {
  return [values = std::move(values)](int64_t i) { return double(values[size_t(i)]); };
}

}  // namespace trireme::harness
