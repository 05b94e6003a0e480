#include "emulated_device.h"

#include <array>

#include "device/cuda/indices.h"
#include "device/cuda/kernel_tally.h"
#include "device/cuda/launches.h"
#include "device/cuda/spins.h"
#include "emulate.h"

namespace trireme {
namespace {

class EmulatedKernels final : public Kernels {
 public:
  EmulatedKernels(bool sm90, bool require_fp8) {
    slots_.fill(~uint64_t(0));
    cuda::report_spins(cuda::spin_reports([] {
      static cuda::SpinReport reports[cuda::kSpinners] = {};
      return reports;
    }));
    ctx_.index_slots = slots_.data();
    ctx_.multiprocessors = 3, ctx_.major = sm90 ? 9 : 8;
    ctx_.shared_bytes = 8 << 10;  // small, so that cross-entropy of short rows takes both its ways
    ctx_.sm90_attention = sm90;
    ctx_.require_fp8 = require_fp8;
  }
  void finish() { cuda::raise_bad_indices(ctx_, nullptr); }
  std::string_view last_kernel() const override { return ctx_.last_kernel; }
  std::span<const KernelCount> kernels_taken() const override { return tally_.all(); }

 private:
#define TRIREME_EMULATED(Args)                                           \
  void launch(const Args& p, const Tensor& scratch, Stream s) override { \
    require(s.id == 0, "kernels run on the compute stream");             \
    emulate::set_order(launches_++);                                     \
    ctx_.last_kernel = {};                                               \
    cuda::cuda_launch(p, scratch, ctx_, nullptr);                        \
    tally_.add(Args::kName, ctx_.last_kernel);                           \
  }                                                                      \
  int64_t scratch_bytes(const Args& p) override {                        \
    return cuda::cuda_scratch(p, ctx_.sm90_attention);                   \
  }
  TRIREME_OPS(TRIREME_EMULATED)
#undef TRIREME_EMULATED

  uint64_t launches_ = 0;
  std::array<uint64_t, size_t(cuda::CudaContext::kIndexSlots)> slots_;
  cuda::CudaContext ctx_;
  cuda::KernelTally tally_;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(bool sm90, bool require_fp8)
      : cpu_(make_cpu_device({.threads = 1})), kernels_(sm90, require_fp8), sm90_(sm90) {}

  std::string_view name() const override { return sm90_ ? kEmulatedSm90 : kEmulatedCuda; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return size_of(t) > 1; }
  std::byte* reserve(int64_t bytes) override { return cpu_->reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { cpu_->release(p, bytes); }
  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    s.id == 0 ? cuda::copy_strided(dst, src, nullptr) : cpu_->copy(dst, src, s);
  }
  void upload(const Tensor& dst, const void* src) override { cpu_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override {
    kernels_.finish();
    cpu_->download(dst, src);
  }
  Stream stream(std::string_view name) override { return cpu_->stream(name); }
  Event record(Stream s) override { return cpu_->record(s); }
  void wait(Stream s, Event e) override { cpu_->wait(s, e); }
  void sync(Stream s) override {
    if (s.id == 0) kernels_.finish();
    cpu_->sync(s);
  }
  void enqueue(Stream s, HostTask task) override { cpu_->enqueue(s, task); }
  Kernels& kernels() override { return kernels_; }

 private:
  std::unique_ptr<Device> cpu_;
  EmulatedKernels kernels_;
  bool sm90_;
};

}  // namespace

std::unique_ptr<Device> make_emulated_device(bool sm90, bool require_fp8) {
  return std::make_unique<EmulatedDevice>(sm90, require_fp8);
}
void emulated_fold_pieces(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n,
                          DType t, bool max, uint64_t order) {
  emulate::set_order(order);
  cuda::fold_pieces(dst, src, n, t, max, nullptr);
}

}  // namespace trireme
