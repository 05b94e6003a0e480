// Counts the launches that each kernel took.
#pragma once
#include <vector>

#include "device/kernels.h"

namespace trireme::cuda {

class KernelTally {
 public:
  void add(std::string_view op, std::string_view kernel) {
    if (kernel.empty()) return;
    for (KernelCount& c : all_)
      if (c.op == op && c.kernel == kernel) return void(c.launches++);
    all_.push_back({op, kernel, 1});
  }
  std::span<const KernelCount> all() const { return all_; }

 private:
  std::vector<KernelCount> all_;  // a few
};

}  // namespace trireme::cuda
