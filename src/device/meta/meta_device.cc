// A device without data: addresses are booked, never dereferenced, and operations are checked and counted
// only. Planning is running the real layers here, so what scratch an op takes must be what the modelled
// device takes.
#include <algorithm>
#include <string>
#include <vector>

#include "device/cuda/launches.h"
#include "device/meta/meta_kernels.h"

namespace trireme {
namespace {

class CudaModel {
 public:
  explicit CudaModel(const DeviceOptions& options)
      : sm90_(options.sm90_attention), deterministic_(options.deterministic) {}
  bool gelu_in_products(DType t) const { return cuda::gelu_in_products(t, deterministic_); }
  bool orthogonalises(int64_t, int64_t) const { return false; }
  template <class Args>
  int64_t scratch(const Args& p) const {
    return cuda::cuda_scratch(p, sm90_);
  }

 private:
  bool sm90_;  // attention goes to the kernels for sm_90a
  bool deterministic_;
};

bool native_of_cuda(DType t) {
  return t == DType::f16 || t == DType::bf16 || t == DType::f32 || t == DType::f64;
}

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(MetaModel model) : model_(std::move(model)) {}

  std::string_view name() const override { return "meta"; }
  bool has_data() const override { return false; }
  bool native(DType t) const override { return model_.native(t); }

  // Ranges follow one another from an address that no process maps: a stray access faults at once, and
  // tensors of two arenas never look like one another.
  std::byte* reserve(int64_t bytes) override {
    uintptr_t base = next_;
    next_ += (uintptr_t(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<std::byte*>(base);
  }
  void release(std::byte*, int64_t) override {}
  bool own_memory() const override { return model_.own_memory; }
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

  Kernels& kernels() override { return *model_.kernels; }

 private:
  static constexpr uintptr_t kAlign = 2 << 20;
  uintptr_t next_ = uintptr_t(1) << 56;  // above every user address of x86-64 and AArch64
  std::vector<std::string> streams_;
  int64_t events_ = 0;
  MetaModel model_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(const DeviceOptions& options) {
  if (options.models != "cpu" && options.models != "cuda")
    bad_request("meta cannot stand for device '{}'; it knows the scratch of: cpu, cuda", options.models);
  if (options.models == "cpu") return std::make_unique<MetaDevice>(meta_cpu_model(options));
  return std::make_unique<MetaDevice>(MetaModel{.kernels = std::make_unique<MetaKernels<CudaModel>>(options),
                                                .native = native_of_cuda,
                                                .own_memory = true});
}

}  // namespace trireme
