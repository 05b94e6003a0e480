#include "device/cpu/cpu_device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "device/cpu/f16.h"
#include "device/cpu/matmul.h"
#include "device/cpu/orthogonalise.h"
#include "device/cpu/worker.h"

namespace trireme {
namespace cpu {

namespace {
bool has_baseline() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return false;  // asks the system too
  constexpr unsigned kLeaf1 = bit_FMA | bit_F16C | bit_PCLMUL | bit_AES, kLeaf7 = bit_BMI | bit_BMI2;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & kLeaf1) == kLeaf1 &&
         __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kLeaf7) == kLeaf7;
#else
  return true;
#endif
}
}  // namespace

void require_processor() {
  if (!has_baseline())
    bad_request(
        "this processor lacks AVX2, FMA, F16C, BMI2, AES or PCLMULQDQ, which trireme's kernels are compiled "
        "for (x86-64 "
        "processors have them since 2013; a virtual machine may hide them)");
}

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, omp_get_num_procs());  // more than 1,024 cores: the fixed-size mask is too small
}

int most_threads() {
  return omp_get_thread_limit();
}

Context make_context(const DeviceOptions& options) {
  if (options.threads < 0)
    bad_request("train.threads = {} is negative; it must be 0 (share the cores) or a count", options.threads);
  return {.threads = std::min(options.threads > 0 ? options.threads : usable_cores(), most_threads())};
}

bool multiplies_natively(DType t) {
  switch (t) {
    case DType::f64:
    case DType::f32:
      return true;
    case DType::bf16: {
      // CPUID leaf 7: sub-leaf 1 EAX bit 5 = AVX512-BF16, sub-leaf 0 EDX bit 22 = AMX-BF16. g++ 12 knows the
      // first by name; AMX processors (Sapphire Rapids on) have both, so the first is enough.
      __builtin_cpu_init();
      return __builtin_cpu_supports("avx512bf16");
    }
    default:
      return false;
  }
}

namespace {
void copy_dim(std::byte* dst, const std::byte* src, const Tensor& d, const Tensor& s, int dim, int64_t size) {
  if (dim == d.shape.rank) {
    std::memcpy(dst, src, size_t(size));
    return;
  }
  int64_t n = d.shape[dim], ds = d.stride[size_t(dim)] * size, ss = s.stride[size_t(dim)] * size;
  if (dim == d.shape.rank - 1 && ds == size && ss == size) {
    std::memcpy(dst, src, size_t(n * size));
    return;
  }
  for (int64_t i = 0; i < n; i++) copy_dim(dst + i * ds, src + i * ss, d, s, dim + 1, size);
}
}  // namespace

void copy_strided(const Tensor& dst, const Tensor& src) {
  if (dst.numel() == 0 || dst.data == src.data) return;
  if (dst.contiguous() && src.contiguous())
    std::memcpy(dst.data, src.data, size_t(dst.bytes()));
  else
    copy_dim(dst.data, src.data, dst, src, 0, size_of(dst.dtype));
}

namespace {

class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(Context ctx) : ctx_(ctx) { ctx_.matmuls = &matmuls_; }
  bool orthogonalises(int64_t rows, int64_t cols) const override { return cpu::orthogonalises(rows, cols); }

 private:
#define TRIREME_FORWARD(Args)                                            \
  void launch(const Args& p, const Tensor& scratch, Stream s) override { \
    require(s.id == 0, "kernels run on the compute stream");             \
    cpu::launch_any(p, scratch, ctx_);                                   \
  }                                                                      \
  int64_t scratch_bytes(const Args& p) override {                        \
    return cpu::scratch_bytes_of_any(p, ctx_);                           \
  }
  TRIREME_OPS(TRIREME_FORWARD)
#undef TRIREME_FORWARD
  MatmulCache matmuls_;
  Context ctx_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(Context ctx, bool spin) : kernels_(ctx), looks_(spin ? kLooks : 1) {
    omp_set_num_threads(ctx.threads);
  }

  ~CpuDevice() override {
    for (auto& w : workers_) w->drain();  // all before the first is gone: streams wait for one another
  }

  std::string_view name() const override { return "cpu"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return multiplies_natively(t); }

  // Aligned to and padded to whole huge pages: a step walks gigabytes, 4 KiB pages cost up to 17 % of it in
  // page faults and TLB misses where memory is fresh. The kernel may decline the advice; nothing depends on
  // it.
  std::byte* reserve(int64_t bytes) override {
    size_t size = padded(bytes);
    void* raw = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
      environment_failed("out of memory: the system refused {} bytes for an arena: {}", bytes,
                         std::strerror(errno));
    auto begin = reinterpret_cast<uintptr_t>(raw), base = (begin + kHuge - 1) / kHuge * kHuge;
    if (base > begin) munmap(raw, base - begin);
    if (size_t tail = begin + kHuge - base) munmap(reinterpret_cast<void*>(base + size), tail);
    (void)madvise(reinterpret_cast<void*>(base), size, MADV_HUGEPAGE);
    return reinterpret_cast<std::byte*>(base);
  }
  void release(std::byte* p, int64_t bytes) override {
    if (p) require(munmap(p, padded(bytes)) == 0, "release() of memory that this device did not reserve");
  }

  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    require(dst.shape == src.shape && dst.dtype == src.dtype, "copy() between unequal shapes or types");
    s.id == 0 ? copy_strided(dst, src) : worker(s.id).copy(dst, src);
  }
  void upload(const Tensor& dst, const void* src) override {
    require(dst.contiguous(), "upload() needs a contiguous tensor");
    if (dst.bytes() > 0) std::memcpy(dst.data, src, size_t(dst.bytes()));
  }
  void download(void* dst, const Tensor& src) override {
    require(src.contiguous(), "download() needs a contiguous tensor");
    if (src.bytes() > 0) std::memcpy(dst, src.data, size_t(src.bytes()));
  }

  Stream stream(std::string_view name) override {
    if (name == "compute") return {};
    for (size_t i = 0; i < workers_.size(); i++)
      if (workers_[i]->name() == name) return {int(i) + 1};
    workers_.push_back(std::make_unique<Worker>(std::string(name), looks_));
    return {int(workers_.size())};
  }
  // What was issued on the compute stream is done.
  Event record(Stream s) override { return s.id == 0 ? Event{} : Event{s.id, worker(s.id).issued()}; }
  void wait(Stream s, Event e) override {
    if (e.stream == 0 || e.stream == s.id) return;
    s.id == 0 ? worker(e.stream).join(e.mark) : worker(s.id).wait_for(worker(e.stream), e.mark);
  }
  void sync(Stream s) override {
    if (s.id != 0) worker(s.id).join(worker(s.id).issued());
  }
  void enqueue(Stream s, HostTask task) override {
    s.id == 0 ? task.run(task.self, task.arg) : worker(s.id).run(task);
  }

  Kernels& kernels() override { return kernels_; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  static size_t padded(int64_t bytes) {
    return (size_t(std::max<int64_t>(bytes, 1)) + kHuge - 1) / kHuge * kHuge;
  }
  static constexpr int kLooks = 2000;  // some 50 us
  Worker& worker(int id) {
    require(id >= 1 && size_t(id) <= workers_.size(), "a stream of another device");
    return *workers_[size_t(id) - 1];
  }
  CpuKernels kernels_;
  int looks_;
  std::vector<std::unique_ptr<Worker>> workers_;  // of streams 1, 2, ...
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options) {
  cpu::require_processor();
  return std::make_unique<cpu::CpuDevice>(cpu::make_context(options), options.spin);
}

}  // namespace trireme
