// A device: memory, copies, streams, and the kernels of ops.h. Backends: cpu, meta (no data), cuda.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "device/device_queue.h"
#include "device/graphs.h"
#include "device/kernels.h"
#include "device/stamps.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace trireme {

struct DeviceOptions {
  int threads = 0;                  // CPU threads of this rank; 0 = every core this process may use
  std::string_view models = "cpu";  // meta: the device whose scratch and placement it stands for
  // CPU: threads that wait for a stream look for some microseconds before they sleep. Faster where cores are
  // idle meanwhile; where ranks x threads fill them it takes time from those that compute.
  bool spin = false;
  bool bind = false;          // CPU: ranks' threads keep to cores of their own (runtime/rank_threads.h)
  int index = 0;              // CUDA: which of the GPUs that this process sees
  bool deterministic = true;  // no choice of an algorithm follows a clock
  // CUDA: a stream other than compute is a CUDA stream until its first task of the host, so that
  // collectives over NCCL follow it without a thread that waits.
  bool ordered = false;
  bool require_fp8 = false;     // CUDA: a product of 8-bit codes that no 8-bit kernel takes is an error
  bool sm90_attention = false;  // CUDA (meta for it): attention by kernels for sm_90a; refused on other GPUs
  bool graphs = false;  // keeps launches that come again as graphs (replay.h); refused where a device cannot
};

// Thread-compatible: one rank drives its device from its own thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual bool has_data() const = 0;              // false on meta: tensors are addresses only
  virtual std::string pci() const { return {}; }  // of a GPU: "0000:1b:00.0", in either case of letters
  virtual bool native(DType) const = 0;           // are matrix products of this type done by the hardware?

  // One range for an arena, at least 64-byte aligned; contents undefined. Release with the same size.
  virtual std::byte* reserve(int64_t bytes) = 0;
  virtual void release(std::byte*, int64_t bytes) = 0;

  // Does the processor not reach what reserve() gives? Then the host's memory is another (runtime/offload.h).
  virtual bool own_memory() const { return false; }
  // Memory of the host that copy() reaches from any stream, zero at first; pinned where that is faster. On
  // meta addresses. Released with the same size. No room: an error that says how much was asked for.
  virtual std::byte* reserve_host(int64_t bytes);
  virtual void release_host(std::byte*, int64_t bytes);

  // Equal shapes and dtypes, any strides; on another stream than compute it is done when the stream passes
  // it.
  virtual void copy(const Tensor& dst, const Tensor& src, Stream) = 0;
  // Contiguous; synchronous with the host side; dst and src may be the host's memory too. On meta they do
  // nothing (download leaves dst as it was).
  virtual void upload(const Tensor& dst, const void* src) = 0;
  virtual void download(void* dst, const Tensor& src) = 0;

  // Queues of work in order, beside one another. "compute" is id 0; other names ("tp", "dp", "p2p") make
  // theirs when first asked for, the same one ever after. What fails on a stream is thrown at the next
  // enqueue, copy, wait or sync that touches it; it stays failed, and what stood behind is skipped.
  virtual Stream stream(std::string_view name) = 0;
  virtual Event record(Stream) = 0;      // what was issued there so far
  virtual void wait(Stream, Event) = 0;  // what is issued on the stream from here on comes after the event
  virtual void sync(Stream) = 0;         // returns when all that was issued there is done
  virtual void enqueue(Stream, HostTask) = 0;  // on meta nothing runs

  virtual Kernels& kernels() = 0;

  // Between them: an action of `of`, by its number, of the same launches on compute as the last time or
  // nearly so. An action that an error ended needs no end. What is kept of them goes when `of` forgets it.
  virtual void begin_action(const void* of, int64_t action) {}
  virtual void end_action() {}
  virtual void forget_actions(const void* of) {}
  virtual std::optional<ReplayCounts> replayed() const { return {}; }  // none: launches go one by one
  virtual GraphMaker* graphs() { return nullptr; }                     // null: it can keep no launches

  // Which algorithms it took, as a text of them (device/algorithms.h); "" = none. take_choices: takes the
  // same again for problems that stand there. Returns "", or why it does not: they are of another library or
  // device, or were chosen otherwise. Errors as parse_algorithms's.
  virtual std::string choices() const { return {}; }
  virtual std::string take_choices(std::string_view) { return {}; }

  // Times of places on the compute stream. The host's clock, where compute is done when a call returns.
  virtual std::unique_ptr<Stamps> stamps();

  // A new queue for a library's work; null where the device has none (cpu, meta).
  virtual std::unique_ptr<DeviceQueue> queue() { return nullptr; }

  // A queue's work in the order of a stream, without a wait of the host. orders: is the stream's order the
  // device's own? If not, a thread of the host runs it, and may wait. queue_after: what the queue is given
  // from here on comes after what the stream was given. stream_after: what the stream is given from here on
  // comes after the queue's mark. Both require orders(stream) and a queue of this device.
  virtual bool orders(Stream) { return false; }
  virtual void queue_after(DeviceQueue&, Stream) {}
  virtual void stream_after(Stream, DeviceQueue&, int64_t mark) {}
  // While a thread waits for the device it calls `look` now and then, which throws if what is waited for will
  // not come. An empty one ends that.
  virtual void guard(const void* who, std::function<void()> look) {}
};

// "cpu", "meta" or "cuda"; an unknown or absent backend is a bad request that says what is there.
std::unique_ptr<Device> make_device(std::string_view name, const DeviceOptions& = {});
std::unique_ptr<Device> make_cpu_device(const DeviceOptions&);
std::unique_ptr<Device> make_meta_device(const DeviceOptions&);
std::unique_ptr<Device> make_cuda_device(const DeviceOptions&);  // no_cuda.cc where CUDA is not built

}  // namespace trireme
