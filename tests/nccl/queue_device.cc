#include "queue_device.h"

#include "fake_nccl.h"

namespace trireme::testing {
namespace {

class FakeQueue final : public DeviceQueue {
 public:
  FakeQueue(const std::byte* begin, int64_t bytes) : begin_(begin), bytes_(bytes) {}
  void* handle() override { return &stream_; }
  void enter() override {}
  int64_t mark() override { return stream_.issued.load(); }
  bool passed(int64_t mark) override { return stream_.done.load() >= mark; }
  bool owns(const std::byte* p) const override { return p < begin_ || p >= begin_ + bytes_; }

 private:
  FakeStream stream_;
  const std::byte* begin_;
  int64_t bytes_;
};

class QueueDevice final : public Device {
 public:
  QueueDevice(const std::byte* begin, int64_t bytes)
      : cpu_(make_cpu_device({.threads = 1})), begin_(begin), bytes_(bytes) {}
  std::string_view name() const override { return "cpu"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return cpu_->native(t); }
  std::byte* reserve(int64_t bytes) override { return cpu_->reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { cpu_->release(p, bytes); }
  void copy(const Tensor& dst, const Tensor& src, Stream s) override { cpu_->copy(dst, src, s); }
  void upload(const Tensor& dst, const void* src) override { cpu_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override { cpu_->download(dst, src); }
  Stream stream(std::string_view name) override { return cpu_->stream(name); }
  Event record(Stream s) override { return cpu_->record(s); }
  void wait(Stream s, Event e) override { cpu_->wait(s, e); }
  void sync(Stream s) override { cpu_->sync(s); }
  void enqueue(Stream s, HostTask task) override { cpu_->enqueue(s, task); }
  Kernels& kernels() override { return cpu_->kernels(); }
  std::unique_ptr<DeviceQueue> queue() override { return std::make_unique<FakeQueue>(begin_, bytes_); }

 private:
  std::unique_ptr<Device> cpu_;
  const std::byte* begin_;
  int64_t bytes_;
};

}  // namespace

std::unique_ptr<Device> make_queue_device(const std::byte* begin, int64_t bytes) {
  return std::make_unique<QueueDevice>(begin, bytes);
}

}  // namespace trireme::testing
