// A device without data: addresses are booked, never dereferenced, and operations are checked and counted
// only. Planning is running the real layers here, so what scratch an op takes must be what the modelled
// device takes.
#include <algorithm>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/orthogonalise.h"
#include "device/cuda/launches.h"

namespace trireme {
namespace {

class MetaKernels final : public Kernels {
 public:
  MetaKernels(cpu::Context ctx, bool cuda, bool sm90, bool deterministic)
      : ctx_(ctx), cuda_(cuda), sm90_(sm90), deterministic_(deterministic) {
    ctx_.matmuls = &matmuls_;
  }
  bool gelu_in_products(DType t) const override { return cuda_ && cuda::gelu_in_products(t, deterministic_); }
  bool orthogonalises(int64_t rows, int64_t cols) const override {
    return !cuda_ && cpu::orthogonalises(rows, cols);
  }

 private:
#define TRIREME_BOOK(Args)                                                            \
  void launch(const Args&, const Tensor&, Stream) override {}                         \
  int64_t scratch_bytes(const Args& p) override {                                     \
    return cuda_ ? cuda::cuda_scratch(p, sm90_) : cpu::scratch_bytes_of_any(p, ctx_); \
  }
  TRIREME_OPS(TRIREME_BOOK)
#undef TRIREME_BOOK
  cpu::MatmulCache matmuls_;
  cpu::Context ctx_;
  bool cuda_;  // what it stands for: a GPU, or else a CPU
  bool sm90_;  // a GPU whose attention goes to the kernels for sm_90a
  bool deterministic_;
};

class MetaDevice final : public Device {
 public:
  MetaDevice(cpu::Context ctx, bool cuda, bool sm90, bool deterministic)
      : kernels_(ctx, cuda, sm90, deterministic), cuda_(cuda) {}

  std::string_view name() const override { return "meta"; }
  bool has_data() const override { return false; }
  bool native(DType t) const override {
    return cuda_ ? t == DType::f16 || t == DType::bf16 || t == DType::f32 || t == DType::f64
                 : cpu::multiplies_natively(t);
  }

  // Ranges follow one another from an address that no process maps: a stray access faults at once, and
  // tensors of two arenas never look like one another.
  std::byte* reserve(int64_t bytes) override {
    uintptr_t base = next_;
    next_ += (uintptr_t(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<std::byte*>(base);
  }
  void release(std::byte*, int64_t) override {}
  bool own_memory() const override { return cuda_; }
  std::byte* reserve_host(int64_t bytes) override { return reserve(bytes); }
  void release_host(std::byte*, int64_t) override {}

  void copy(const Tensor& dst, const Tensor& src, Stream) override {
    require(dst.shape == src.shape && dst.dtype == src.dtype, "copy() between unequal shapes or types");
  }
  void upload(const Tensor& dst, const void*) override {
    require(dst.contiguous(), "upload() needs a contiguous tensor");
  }
  void download(void*, const Tensor& src) override {
    require(src.contiguous(), "download() needs a contiguous tensor");
  }

  // Streams have the ids that a CPU's would have; whatever is issued is over at once. Events are numbered, so
  // that a recording can tell them apart.
  Stream stream(std::string_view name) override {
    if (name == "compute") return {};
    auto it = std::find(streams_.begin(), streams_.end(), name);
    if (it == streams_.end()) it = streams_.insert(it, std::string(name));
    return {int(it - streams_.begin()) + 1};
  }
  Event record(Stream s) override { return {s.id, s.id == 0 ? 0 : ++events_}; }
  void wait(Stream, Event) override {}
  void sync(Stream) override {}
  void enqueue(Stream, HostTask) override {}

  Kernels& kernels() override { return kernels_; }

 private:
  static constexpr uintptr_t kAlign = 2 << 20;
  uintptr_t next_ = uintptr_t(1) << 56;  // above every user address of x86-64 and AArch64
  std::vector<std::string> streams_;
  int64_t events_ = 0;
  MetaKernels kernels_;
  bool cuda_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(const DeviceOptions& options) {
  if (options.models != "cpu" && options.models != "cuda")
    bad_request("meta cannot stand for device '{}'; it knows the scratch of: cpu, cuda", options.models);
  return std::make_unique<MetaDevice>(cpu::make_context(options), options.models != "cpu",
                                      options.sm90_attention, options.deterministic);
}

}  // namespace trireme
