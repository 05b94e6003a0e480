// Ids that come from data files are checked before a kernel follows them.
#pragma once
#include <string_view>

#include "base/error.h"
#include "tensor/tensor.h"

namespace trireme::cpu {

// Every element of ids (i32, contiguous) must lie in [low, high), else the run stops with the first bad one
// and its place. `what` names op and operand, `range` what is allowed: "<what> 70000 at place 12 is out of
// range: <range> [0, 4096)". One sequential pass of 4 B an id, and nothing thrown from a parallel loop.
inline void require_indices(const Tensor& ids, int64_t low, int64_t high, std::string_view what,
                            std::string_view range) {
  const int64_t n = ids.numel();
  if (n == 0) return;
  const int32_t* id = ids.as<int32_t>();
  bool ok = true;
  for (int64_t i = 0; i < n; i++) ok &= id[i] >= low && id[i] < high;
  if (ok) [[likely]]
    return;
  for (int64_t i = 0; i < n; i++)
    if (id[i] < low || id[i] >= high)
      run_failed("{} {} at place {} is out of range: {} [{}, {})", what, id[i], i, range, low, high);
}

}  // namespace trireme::cpu
