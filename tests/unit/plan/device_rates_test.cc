// Rates of devices by the host's clock, and kernels' times with what waiting for them takes taken off.
#include "measure/device_rates.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "measure/calibrate.h"

namespace trireme {
namespace {

// A CPU whose compute is waited for like a GPU's: a sync takes a while whenever something was launched.
class SlowToTell final : public Device {
 public:
  static constexpr double kWait = 2e-3;
  SlowToTell() : inner_(make_device("cpu", {.threads = 1})) {}
  std::string_view name() const override { return "slow"; }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return inner_->native(t); }
  std::byte* reserve(int64_t n) override { return inner_->reserve(n); }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  bool own_memory() const override { return true; }
  void copy(const Tensor& d, const Tensor& s, Stream t) override { inner_->copy(d, s, t); }
  void upload(const Tensor& d, const void* s) override { inner_->upload(d, s); }
  void download(void* d, const Tensor& s) override { inner_->download(d, s); }
  Stream stream(std::string_view n) override { return inner_->stream(n); }
  Event record(Stream s) override { return inner_->record(s); }
  void wait(Stream s, Event e) override { inner_->wait(s, e); }
  void sync(Stream s) override {
    const int64_t launched = inner_->kernels().launches();
    if (s.id == 0 && launched != seen_) std::this_thread::sleep_for(std::chrono::duration<double>(kWait));
    seen_ = launched;
    inner_->sync(s);
  }
  void enqueue(Stream s, HostTask t) override { inner_->enqueue(s, t); }
  Kernels& kernels() override { return inner_->kernels(); }

 private:
  std::unique_ptr<Device> inner_;
  int64_t seen_ = 0;
};

TEST(DeviceRates, AreThoseOfTheDevice) {
  auto device = make_device("cpu", {.threads = 1});
  const DeviceRates r =
      measure_rates(*device, {.side = 256, .copied = 8 << 20, .moved = 1 << 20, .seconds = 0.02});
  EXPECT_GT(r.f32, 1e8);
  EXPECT_EQ(r.bf16 > 0, device->native(DType::bf16));
  EXPECT_GT(r.memory, 1e7);
  EXPECT_EQ(r.to_host, 0);  // its memory is the host's
  SlowToTell own;
  const DeviceRates far =
      measure_rates(own, {.side = 64, .copied = 1 << 20, .moved = 1 << 20, .seconds = 0.01});
  EXPECT_GT(far.to_host, 1e6);
  EXPECT_GT(far.from_host, 1e6);
}

TEST(DeviceRates, KnowWhatWaitingTakes) {
  SlowToTell slow;
  EXPECT_NEAR(waiting_s(slow), SlowToTell::kWait, 0.5 * SlowToTell::kWait);
  auto cpu = make_device("cpu", {.threads = 1});
  EXPECT_LT(waiting_s(*cpu), 1e-4);
}

// Of each op's time what waiting for it took, and no op takes less than nothing.
TEST(Calibration, TakesOffWhatWaitingTakes) {
  Tape tape;
  auto add = [&](int64_t begin, int64_t end, int64_t bytes) {
    Piece& p = tape.pieces.emplace_back();
    p.kind = PieceKind::op, p.name = "add", p.launched = true;
    p.begin_ns = begin, p.end_ns = end, p.cost.bytes_read = bytes;
  };
  add(1000, 51'000, 1000);
  add(60'000, 65'000, 100'000'000);
  SpeedSamples samples;
  samples.add(tape, "bf16", 1, 20e-6);
  const std::vector<SpeedTable> tables = samples.tables();
  ASSERT_EQ(tables.size(), 1u);
  ASSERT_EQ(tables[0].points.size(), 2u);
  EXPECT_NEAR(tables[0].points[0].seconds, 30e-6, 1e-9);
  EXPECT_NEAR(tables[0].points[1].seconds, 1e-9, 1e-12);
}

}  // namespace
}  // namespace trireme
