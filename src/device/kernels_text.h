// The kernels that launches took, as a line for the user.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/kernels.h"

namespace trireme {

// "attention by mma.sync 12; fp8_matmul by 8-bit one 72, bf16 2": ops by name, kernels in the order of their
// first launch. "": no op has several kernels.
inline std::string kernels_text(std::span<const KernelCount> taken) {
  std::vector<KernelCount> all(taken.begin(), taken.end());
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.op < b.op; });
  std::string text;
  std::string_view op;
  for (const KernelCount& c : all) {
    text += c.op == op ? fmt::format(", {} {}", c.kernel, c.launches)
                       : fmt::format("{}{} by {} {}", op.empty() ? "" : "; ", c.op, c.kernel, c.launches);
    op = c.op;
  }
  return text;
}

}  // namespace trireme
