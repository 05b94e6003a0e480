// What the CPU backend's files share: one launch function per op, each defined in the file of its family.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/ops.h"

namespace trireme::cpu {

class MatmulCache;  // matmul.h

struct Context {
  int threads = 1;  // of this rank
  MatmulCache* matmuls =
      nullptr;  // plans of matrix products that the device keeps; without it each call plans anew
};

// Runs f(begin, end, thread) over [0, n) cut into at most `threads` contiguous pieces, each but the last a
// multiple of `grain`. Inline when one piece is enough. f must not throw: collect what was wrong and throw
// after.
template <class F>
void parallel_for(const Context& ctx, int64_t n, int64_t grain, F&& f) {
  int64_t blocks = (n + grain - 1) / grain;
  int pieces = int(std::min<int64_t>(ctx.threads, blocks));
  if (pieces <= 1) {
    if (n > 0) f(int64_t(0), n, 0);
    return;
  }
#pragma omp parallel for num_threads(pieces) schedule(static, 1)
  for (int t = 0; t < pieces; t++) {
    int64_t b = blocks * t / pieces * grain, e = std::min(n, blocks * (t + 1) / pieces * grain);
    f(b, e, t);
  }
}

// launch: arguments were checked. scratch: as many bytes as scratch_bytes asked for (null if none).
// scratch_bytes: a function of shapes, types and threads alone; no data is touched, so meta calls it too.
#define TRIREME_CPU_OP(Args)                                       \
  void launch(const Args&, const Tensor& scratch, const Context&); \
  int64_t scratch_bytes(const Args&, const Context&);
TRIREME_OPS(TRIREME_CPU_OP)
#undef TRIREME_CPU_OP

}  // namespace trireme::cpu
