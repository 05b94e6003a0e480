// An NVIDIA GPU as a device: of those that CUDA shows this process (CUDA_VISIBLE_DEVICES chooses) the
// index-th.
//
// The compute stream is a CUDA stream: kernels, copies and events are put there and the rank goes on. Every
// other stream is a thread of the host with a queue (cpu/worker.h), because what is put there are tasks of
// the host, which may copy and wait for others, and CUDA's own callbacks may do neither. Its copies go over a
// CUDA stream of its own; where it waits for compute, its thread waits for a CUDA event. Where compute waits
// for it, the rank's thread waits: what is issued next starts a launch later than it could. With
// DeviceOptions::ordered a stream is a CUDA stream until a task of the host comes there, and no thread waits.
#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "device/cuda/cuda_streams.h"
#include "device/cuda/gpu.cuh"
#include "device/cuda/indices.h"
#include "device/cuda/kernel_tally.h"
#include "device/device.h"
#include "device/device_memory.h"

namespace trireme::cuda {
namespace {

constexpr std::string_view kOthers = "devices that are here: cpu, meta";

// The GPU that ranks of this process use; what is missing is a bad request in one line. A process that sees
// one GPU was given it by its launcher, whatever its place among the ranks of the machine.
cudaDeviceProp nth_device(int& index) {
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0) bad_request("device cuda: this machine has no NVIDIA driver; {}", kOthers);
    bad_request(
        "device cuda: the driver knows CUDA {}.{}, and this trireme was built with {}.{}: it takes a newer "
        "one; {}",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, kOthers);
  }
  if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
    bad_request("device cuda: no GPU is visible to this process; {}", kOthers);
  if (e != cudaSuccess)
    bad_request("device cuda: {} ({}); {}", cudaGetErrorString(e), cudaGetErrorName(e), kOthers);
  if (count == 1) index = 0;
  if (index < 0 || index >= count)
    bad_request("device cuda: rank {} of this machine has no GPU: {} are visible, and each rank takes one",
                index, count);
  cudaDeviceProp p;
  TRIREME_CUDA_CALL(cudaGetDeviceProperties(&p, index));
  if (p.major < 8)
    bad_request("device cuda: {} has compute capability {}.{}; kernels are for 8.0 and newer; {}", p.name,
                p.major, p.minor, kOthers);
  return p;
}

