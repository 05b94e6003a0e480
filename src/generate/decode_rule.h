// Decoding as a transform of a distribution: temperature, then top-k, then top-p (PAPERS 1.1, the order and
// the rules of vLLM 0.11).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

// temper(p, T) = p^(1/T) / sum of p^(1/T). Requires T > 0.
std::vector<double> temper(std::span<const double> p, double temperature);

// Keeps every value that is at least the k-th largest, ties included; 0 keeps all. Renormalised.
std::vector<double> keep_top_k(std::span<const double> p, int64_t k);

// Keeps a token if the tokens before it, in descending order, sum to less than `top_p`, and always the first.
// In ascending order that masks the tokens whose cumulative sum is at most 1 - top_p. The smaller index
// of two equal tokens comes first. Renormalised.
std::vector<double> keep_top_p(std::span<const double> p, double top_p);

// All three, in this order. `p` sums to 1; so does the result. Reference of Sampler, in double.
std::vector<double> decoded(std::span<const double> p, double temperature, int64_t top_k, double top_p);

}  // namespace trireme
