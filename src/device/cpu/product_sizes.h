// Sizes of a matrix product, whatever is transposed.
#pragma once
#include "device/ops.h"

namespace trireme::cpu {

inline int64_t rows_of(const MatmulArgs& p) {
  return p.c.shape[0];
}
inline int64_t cols_of(const MatmulArgs& p) {
  return p.c.shape[1];
}
inline int64_t depth_of(const MatmulArgs& p) {
  return p.a.shape[p.trans_a ? 0 : 1];
}

}  // namespace trireme::cpu
