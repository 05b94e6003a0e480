#include "far_device.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/sum_pieces.h"
#include "device/device_memory.h"
#include "device/operands.h"
#include "device/replay.h"

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

bool fold_far(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
              bool max) {
  std::vector<std::byte*> to;
  std::vector<const std::byte*> from;
  for (std::byte* p : dst) to.push_back(near_of(static_cast<const void*>(p)));
  for (const std::byte* p : src) from.push_back(near_of(static_cast<const void*>(p)));
  max ? cpu::max_pieces(to, from, n, t) : cpu::sum_pieces(to, from, n, t);
  return true;
}

using Launches = std::vector<std::function<void()>>;

class FarGraph final : public Graph {
 public:
  explicit FarGraph(Launches launches) : launches_(std::move(launches)) {}
  void launch() override {
    for (const auto& l : launches_) l();
  }

 private:
  Launches launches_;
};

class FarKernels final : public Kernels, public GraphMaker {
 public:
  FarKernels(cpu::Context ctx, bool gelu_in_products, std::function<void()> keeping)
      : ctx_(ctx), gelu_in_products_(gelu_in_products), at_end_(std::move(keeping)) {
    ctx_.matmuls = &matmuls_;
  }
  bool gelu_in_products(DType) const override { return gelu_in_products_; }
  void begin() override {
    meet();
    keeping_ = true;
  }
  std::unique_ptr<Graph> end() override {
    require(keeping_, "the end of a graph that was not begun");
    if (at_end_) at_end_();
    keeping_ = false;
    return std::make_unique<FarGraph>(std::exchange(kept_, {}));
  }
  void abandon() noexcept override { keeping_ = false, kept_.clear(); }
  // Whatever else than a launch is asked of the device.
  void meet() const { require(!keeping_, "a device that keeps launches was asked for something else"); }

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
  template <class Args>
  void run_near(const Args& p, const Tensor& scratch) {
    cpu::launch_any(near_args(p), near_of(scratch), ctx_);
  }
#define TRIREME_FAR(Args)                                                \
  void launch(const Args& p, const Tensor& scratch, Stream s) override { \
    require(s.id == 0, "kernels run on the compute stream");             \
    if (keeping_)                                                        \
      kept_.push_back([this, p, scratch] { run_near(p, scratch); });     \
    else                                                                 \
      run_near(p, scratch);                                              \
  }                                                                      \
  int64_t scratch_bytes(const Args& p) override {                        \
    return cpu::scratch_bytes_of_any(p, ctx_);                           \
  }
  TRIREME_OPS(TRIREME_FAR)
#undef TRIREME_FAR
  cpu::MatmulCache matmuls_;
  cpu::Context ctx_;
  const bool gelu_in_products_;
  const std::function<void()> at_end_;
  bool keeping_ = false;
  Launches kept_;
};

class FarDevice final : public Device {
 public:
  FarDevice(const DeviceOptions& options, std::function<void()> keeping)
      : cpu_(make_cpu_device(options)),
        kernels_(cpu::make_context(options), !options.deterministic, std::move(keeping)) {}

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
    add_device_memory(far, bytes, move_far, fold_far);
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
    met().copy(near_of(dst), near_of(src), s);
  }
  void upload(const Tensor& dst, const void* src) override { met().upload(near_of(dst), src); }
  void download(void* dst, const Tensor& src) override { met().download(dst, near_of(src)); }
  Stream stream(std::string_view name) override { return cpu_->stream(name); }
  Event record(Stream s) override { return met().record(s); }
  void wait(Stream s, Event e) override { met().wait(s, e); }
  void sync(Stream s) override { met().sync(s); }
  void enqueue(Stream s, HostTask task) override { met().enqueue(s, task); }
  Kernels& kernels() override { return kernels_; }
  GraphMaker* graphs() override { return &kernels_; }

 private:
  Device& met() {
    kernels_.meet();
    return *cpu_;
  }
  std::unique_ptr<Device> cpu_;
  FarKernels kernels_;
};

}  // namespace

void no_room_for_a_graph() {
  run_failed("no room for a graph");
}

std::unique_ptr<Device> make_far_device(const DeviceOptions& options, std::function<void()> keeping) {
  auto device = std::make_unique<FarDevice>(options, std::move(keeping));
  return options.graphs ? make_replay_device(std::move(device)) : std::move(device);
}

}  // namespace trireme::test