// Memory of the host that kernels reach on every GPU, and that outlives a context in which one trapped.
SpinReport* make_spin_reports() {
  void* p = nullptr;
  TRIREME_CUDA_CALL(
      cudaHostAlloc(&p, kSpinners * sizeof(SpinReport), cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(p, 0, kSpinners * sizeof(SpinReport));
  return static_cast<SpinReport*>(p);
}

// Host memory that the GPU copies from and to by itself, in two halves: one is filled while the other is
// copied. CUDA looks where dst and src lie: what was offloaded is read and written between steps too.
class Staging {
 public:
  void up(std::byte* dst, const std::byte* src, int64_t bytes, cudaStream_t stream) {
    prepare();
    for (int64_t at = 0, half = 0; at < bytes; at += kHalf, half ^= 1) {
      const int64_t n = std::min(kHalf, bytes - at);
      TRIREME_CUDA_CALL(cudaEventSynchronize(free_[half].get()));
      std::memcpy(memory_.get() + half * kHalf, src + at, size_t(n));
      TRIREME_CUDA_CALL(
          cudaMemcpyAsync(dst + at, memory_.get() + half * kHalf, size_t(n), cudaMemcpyDefault, stream));
      TRIREME_CUDA_CALL(cudaEventRecord(free_[half].get(), stream));
    }
    TRIREME_CUDA_CALL(cudaStreamSynchronize(stream));
  }
  void down(std::byte* dst, const std::byte* src, int64_t bytes, cudaStream_t stream) {
    prepare();
    auto half_at = [&](int64_t at) { return at / kHalf % 2; };
    auto fetch = [&](int64_t at) {
      const int64_t half = half_at(at);
      TRIREME_CUDA_CALL(cudaMemcpyAsync(memory_.get() + half * kHalf, src + at,
                                        size_t(std::min(kHalf, bytes - at)), cudaMemcpyDefault, stream));
      TRIREME_CUDA_CALL(cudaEventRecord(free_[half].get(), stream));
    };
    if (bytes > 0) fetch(0);
    for (int64_t at = 0; at < bytes; at += kHalf) {
      if (at + kHalf < bytes) fetch(at + kHalf);
      TRIREME_CUDA_CALL(cudaEventSynchronize(free_[half_at(at)].get()));
      std::memcpy(dst + at, memory_.get() + half_at(at) * kHalf, size_t(std::min(kHalf, bytes - at)));
    }
  }

 private:
  static constexpr int64_t kHalf = 8 << 20;
  void prepare() {
    if (memory_) return;
    void* p = nullptr;
    TRIREME_CUDA_CALL(cudaHostAlloc(&p, size_t(2 * kHalf), cudaHostAllocDefault));
    memory_.reset(static_cast<std::byte*>(p));
    for (OwnedEvent& e : free_) e = make_event();
  }
  std::unique_ptr<std::byte, PinnedDeleter> memory_;
  std::array<OwnedEvent, 2> free_;
};

// A thread of the host's that none of its ranks is works on the GPU that the memory is of; host memory is of
// none.
bool enter_gpu_of(const void* memory) {
  cudaPointerAttributes of{};
  TRIREME_CUDA_CALL(cudaPointerGetAttributes(&of, memory));
  if (of.type != cudaMemoryTypeDevice) return false;
  TRIREME_CUDA_CALL(cudaSetDevice(of.device));
  return true;
}

// What threads of the host do for ranks that share the GPU (device_memory.h).
void move_bytes(void* dst, const void* src, int64_t bytes) {
  if (!enter_gpu_of(src)) enter_gpu_of(dst);
  TRIREME_CUDA_CALL(cudaMemcpyAsync(dst, src, size_t(bytes), cudaMemcpyDefault, cudaStreamPerThread));
  TRIREME_CUDA_CALL(cudaStreamSynchronize(cudaStreamPerThread));
}

bool fold_on_gpu(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType t,
                 bool max) {
  if (dst.size() > kMostFolded || src.size() > kMostFolded) return false;
  if (!src.empty()) enter_gpu_of(src[0]);
  fold_pieces(dst, src, n, t, max, cudaStreamPerThread);
  TRIREME_CUDA_CALL(cudaStreamSynchronize(cudaStreamPerThread));
  return true;
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(CudaContext& ctx, cudaStream_t stream) : ctx_(ctx), stream_(stream) {}
  bool gelu_in_products(DType t) const override { return cuda::gelu_in_products(t, ctx_.deterministic); }
  std::string_view last_kernel() const override { return ctx_.last_kernel; }
  std::span<const KernelCount> kernels_taken() const override { return tally_.all(); }

 private:
#define TRIREME_FORWARD(Args)                                            \
  void launch(const Args& p, const Tensor& scratch, Stream s) override { \
    require(s.id == 0, "kernels run on the compute stream");             \
    ctx_.last_kernel = {};                                               \
    cuda_launch(p, scratch, ctx_, stream_);                              \
    tally_.add(Args::kName, ctx_.last_kernel);                           \
  }                                                                      \
  int64_t scratch_bytes(const Args& p) override {                        \
    return cuda_scratch(p, ctx_.sm90_attention);                         \
  }
  TRIREME_OPS(TRIREME_FORWARD)
#undef TRIREME_FORWARD
  CudaContext& ctx_;
  cudaStream_t stream_;
  KernelTally tally_;
};

// Of launches on the compute stream. Only this thread's calls are refused while it captures: others' streams
// go on. A capture that an error ended is thrown away with what CUDA says of it.
class CudaGraph final : public Graph {
 public:
  // looks: one of its launches looks at ids (indices.h).
  CudaGraph(cudaGraph_t graph, CudaContext& ctx, cudaStream_t stream, bool looks)
      : ctx_(ctx), stream_(stream), looks_(looks) {
    TRIREME_CUDA_CALL(cudaGraphInstantiate(&kept_, graph, 0));
  }
  CudaGraph(const CudaGraph&) = delete;
  ~CudaGraph() override { (void)cudaGraphExecDestroy(kept_); }
  void launch() override {
    ctx_.index_checked |= looks_;
    TRIREME_CUDA_CALL(cudaGraphLaunch(kept_, stream_));
  }

 private:
  CudaContext& ctx_;
  cudaStream_t stream_;
  bool looks_;
  cudaGraphExec_t kept_ = nullptr;
};

class CudaGraphMaker final : public GraphMaker {
 public:
  CudaGraphMaker(CudaContext& ctx, cudaStream_t stream) : ctx_(ctx), stream_(stream) {}
  void begin() override {
    constexpr int64_t kRoom = 256;  // kinds of ids that one graph may look at
    if (int64_t(ctx_.index_checks.size()) + kRoom > CudaContext::kIndexSlots) free_index_slots(ctx_, stream_);
    TRIREME_CUDA_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    ctx_.capturing = true;
    checked_before_ = std::exchange(ctx_.index_checked, false);
  }
  std::unique_ptr<Graph> end() override {
    const bool looks = leave();
    cudaGraph_t graph = nullptr;
    TRIREME_CUDA_CALL(cudaStreamEndCapture(stream_, &graph));
    const std::unique_ptr<CUgraph_st, GraphDeleter> owned(graph);
    return std::make_unique<CudaGraph>(graph, ctx_, stream_, looks);
  }
  void abandon() noexcept override {
    (void)leave();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    if (cudaStreamIsCapturing(stream_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone)
      (void)cudaStreamEndCapture(stream_, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }

 private:
  struct GraphDeleter {
    void operator()(CUgraph_st* g) const { (void)cudaGraphDestroy(g); }
  };
  // Was an id looked at by what is kept? What had been looked at before is still to be told of.
  bool leave() noexcept {
    if (!ctx_.capturing) return false;
    ctx_.capturing = false;
    const bool looks = ctx_.index_checked;
    ctx_.index_checked = checked_before_;
    return looks;
  }
  CudaContext& ctx_;
  cudaStream_t stream_;
  bool checked_before_ = false;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const cudaDeviceProp& p, int index, const DeviceOptions& o)
      : spin_(o.spin), ordered_(o.ordered) {
    ctx_.deterministic = o.deterministic;
    if (o.sm90_attention && p.major != 9)
      bad_request(
          "train.attention = \"sm90\" (device cuda-sm90): this GPU, {}, is sm_{}{}, and those kernels are "
          "for sm_90a: give \"auto\"",
          p.name, p.major, p.minor);
    ctx_.sm90_attention = o.sm90_attention;
    ctx_.require_fp8 = o.require_fp8;
    ctx_.device = index;
    TRIREME_CUDA_CALL(cudaSetDevice(ctx_.device));
    ctx_.gpu = p.name;
    ctx_.multiprocessors = p.multiProcessorCount, ctx_.major = p.major, ctx_.minor = p.minor;
    ctx_.shared_bytes = int64_t(p.sharedMemPerMultiprocessor);
    compute_ = make_stream();
    if (o.sm90_attention) report_spins(spin_reports(make_spin_reports));
    const int64_t bytes = CudaContext::kIndexSlots * int64_t(sizeof(uint64_t));
    slots_ = reserve(bytes);
    ctx_.index_slots = reinterpret_cast<uint64_t*>(slots_);
    set_bytes(slots_, 0xff, bytes, compute_.get());
    kernels_ = std::make_unique<CudaKernels>(ctx_, compute_.get());
    graphs_ = std::make_unique<CudaGraphMaker>(ctx_, compute_.get());
  }
  ~CudaDevice() override {
    for (auto& s : streams_)
      s->worker().drain();  // all before the first is gone: streams wait for one another
    (void)cudaStreamSynchronize(compute_.get());
    release(slots_, 0);
  }

  std::string_view name() const override { return "cuda"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override {
    return t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16;
  }

  std::byte* reserve(int64_t bytes) override {
    void* p = nullptr;
    const cudaError_t e = cudaMalloc(&p, size_t(std::max<int64_t>(bytes, 1)));
    if (e == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is told here, and not again by the next launch
      size_t free = 0, total = 0;
      TRIREME_CUDA_CALL(cudaMemGetInfo(&free, &total));
      run_failed("out of memory: the GPU refused {} bytes for an arena; {} of its {} are free", bytes, free,
                 total);
    }
    check_call(e, "cudaMalloc");
    add_device_memory(static_cast<std::byte*>(p), std::max<int64_t>(bytes, 1), move_bytes, fold_on_gpu);
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, int64_t) override {
    if (!p) return;
    remove_device_memory(p);
    (void)cudaFree(p);  // waits for the device; what failed before is told elsewhere: destructors call this
  }
  bool own_memory() const override { return true; }
  // Pinned: the GPU copies from and to it by itself, while kernels run.
  std::byte* reserve_host(int64_t bytes) override {
    void* p = nullptr;
    const size_t size = size_t(std::max<int64_t>(bytes, 1));
    const cudaError_t e = cudaHostAlloc(&p, size, cudaHostAllocPortable);
    if (e == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      run_failed("out of memory: the system pins no {} bytes of the host's memory to offload into", bytes);
    }
    check_call(e, "cudaHostAlloc");
    std::memset(p, 0, size);
    return static_cast<std::byte*>(p);
  }
  void release_host(std::byte* p, int64_t) override {
    if (p) (void)cudaFreeHost(p);
  }

  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    require(dst.shape == src.shape && dst.dtype == src.dtype, "copy() between unequal shapes or types");
    s.id == 0 ? copy_strided(dst, src, compute_.get()) : side(s.id).copy(dst, src);
  }
  void upload(const Tensor& dst, const void* src) override {
    require(dst.contiguous(), "upload() needs a contiguous tensor");
    await_compute();
    staging_.up(dst.data, static_cast<const std::byte*>(src), dst.bytes(), compute_.get());
  }
  void download(void* dst, const Tensor& src) override {
    require(src.contiguous(), "download() needs a contiguous tensor");
    await_compute();
    staging_.down(static_cast<std::byte*>(dst), src.data, src.bytes(), compute_.get());
    raise_bad_indices(ctx_, compute_.get());
  }

  Stream stream(std::string_view name) override {
    if (name == "compute") return {};
    for (size_t i = 0; i < streams_.size(); i++)
      if (streams_[i]->worker().name() == name) return {int(i) + 1};
    streams_.push_back(
        std::make_unique<SideStream>(std::string(name), ctx_.device, guards_, spin_, ordered_));
    return {int(streams_.size())};
  }
  Event record(Stream s) override {
    return s.id == 0 ? Event{0, events_.record(compute_.get())} : Event{s.id, side(s.id).record()};
  }
  void wait(Stream s, Event e) override {
    if (e.mark == 0 || e.stream == s.id) return;
    const bool on_gpu = e.stream == 0 || (e.mark & SideStream::kOnGpu);
    if (on_gpu) {
      const cudaEvent_t event = e.stream == 0 ? events_.at(e.mark) : side(e.stream).event(e.mark);
      return s.id == 0 ? TRIREME_CUDA_CALL(cudaStreamWaitEvent(compute_.get(), event, 0))
                       : side(s.id).wait_for(event);
    }
    s.id == 0 ? side(e.stream).worker().join(e.mark) : side(s.id).wait_for(side(e.stream), e.mark);
  }
  void sync(Stream s) override {
    if (s.id != 0) return side(s.id).sync();
    await_compute();
    raise_bad_indices(ctx_, compute_.get());
  }
  // On compute a host task runs when what was issued there is done.
  void enqueue(Stream s, HostTask task) override {
    if (s.id != 0) return side(s.id).run(task);
    sync(s);
    task.run(task.self, task.arg);
  }

  bool orders(Stream s) override { return s.id == 0 || side(s.id).ordered(); }
  void queue_after(DeviceQueue& q, Stream s) override {
    const Event e = record(s);
    const cudaEvent_t event = s.id == 0 ? events_.at(e.mark) : side(s.id).event(e.mark);
    TRIREME_CUDA_CALL(cudaStreamWaitEvent(static_cast<LibraryQueue&>(q).stream(), event, 0));
  }
  void stream_after(Stream s, DeviceQueue& q, int64_t mark) override {
    const cudaStream_t stream = s.id == 0 ? compute_.get() : side(s.id).cuda_stream();
    TRIREME_CUDA_CALL(cudaStreamWaitEvent(stream, static_cast<LibraryQueue&>(q).event(mark), 0));
  }
  void guard(const void* who, std::function<void()> look) override { guards_.set(who, std::move(look)); }

  Kernels& kernels() override { return *kernels_; }
  std::string pci() const override {
    std::array<char, 32> text{};
    TRIREME_CUDA_CALL(cudaDeviceGetPCIBusId(text.data(), int(text.size()), ctx_.device));
    return text.data();
  }
  std::string choices() const override { return product_choices(ctx_); }
  std::string take_choices(std::string_view text) override { return take_product_choices(ctx_, text); }
  GraphMaker* graphs() override { return graphs_.get(); }
  std::unique_ptr<Stamps> stamps() override { return std::make_unique<EventStamps>(compute_.get()); }
  std::unique_ptr<DeviceQueue> queue() override { return std::make_unique<LibraryQueue>(ctx_.device); }

 private:
  // Waits for compute and looks after its collectives. Later waits of the caller return at once.
  void await_compute() {
    if (guards_.any()) await_event(events_.at(events_.record(compute_.get())), guards_);
  }
  SideStream& side(int id) {
    require(id >= 1 && size_t(id) <= streams_.size(), "a stream of another device");
    return *streams_[size_t(id) - 1];
  }
  bool spin_, ordered_;
  CudaContext ctx_;
  OwnedStream compute_;
  StreamEvents events_;
  Guards guards_;
  Staging staging_;
  std::byte* slots_ = nullptr;
  std::unique_ptr<CudaKernels> kernels_;
  std::unique_ptr<CudaGraphMaker> graphs_;
  std::vector<std::unique_ptr<SideStream>> streams_;  // streams 1, 2, ...
};

}  // namespace
}  // namespace trireme::cuda

namespace trireme {

std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options) {
  int index = options.index;
  const cudaDeviceProp p = cuda::nth_device(index);
  return std::make_unique<cuda::CudaDevice>(p, index, options);
}

}  // namespace trireme
