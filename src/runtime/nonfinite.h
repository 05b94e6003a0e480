// Finds the op whose output first holds a value that is not finite.
#pragma once
#include <functional>
#include <string>

#include "runtime/stage_passes.h"

namespace trireme {

class NonfiniteFinder : public OpObserver {
 public:
  // Beginning and end of the message: "step 3", "evaluation".
  struct Text {
    std::string what, hint;
  };
  // `layer` is read at each op: the runner keeps it at the layer that runs. count: i64 [1] on the device.
  NonfiniteFinder(Device&, const Tensor& count, Text, const std::string_view& layer);
  void after(std::string_view op, const Cost&, const Outputs&) override;

 private:
  Device& device_;
  Tensor count_;
  Text text_;
  const std::string_view& layer_;
};

// Throws Error naming `what` and the first weight of this rank with a value that is not finite.
void require_finite_weights(std::string_view what, const StageMemory&);
// After a forward pass whose result is not finite, on all ranks: repeats it. Throws Error naming the weight,
// or the layer and op whose output shows it first.
[[noreturn]] void find_nonfinite_forward(std::string_view what, const StageMemory&, const StagePasses&,
                                         const std::function<void()>& forward);

}  // namespace trireme
