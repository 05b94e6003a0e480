// Every op of the harness, in the order of ops.h.
#include "cases.h"

namespace trireme::harness {

std::span<const CaseEntry> all_cases() {
  static constexpr CaseEntry kCases[] = {
      {"matmul", make_matmul},
  };
  return kCases;
}

}  // namespace trireme::harness
