#include "queue_device.h"

#include <set>

#include "base/patience.h"
#include "device/guards.h"
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
  QueueDevice(const std::byte* begin, int64_t bytes, bool ordered, QueueWaits* waits)
      : cpu_(make_cpu_device({.threads = 1})),
        begin_(begin),
        bytes_(bytes),
        ordered_(ordered),
        waits_(waits ? *waits : own_waits_) {}
  std::string_view name() const override { return "cpu"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return cpu_->native(t); }
  std::byte* reserve(int64_t bytes) override { return cpu_->reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { cpu_->release(p, bytes); }
  void copy(const Tensor& dst, const Tensor& src, Stream s) override { cpu_->copy(dst, src, s); }
  void upload(const Tensor& dst, const void* src) override {
    wait_for_compute();
    cpu_->upload(dst, src);
  }
  void download(void* dst, const Tensor& src) override {
    wait_for_compute();
    cpu_->download(dst, src);
  }
  Stream stream(std::string_view name) override { return cpu_->stream(name); }
  Event record(Stream s) override { return cpu_->record(s); }
  void wait(Stream s, Event e) override {
    if (s.id == 0 && e.stream != 0 && e.mark != 0) (orders({e.stream}) ? waits_.of_device : waits_.of_host)++;
    cpu_->wait(s, e);
  }
  void sync(Stream s) override {
    wait_for_compute();
    cpu_->sync(s);
  }
  void enqueue(Stream s, HostTask task) override {
    if (s.id != 0) of_tasks_.insert(s.id);
    cpu_->enqueue(s, task);
  }
  Kernels& kernels() override { return cpu_->kernels(); }
  std::unique_ptr<DeviceQueue> queue() override { return std::make_unique<FakeQueue>(begin_, bytes_); }

  bool orders(Stream s) override { return s.id == 0 || (ordered_ && !of_tasks_.count(s.id)); }
  void queue_after(DeviceQueue&, Stream s) override {
    if (s.id != 0) waits_.of_device++, cpu_->sync(s);  // compute is done when a call returns
  }
  void stream_after(Stream s, DeviceQueue& q, int64_t mark) override {
    waits_.of_device++;
    Patience patience;
    for (; !q.passed(mark); patience.rest()) guards_.look();
    done_ = false;
  }
  void guard(const void* who, std::function<void()> look) override { guards_.set(who, std::move(look)); }

 private:
  // As a GPU's: what compute waited for is looked after once more.
  void wait_for_compute() {
    waits_.of_host++;
    if (!std::exchange(done_, true)) guards_.look();
  }
  std::unique_ptr<Device> cpu_;
  bool done_ = true;
  const std::byte* begin_;
  int64_t bytes_;
  bool ordered_;
  QueueWaits own_waits_;
  QueueWaits& waits_;
  std::set<int> of_tasks_;  // streams that had a task of the host
  Guards guards_;
};

}  // namespace

std::unique_ptr<Device> make_queue_device(const std::byte* begin, int64_t bytes, bool ordered,
                                          QueueWaits* waits) {
  return std::make_unique<QueueDevice>(begin, bytes, ordered, waits);
}

}  // namespace trireme::testing
