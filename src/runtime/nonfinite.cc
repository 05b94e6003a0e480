#include "runtime/nonfinite.h"

namespace trireme {

NonfiniteFinder::NonfiniteFinder(Device& device, const Tensor& count, Text text,
                                 const std::string_view& layer)
    : device_(device), count_(count), text_(std::move(text)), layer_(layer) {}

void NonfiniteFinder::after(std::string_view op, const Cost&, const Outputs& outputs) {
  Kernels& k = device_.kernels();
  OpObserver* self = k.observe(nullptr);
  for (int i = 0; i < outputs.n; i++) {
    const Tensor& t = outputs.t[i];
    bool is_float =
        t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16 || t.dtype == DType::f64;
    if (!t || !is_float) continue;
    int64_t bad = 0;
    device_.upload(count_, &bad);
    k.run(CountNonfiniteArgs{.x = t, .count = count_});
    device_.download(&bad, count_);
    if (bad > 0)
      run_failed("{}: {} of {} values are not finite, first in the output of {} in layer {}{}", text_.what,
                 bad, t.numel(), op, layer_, text_.hint);
  }
  k.observe(self);
}

}  // namespace trireme
