#include "measure/device_rates.h"

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "base/timed.h"

namespace trireme {
namespace {

// Of the device, until it goes.
class Reserved {
 public:
  Reserved(Device& device, int64_t bytes, bool host = false)
      : device_(device),
        bytes_(bytes),
        host_(host),
        data_(host ? device.reserve_host(bytes) : device.reserve(bytes)) {}
  Reserved(const Reserved&) = delete;
  ~Reserved() { host_ ? device_.release_host(data_, bytes_) : device_.release(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  Device& device_;
  int64_t bytes_;
  bool host_;
  std::byte* data_;
};

// Seconds of one call, of as many as take about so long, after one that warms up.
template <class Call>
double seconds_each(Device& device, double about, Stream stream, const Call& call) {
  constexpr int kMost = 1000;
  call();
  device.sync(stream);
  double begin = now_s();
  call();
  device.sync(stream);
  const double once = std::max(1e-7, now_s() - begin);
  const int times = int(std::clamp(about / once, 1.0, double(kMost)));
  begin = now_s();
  for (int i = 0; i < times; i++) call();
  device.sync(stream);
  return std::max(1e-9, now_s() - begin) / times;
}

// Normals, the same in every 64 rows: products of zeros switch few transistors, and a GPU then clocks higher
// than it does in training.
void fill_with_normals(Device& device, const Tensor& y, uint64_t key) {
  const int64_t cols = y.shape[1], rows = std::min<int64_t>(64, y.shape[0]);
  std::vector<float> values(size_t(rows * cols));
  for (size_t i = 0; i < values.size(); i++) values[i] = float(normal(key, i));
  Reserved range(device, rows * cols * size_of(DType::f32));
  const Tensor some(range.data(), {rows, cols}, DType::f32);
  device.upload(some, values.data());
  for (int64_t at = 0; at < y.shape[0]; at += rows) {
    const int64_t n = std::min(rows, y.shape[0] - at);
    device.kernels().run(CastArgs{.src = some.narrow(0, 0, n), .dst = y.narrow(0, at, n)});
  }
  device.sync({});
}

double product_rate(Device& device, DType t, int64_t side, double about) {
  const int64_t one = side * side * size_of(t);
  Reserved range(device, 3 * one);
  auto at = [&](int i) { return Tensor(range.data() + i * one, {side, side}, t); };
  const MatmulArgs args{.a = at(0), .b = at(1), .c = at(2), .bias = {}, .residual = {}};
  Kernels& k = device.kernels();
  for (int i = 0; i < 2; i++) fill_with_normals(device, at(i), uint64_t(i) + 1);
  const int64_t scratch = std::max<int64_t>(64, (k.scratch_of(args) + 63) / 64 * 64);
  Reserved room(device, scratch);
  Arena arena(room.data(), scratch);
  k.attach(&arena);
  const double s = seconds_each(device, about, {}, [&] { k.run(args); });
  k.detach(&arena);
  return 2.0 * double(side) * double(side) * double(side) / s;
}

}  // namespace

DeviceRates measure_rates(Device& device, const DeviceRatesRequest& o) {
  DeviceRates r;
  r.f32 = product_rate(device, DType::f32, o.side, o.seconds);
  if (device.native(DType::bf16)) r.bf16 = product_rate(device, DType::bf16, o.side, o.seconds);
  {
    Reserved range(device, 2 * o.copied);
    const Tensor from(range.data(), {o.copied}, DType::u8),
        to(range.data() + o.copied, {o.copied}, DType::u8);
    device.kernels().run(ZeroArgs{.y = from});
    r.memory = 2 * double(o.copied) / seconds_each(device, o.seconds, {}, [&] { device.copy(to, from, {}); });
  }
  if (!device.own_memory()) return r;
  Reserved here(device, o.moved, true), there(device, o.moved);
  const Tensor host(here.data(), {o.moved}, DType::u8), own(there.data(), {o.moved}, DType::u8);
  device.kernels().run(ZeroArgs{.y = own});
  device.sync({});
  const Stream beside = device.stream("host");
  r.to_host =
      double(o.moved) / seconds_each(device, o.seconds, beside, [&] { device.copy(host, own, beside); });
  r.from_host =
      double(o.moved) / seconds_each(device, o.seconds, beside, [&] { device.copy(own, host, beside); });
  return r;
}

double waiting_s(Device& device) {
  constexpr int kTimes = 200;
  Reserved range(device, 64);
  const Tensor little(range.data(), {16}, DType::f32);
  Kernels& k = device.kernels();
  std::vector<double> waited;
  for (int i = 0; i < kTimes; i++) {
    const double begin = now_s();
    k.run(ZeroArgs{.y = little});
    device.sync({});
    waited.push_back(now_s() - begin);
  }
  const double begin = now_s();
  for (int i = 0; i < kTimes; i++) k.run(ZeroArgs{.y = little});
  device.sync({});
  return std::max(0.0, median(waited) - (now_s() - begin) / kTimes);
}

}  // namespace trireme
