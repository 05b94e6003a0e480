// Counter-based randomness: every number is a function of (seed, step, name, global element index), so every
// layout, recompute and resume draws the same. Philox4x32-10 (Salmon et al., SC'11).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

// 64-bit key of a named stream of numbers; mixes all three inputs (xxh3 of the name, then splitmix).
uint64_t rng_key(uint64_t seed, uint64_t step, std::string_view name);

// Four independent 32-bit words for counter `index` under `key`.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t index);

// Uniform in [0, 1) with 53 bits, of element `index`.
double uniform(uint64_t key, uint64_t index);
// Standard normal of element `index` (Box-Muller in double; elements 2i and 2i+1 share one counter).
double normal(uint64_t key, uint64_t index);
// Elements 2 * pair and 2 * pair + 1 of it, at the price of one.
std::array<double, 2> normal_pair(uint64_t key, uint64_t pair);
// Uniform integer in [0, n), n >= 1, without modulo bias beyond 2^-64 (multiply-high).
uint64_t below(uint64_t key, uint64_t index, uint64_t n);

// A permutation of [0, n) as a function: position -> element, O(1) memory (4-round-plus Feistel network with
// cycle walking). Used for shuffled data order, so that resume needs one integer.
uint64_t permute(uint64_t key, uint64_t position, uint64_t n);

}  // namespace trireme
