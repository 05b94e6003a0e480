#include "runtime/offload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace trireme {
namespace {

// A device with memory of its own whose host has room for some ranges and no more.
class FullHost final : public Device {
 public:
  explicit FullHost(int room) : cpu_(make_cpu_device({})), room_(room) {}
  std::string_view name() const override { return "full"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return cpu_->native(t); }
  bool own_memory() const override { return true; }
  std::byte* reserve(int64_t bytes) override { return cpu_->reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { cpu_->release(p, bytes); }
  std::byte* reserve_host(int64_t bytes) override {
    if (taken == room_) bad_request("no host memory of {} bytes", bytes);
    taken++;
    return cpu_->reserve_host(bytes);
  }
  void release_host(std::byte* p, int64_t bytes) override {
    taken--;
    cpu_->release_host(p, bytes);
  }
  void copy(const Tensor& dst, const Tensor& src, Stream s) override { cpu_->copy(dst, src, s); }
  void upload(const Tensor& dst, const void* src) override { cpu_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override { cpu_->download(dst, src); }
  Stream stream(std::string_view n) override { return cpu_->stream(n); }
  Event record(Stream s) override { return cpu_->record(s); }
  void wait(Stream s, Event e) override { cpu_->wait(s, e); }
  void sync(Stream s) override { cpu_->sync(s); }
  void enqueue(Stream s, HostTask task) override { cpu_->enqueue(s, task); }
  Kernels& kernels() override { return cpu_->kernels(); }
  int taken = 0;

 private:
  std::unique_ptr<Device> cpu_;
  int room_;
};

int open_files() {
  int n = 0;
  for (const auto& e : std::filesystem::directory_iterator("/proc/self/fd")) n += e.exists();
  return n;
}

TEST(OffloadStore, WhatWasTakenIsGivenBackWhereTheHostIsFull) {
  const OffloadTo to{testing::TempDir(), false};
  for (int room : {0, 1}) {
    FullHost device(room);
    const int open = open_files();
    EXPECT_THROW(OffloadStore(to, device, 2, 4096), Error) << room;
    EXPECT_EQ(device.taken, 0) << room;
    EXPECT_EQ(open_files(), open) << room;
  }
  FullHost device(2);
  const int open = open_files();
  {
    OffloadStore store(to, device, 2, 4096);
    EXPECT_EQ(device.taken, 2);
    EXPECT_EQ(open_files(), open + 1);
  }
  EXPECT_EQ(device.taken, 0);
  EXPECT_EQ(open_files(), open);
}

}  // namespace
}  // namespace trireme
