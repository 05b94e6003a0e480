// Scratch of a CPU's ops, for the meta device.
#include "device/cpu/cpu_device.h"
#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/orthogonalise.h"
#include "device/meta/meta_kernels.h"

namespace trireme {
namespace {

class CpuModel {
 public:
  explicit CpuModel(const DeviceOptions& options) : ctx_(cpu::make_context(options)) {
    ctx_.matmuls = &matmuls_;
  }
  CpuModel(const CpuModel&) = delete;
  bool gelu_in_products(DType) const { return false; }
  bool orthogonalises(int64_t rows, int64_t cols) const { return cpu::orthogonalises(rows, cols); }
  template <class Args>
  int64_t scratch(const Args& p) {
    return cpu::scratch_bytes_of_any(p, ctx_);
  }

 private:
  cpu::MatmulCache matmuls_;
  cpu::Context ctx_;
};

}  // namespace

MetaModel meta_cpu_model(const DeviceOptions& options) {
  return {.kernels = std::make_unique<MetaKernels<CpuModel>>(options), .native = cpu::multiplies_natively};
}

}  // namespace trireme
