// Kernels of the meta device: operations are checked and counted only, and take the scratch of the device
// that is modelled.
#pragma once
#include "device/device.h"

namespace trireme {

// Model: scratch(args) of each op in bytes, gelu_in_products(type), orthogonalises(rows, cols), as the
// modelled device answers them.
template <class Model>
class MetaKernels final : public Kernels {
 public:
  explicit MetaKernels(const DeviceOptions& options) : model_(options) {}
  bool gelu_in_products(DType t) const override { return model_.gelu_in_products(t); }
  bool orthogonalises(int64_t rows, int64_t cols) const override { return model_.orthogonalises(rows, cols); }

 private:
#define TRIREME_BOOK(Args)                                    \
  void launch(const Args&, const Tensor&, Stream) override {} \
  int64_t scratch_bytes(const Args& p) override {             \
    return model_.scratch(p);                                 \
  }
  TRIREME_OPS(TRIREME_BOOK)
#undef TRIREME_BOOK
  Model model_;
};

struct MetaModel {
  std::unique_ptr<Kernels> kernels;
  bool (*native)(DType) = nullptr;  // Device::native
  bool own_memory = false;          // Device::own_memory
};
MetaModel meta_cpu_model(const DeviceOptions&);  // a bad request where CPUs' kernels are not built (no_cpu)

}  // namespace trireme
