#include "runtime/nonfinite.h"

#include <cmath>
#include <vector>

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

// Names the first weight with a value that is not finite, of those that this rank stores.
void require_finite_weights(std::string_view what, const StageMemory& memory) {
  std::vector<float> host;
  for (const Param* p : memory.params().held()) {
    const Range own = memory.owned(*p);
    host.resize(size_t(own.size()));
    if (own.size() > 0) memory.read_param(*p, "", host);
    int64_t bad = 0, first = -1;
    for (int64_t i = 0; i < own.size(); i++)
      if (!std::isfinite(host[size_t(i)])) {
        if (bad == 0) first = i;
        bad++;
      }
    if (bad > 0)
      run_failed(
          "{}: {} of {} values of the weight {} are not finite, the first of them {}; use another checkpoint "
          "or model",
          what, bad, own.size(), p->decl.name, host[size_t(first)]);
  }
}

// The weights first: an op's output only shows what a weight of it has caused. Then the forward pass once
// more, with every op's outputs checked.
void find_nonfinite_forward(std::string_view what, const StageMemory& memory, const StagePasses& passes,
                            const std::function<void()>& forward) {
  require_finite_weights(what, memory);
  Device& device = passes.device();
  NonfiniteFinder finder(device, memory.nonfinite_count(), {.what = std::string(what), .hint = ""},
                         passes.watch().layer);
  OpObserver* before = device.kernels().observe(&finder);
  forward();
  device.kernels().observe(before);
  if (CommSet* comms = passes.comms())
    agree_max(comms->control(), 0);  // a rank that found the cause reports first
  run_failed("{}: the result is not finite, yet no weight and no op's output shows it when run again", what);
}

}  // namespace trireme
