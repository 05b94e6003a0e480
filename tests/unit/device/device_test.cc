#include "device/device.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"

namespace trireme {
namespace {

std::string refusal(std::string_view name, const DeviceOptions& options = {}) {
  try {
    make_device(name, options);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
}

TEST(MakeDevice, SaysWhatIsThere) {
  EXPECT_NE(refusal("gpu").find("'gpu'; there are cpu, meta"), std::string::npos);
  const std::string cuda = refusal("cuda");  // none where there is a GPU
  EXPECT_TRUE(cuda.empty() || cuda.find("devices that are here: cpu, meta") != std::string::npos) << cuda;
  EXPECT_NE(refusal("meta", {.models = "tpu"}).find("scratch of: cpu, cuda"), std::string::npos);
  EXPECT_NE(refusal("cpu", {.threads = -1}).find("-1"), std::string::npos);
  EXPECT_TRUE(make_device("cpu")->has_data());
  EXPECT_FALSE(make_device("meta")->has_data());
  EXPECT_GE(cpu::make_context({}).threads, 1);
}

TEST(CpuDevice, ReservesAlignedMemory) {
  auto device = make_device("cpu", {.threads = 1});
  for (int64_t bytes : {int64_t(0), int64_t(1), int64_t(4097), int64_t(5) << 20}) {
    std::byte* p = device->reserve(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (2 << 20), 0u);
    if (bytes > 0) p[0] = p[bytes - 1] = std::byte{1};
    device->release(p, bytes);
  }
  EXPECT_THROW(device->reserve(int64_t(1) << 50), Error);
}

TEST(CpuDevice, CopiesAnyStrides) {
  auto device = make_device("cpu", {.threads = 1});
  std::vector<float> from(1000), to(1000);
  for (uint64_t trial = 0; trial < 200; trial++) {
    for (size_t i = 0; i < from.size(); i++) from[i] = float(i + 1), to[i] = 0;
    Tensor src(
        from.data(),
        {int64_t(1 + below(1, trial, 4)), int64_t(1 + below(2, trial, 5)), int64_t(1 + below(3, trial, 6))},
        DType::f32);
    Tensor dst = src;
    dst.data = reinterpret_cast<std::byte*>(to.data());
    auto spread = [&](Tensor& t, uint64_t key) {
      t.stride[2] = 1 + int64_t(below(key, trial, 2));
      t.stride[1] = t.shape[2] * t.stride[2] + int64_t(below(key + 1, trial, 3));
      t.stride[0] = t.shape[1] * t.stride[1] + int64_t(below(key + 2, trial, 3));
    };
    spread(src, 10), spread(dst, 20);
    device->copy(dst, src, {});
    size_t written = 0;
    for (int64_t i = 0; i < src.shape[0]; i++)
      for (int64_t j = 0; j < src.shape[1]; j++)
        for (int64_t k = 0; k < src.shape[2]; k++) {
          auto at = [&](const Tensor& t) {
            return size_t(i * t.stride[0] + j * t.stride[1] + k * t.stride[2]);
          };
          EXPECT_EQ(to[at(dst)], from[at(src)]);
          written++;
        }
    size_t nonzero = 0;
    for (float x : to) nonzero += x != 0;
    EXPECT_EQ(nonzero, written);
  }
  Tensor a(from.data(), {3}, DType::f32), b(to.data(), {4}, DType::f32);
  EXPECT_THROW(device->copy(a, b, {}), Error);
}

TEST(CpuDevice, UploadsAndDownloads) {
  auto device = make_device("cpu", {.threads = 1});
  std::byte* p = device->reserve(64);
  Tensor t(p, {3, 5}, DType::i32);
  std::vector<int32_t> in(15), out(15);
  for (size_t i = 0; i < 15; i++) in[i] = int32_t(i * i + 1);
  device->upload(t, in.data());
  device->download(out.data(), t);
  EXPECT_EQ(in, out);
  device->release(p, 64);
}

// The same step on meta books the same scratch, counts the same cost, and touches nothing.
TEST(MetaDevice, BooksWhatCpuTakes) {
  auto cpu = make_device("cpu", {.threads = 2}), meta = make_device("meta", {.threads = 2});
  constexpr int64_t kBytes = 64 << 20;
  auto run = [&](Device& device) {
    std::byte* base = device.reserve(kBytes);
    Arena arena(base, kBytes);
    device.kernels().attach(&arena);
    Owned a(arena, Bucket::activations, {70, 130}, DType::bf16),
        b(arena, Bucket::weights, {90, 130}, DType::bf16),
        c(arena, Bucket::activations, {70, 90}, DType::bf16), dx(arena, Bucket::grads, {90, 130}, DType::f32);
    for (const Tensor& t : {*a, *b}) device.kernels().run(ZeroArgs{t});
    device.kernels().run(MatmulArgs{.a = *a, .b = *b, .c = *c, .trans_b = true});
    device.kernels().run(MatmulArgs{.a = *c, .b = *a, .c = *dx, .trans_a = true});
    device.release(base, kBytes);
    return std::tuple(arena.ledger().peaks(), arena.high_water(), device.kernels().total(),
                      device.kernels().launches());
  };
  auto real = run(*cpu), planned = run(*meta);
  EXPECT_EQ(real, planned);
  EXPECT_GT(std::get<0>(real)[size_t(Bucket::scratch)], 0);
}

TEST(MetaDevice, RangesDoNotOverlap) {
  auto meta = make_device("meta");
  std::byte* a = meta->reserve(int64_t(3) << 30);
  std::byte* b = meta->reserve(10);
  EXPECT_GE(b - a, int64_t(3) << 30);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  int32_t host = 7;
  meta->download(&host, Tensor(a, {1}, DType::i32));
  meta->upload(Tensor(a, {1}, DType::i32), &host);
  EXPECT_EQ(host, 7);
}

// An observer sees each op once, after it ran, with its outputs.
TEST(Kernels, TellTheObserver) {
  struct Seen : OpObserver {
    std::vector<std::string> ops;
    int outputs = 0;
    void after(std::string_view op, const Cost&, const Outputs& out) override {
      ops.emplace_back(op), outputs += out.n;
    }
  } seen;
  auto device = make_device("cpu", {.threads = 1});
  std::vector<float> x(6, 1), y(6);
  device->kernels().observe(&seen);
  device->kernels().run(AddArgs{Tensor(x.data(), {6}, DType::f32), Tensor(x.data(), {6}, DType::f32),
                                Tensor(y.data(), {6}, DType::f32)});
  device->kernels().observe(nullptr);
  EXPECT_EQ(seen.ops, std::vector<std::string>{"add"});
  EXPECT_EQ(seen.outputs, 1);
  EXPECT_EQ(y[5], 2);
  EXPECT_EQ(device->kernels().total(), (Cost{6, 48, 24}));
}

}  // namespace
}  // namespace trireme
