// In place of device/cpu where trireme plans only (TRIREME_META_ONLY): its runs are of GPUs.
#include "device/cpu/cpu_device.h"
#include "device/meta/meta_kernels.h"

namespace trireme {
namespace {

[[noreturn]] void refuse_cpu() {
  bad_request(
      "train.device = \"cpu\": this trireme was built with TRIREME_META_ONLY=ON, without kernels of CPUs; it "
      "plans "
      "runs of \"cuda\"");
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(const DeviceOptions&) {
  refuse_cpu();
}
MetaModel meta_cpu_model(const DeviceOptions&) {
  refuse_cpu();
}

// Without threads each rank has one.
int cpu::usable_cores() {
  return 1;
}
int cpu::most_threads() {
  return 1;
}
void cpu::require_processor() {}

}  // namespace trireme
