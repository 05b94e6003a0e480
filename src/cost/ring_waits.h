// The ring of context parallelism: what compute waits for, by the order of events of model/context_parallel.
#pragma once
#include <cstdint>

namespace trireme {

// Return seconds. Each of n ranks has an n-th of attention's `core` seconds a round: what compute waits for.
// hop: keys and values to the next rank; forward the next block travels while one is computed. Backward
// gradients travel after them on the same stream, in f32 (sum_hop), and take one hop more, which nothing
// hides.
double ring_forward_waits(int64_t n, double core, double hop);
double ring_backward_waits(int64_t n, double core, double hop, double sum_hop);

}  // namespace trireme
