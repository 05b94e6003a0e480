// Finds the op whose output first holds a value that is not finite.
#pragma once
#include <string>

#include "device/device.h"

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

}  // namespace trireme
