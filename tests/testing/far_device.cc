#include "far_device.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/device_memory.h"
#include "device/operands.h"

namespace trireme::test {
namespace {

// Where the bytes of a range are: all devices of the process, since ranks reach one another's.
struct FarRange {
  int64_t bytes = 0;
  std::byte* near = nullptr;
};
struct FarRanges {
  std::shared_mutex mutex;
  std::map<const std::byte*, FarRange> all;
};
FarRanges& far_ranges() {
  static FarRanges ranges;
  return ranges;
}

// Null: not of a far device.
std::byte* near_of(const void* p) {
  FarRanges& r = far_ranges();
  std::shared_lock lock(r.mutex);
  const auto* at = static_cast<const std::byte*>(p);
  auto after = r.all.upper_bound(at);
  if (after == r.all.begin()) return nullptr;
  const auto& [begin, range] = *std::prev(after);
  return at < begin + range.bytes ? range.near + (at - begin) : nullptr;
}
Tensor near_of(Tensor t) {
  if (std::byte* p = near_of(static_cast<const void*>(t.data))) t.data = p;
  return t;
}

void move_far(void* dst, const void* src, int64_t bytes) {
  std::byte *to = near_of(dst), *from = near_of(src);
  std::memcpy(to ? to : dst, from ? from : src, size_t(bytes));
}

class FarKernels final : public Kernels {
 public:
  explicit FarKernels(cpu::Context ctx) : ctx_(ctx) { ctx_.matmuls = &matmuls_; }

 private:
  template <class Args>
  static Args near_args(Args p) {
    for (Tensor Args::*operand : kOperands<Args>) {
      Tensor& t = p.*operand;
      if (!t.data) continue;
      std::byte* near = near_of(static_cast<const void*>(t.data));
      require(near != nullptr, "an op was given memory that is not its device's");
      t.data = near;
    }
    return p;
  }
#define TRIREME_FAR(Args)                                                \
  void launch(const Args& p, const Tensor& scratch, Stream s) override { \
    require(s.id == 0, "kernels run on the compute stream");             \
    cpu::launch_any(near_args(p), near_of(scratch), ctx_);               \
  }                                                                      \
  int64_t scratch_bytes(const Args& p) override {                        \
    return cpu::scratch_bytes_of_any(p, ctx_);                           \
  }
  TRIREME_OPS(TRIREME_FAR)
#undef TRIREME_FAR
  cpu::MatmulCache matmuls_;
  cpu::Context ctx_;
};

class FarDevice final : public Device {
 public:
  explicit FarDevice(const DeviceOptions& options)
      : cpu_(make_cpu_device(options)), kernels_(cpu::make_context(options)) {}

  std::string_view name() const override { return kFarDevice; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return cpu_->native(t); }
  bool own_memory() const override { return true; }

  std::byte* reserve(int64_t bytes) override {
    bytes = std::max<int64_t>(bytes, 1);
    void* p = mmap(nullptr, size_t(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(p != MAP_FAILED, "no addresses for a far device");
    auto* far = static_cast<std::byte*>(p);
    std::byte* near = cpu_->reserve(bytes);
    {
      FarRanges& r = far_ranges();
      std::unique_lock lock(r.mutex);
      r.all[far] = {bytes, near};
    }
    add_device_memory(far, bytes, move_far);
    return far;
  }
  void release(std::byte* p, int64_t) override {
    if (!p) return;
    remove_device_memory(p);
    FarRange range;
    {
      FarRanges& r = far_ranges();
      std::unique_lock lock(r.mutex);
      range = r.all.at(p);
      r.all.erase(p);
    }
    cpu_->release(range.near, range.bytes);
    require(munmap(p, size_t(range.bytes)) == 0, "addresses of a far device that were not its own");
  }

  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    cpu_->copy(near_of(dst), near_of(src), s);
  }
  void upload(const Tensor& dst, const void* src) override { cpu_->upload(near_of(dst), src); }
  void download(void* dst, const Tensor& src) override { cpu_->download(dst, near_of(src)); }
  Stream stream(std::string_view name) override { return cpu_->stream(name); }
  Event record(Stream s) override { return cpu_->record(s); }
  void wait(Stream s, Event e) override { cpu_->wait(s, e); }
  void sync(Stream s) override { cpu_->sync(s); }
  void enqueue(Stream s, HostTask task) override { cpu_->enqueue(s, task); }
  Kernels& kernels() override { return kernels_; }

 private:
  std::unique_ptr<Device> cpu_;
  FarKernels kernels_;
};

}  // namespace

std::unique_ptr<Device> make_far_device(const DeviceOptions& options) {
  return std::make_unique<FarDevice>(options);
}

}  // namespace trireme::test
