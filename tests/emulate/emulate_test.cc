#include "emulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "emulated_device.h"
#include "tensor/arena.h"

namespace trireme {
namespace {

using emulate::run;

template <class F>
std::string error_of(const F& f) {
  try {
    f();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Emulation, ThreadsMeetAtBarriersAndShuffles) {
  for (uint64_t order = 0; order < 8; order++) {
    emulate::set_order(order);
    std::vector<int> sums(3 * 96), lanes(3 * 96);
    std::vector<unsigned> odd(3 * 96);
    run({3, 1, 1}, 96, 96 * sizeof(int), [&] {
      int* shared = reinterpret_cast<int*>(emulate::dynamic_shared());
      const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
      shared[threadIdx.x] = int(at);
      __syncthreads();
      const int next = shared[(threadIdx.x + 1) % blockDim.x];
      __syncthreads();
      shared[threadIdx.x] = -1;
      int v = next;
      for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
      sums[at] = v;
      lanes[at] = __shfl_down_sync(~0u, int(threadIdx.x), 5) + 100 * __shfl_up_sync(~0u, int(threadIdx.x), 3);
      odd[at] = __ballot_sync(~0u, threadIdx.x % 2 == 1);
    });
    for (int t = 0; t < 96; t++) {
      int want = 0;
      for (int l = 0; l < 32; l++) want += 96 + (t / 32 * 32 + l + 1) % 96;  // of block 1
      EXPECT_EQ(sums[size_t(96 + t)], want);
      const int lane = t % 32, down = lane + 5 < 32 ? t + 5 : t, up = lane >= 3 ? t - 3 : t;
      EXPECT_EQ(lanes[size_t(t)], down + 100 * up);
      EXPECT_EQ(odd[size_t(t)], 0xaaaaaaaau);
    }
  }
  emulate::set_order(0);
}

TEST(Emulation, AnOrderThatMattersIsSeen) {
  auto neighbours = [](uint64_t order) {  // without the barrier between write and read
    emulate::set_order(order);
    std::vector<int> out(64);
    run({1, 1, 1}, 64, 64 * sizeof(int), [&] {
      int* shared = reinterpret_cast<int*>(emulate::dynamic_shared());
      shared[threadIdx.x] = int(threadIdx.x);
      out[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
    });
    emulate::set_order(0);
    return out;
  };
  EXPECT_NE(neighbours(0), neighbours(1));
  EXPECT_EQ(neighbours(2), neighbours(2));
}

TEST(Emulation, BlocksStartWithNothing) {
  std::vector<unsigned> found(2);
  run({2, 1, 1}, 32, 4, [&] {
    auto* shared = reinterpret_cast<unsigned*>(emulate::dynamic_shared());
    if (threadIdx.x == 0) found[blockIdx.x] = *shared, *shared = 7;
  });
  EXPECT_EQ(found, (std::vector<unsigned>{~0u, ~0u}));
}

TEST(Emulation, SaysWhatCannotGoOn) {
  EXPECT_NE(error_of([] {
              run({1, 1, 1}, 64, 0, [] {
                if (threadIdx.x < 40) __syncthreads();
              });
            }).find("40 threads wait at a barrier of the block, 0 at a warp's, 24 have returned"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              run({1, 1, 1}, 32, 0, [] {
                if (threadIdx.x == 3) return;
                (void)__shfl_xor_sync(~0u, 1, 1);
              });
            }).find("0 threads wait at a barrier of the block, 31 at a warp's, 1 have returned"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              run({1, 1, 1}, 32, 0, [] { (void)__shfl_xor_sync(1u, 1, 1); });
            }).find("all take part"),
            std::string::npos);
  EXPECT_NE(error_of([] { run({1, 1, 1}, 33, 0, [] {}); }).find("whole warps"), std::string::npos);
  EXPECT_NE(error_of([] { run({1, 1, 1}, 32, 1 << 20, [] {}); }).find("shared memory"), std::string::npos);
  alignas(16) std::byte bytes[32];
  EXPECT_NE(error_of([&] {
              run({1, 1, 1}, 32, 0, [&] { emulate::require_aligned(bytes + threadIdx.x / 31 * 4, 16); });
            }).find("odd address"),
            std::string::npos);
  int ran = 0;
  run({2, 2, 2}, 32, 0, [&] { ran++; });  // and all is well after
  EXPECT_EQ(ran, 8 * 32);
}

// What two devices make of the same operands.
class OnBoth {
 public:
  OnBoth() : devices_{make_cpu_device({.threads = 1}), make_emulated_device()} {}
  // f(kernels, device) is called with each; the tensors that it returns must have equal bits.
  template <class F>
  void expect_equal(const F& f) {
    std::vector<std::byte> want;
    for (auto& d : devices_) {
      std::vector<std::byte> bits;
      for (const Tensor& t : f(d->kernels())) bits.insert(bits.end(), t.data, t.data + t.bytes());
      if (d == devices_[0])
        want = bits;
      else
        EXPECT_TRUE(bits == want);
    }
  }
  std::unique_ptr<Device> devices_[2];
};

template <class T>
std::vector<T> normals(uint64_t key, int64_t n) {
  std::vector<T> v;
  for (int64_t i = 0; i < n; i++) v.push_back(T(float(normal(key, uint64_t(i)))));
  return v;
}
template <class T>
Tensor tensor_of(std::vector<T>& v) {
  return Tensor(v.data(), {int64_t(v.size())}, dtype_of<T>);
}

TEST(CudaKernels, DropOutWhatTheCpuDrops) {
  OnBoth both;
  for (int64_t n : {int64_t(1), int64_t(7), int64_t(1000), int64_t(4099)})
    for (int64_t first : {int64_t(0), int64_t(5), int64_t(1) << 33}) {
      auto x = normals<bf16>(1, n), residual = normals<bf16>(2, n);
      std::vector<bf16> y[2] = {std::vector<bf16>(size_t(n)), std::vector<bf16>(size_t(n))};
      int k = 0;
      both.expect_equal([&](Kernels& kernels) {
        kernels.run(DropoutArgs{.x = tensor_of(x),
                                .residual = tensor_of(residual),
                                .y = tensor_of(y[k]),
                                .mask = {.rate = 0.3, .key = 99, .first = first}});
        return std::vector<Tensor>{tensor_of(y[k++])};
      });
    }
}

TEST(CudaKernels, StepAndSumSquaresToTheCpusBits) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this processor has no fused multiply-add";
#endif
  OnBoth both;
  const int64_t n = 2 * 4096 + 77;
  auto grad = normals<bf16>(3, n);
  both.expect_equal([&](Kernels& kernels) {
    // Kept for the comparison: the tensors point into them.
    static std::vector<float> master, m, v;
    static std::vector<bf16> weight;
    static std::vector<double> sums;
    master = normals<float>(4, n), m = normals<float>(5, n), v = normals<float>(6, n);
    for (float& e : v) e *= e;
    weight.assign(size_t(n), bf16(0.0f)), sums.assign(3, 0);
    kernels.run(AdamWArgs{.master = tensor_of(master),
                          .exp_avg = tensor_of(m),
                          .exp_avg_sq = tensor_of(v),
                          .grad = tensor_of(grad),
                          .weight = tensor_of(weight),
                          .lr = 3e-3f,
                          .weight_decay = 0.1f,
                          .bias1 = 0.271f,
                          .bias2 = 0.1426f,
                          .grad_scale = 0.7f});
    kernels.run(SquareSumsArgs{.x = tensor_of(master), .sums = tensor_of(sums)});
    return std::vector<Tensor>{tensor_of(master), tensor_of(m), tensor_of(v), tensor_of(weight),
                               tensor_of(sums)};
  });
}

// Blocks as the recipes have them and such as edges and odd sizes cut off.
struct QuantiseProblem {
  int64_t rows, cols;
  Fp8Blocks blocks;
  float amax = -1, seen = -1;  // below 0: none
  int margin = 0;
};

TEST(CudaKernels, QuantiseToTheCpusBits) {
  // Every bf16 there is, with what is not finite; f32 of all magnitudes.
  std::vector<bf16> all(1 << 16);
  for (size_t i = 0; i < all.size(); i++) all[i].bits = uint16_t(i * 40503);
  std::vector<float> floats(1 << 16);
  for (size_t i = 0; i < floats.size(); i++)
    floats[i] = std::ldexp(float(normal(8, i)), int(below(9, i, 60)) - 30);
  const QuantiseProblem problems[] = {{1, 1, {}},
                                      {256, 256, {}},
                                      {37, 129, {}, -1, 0.25f, 2},
                                      {37, 129, {}, 0.03f, 0.5f},
                                      {37, 129, {}, 0.03f},
                                      {37, 129, {}, 0, 0, 1},
                                      {64, 1024, {1, 128}},
                                      {7, 300, {1, 128}, -1, 0},
                                      {300, 70, {128, 1}, -1, 2},
                                      {131, 260, {128, 128}},
                                      {50, 77, {3, 5}, -1, 0},
                                      {129, 65, {64, 64}}};
  OnBoth both;
  std::array<int64_t, 256> times{};
  for (const auto& p : problems)
    for (Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2})
      for (bool wide : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {}, blocks of {} x {}, {}", p.rows, p.cols, p.blocks.rows,
                                 p.blocks.cols, wide ? "f32" : "bf16"));
        const Tensor x(wide ? tensor_of(floats).data : tensor_of(all).data, {p.rows, p.cols},
                       wide ? DType::f32 : DType::bf16);
        std::vector<uint8_t> codes[2];
        std::vector<float> scale[2], amax{p.amax}, seen[2] = {{p.seen}, {p.seen}};
        int k = 0;
        both.expect_equal([&](Kernels& kernels) {
          codes[k].assign(size_t(p.rows * p.cols), 0xaa);
          const Shape scales = p.blocks.scales(p.rows, p.cols);
          scale[k].assign(size_t(scales.numel()), -1.0f);
          kernels.run(QuantiseArgs{.x = x,
                                   .codes = tensor_of(codes[k]).view(x.shape),
                                   .scale = tensor_of(scale[k]).view(scales),
                                   .amax = p.amax < 0 ? Tensor() : tensor_of(amax),
                                   .seen = p.seen < 0 ? Tensor() : tensor_of(seen[k]),
                                   .format = format,
                                   .blocks = p.blocks,
                                   .margin = p.margin});
          const int now = k++;
          return std::vector<Tensor>{tensor_of(codes[now]), tensor_of(scale[now]), tensor_of(seen[now])};
        });
        for (uint8_t c : codes[1]) times[c]++;
      }
  EXPECT_EQ(std::count(times.begin(), times.end(), 0), 0);  // all 256 codes were among them
}

// Runs an op with scratch at hand. Returns its error, "" = none.
template <class Args>
std::string error_of_op(Device& device, const Args& args) {
  std::vector<std::byte> memory(1 << 20);
  Arena arena(memory.data(), int64_t(memory.size()));
  device.kernels().attach(&arena);
  const std::string error = error_of([&] { device.kernels().run(args); });
  device.kernels().detach(&arena);
  return error;
}

// c [M, N] of codes [M, K] and [N, K], all ones, by one scale an operand.
std::string product_of_codes(Device& device, int64_t m, int64_t n, int64_t k) {
  std::vector<uint8_t> a(size_t(m * k), 0x38), b(size_t(n * k), 0x38);  // 1 in e4m3
  std::vector<float> scale{1}, c(size_t(m * n));
  const std::string error = error_of_op(device, Fp8MatmulArgs{.a = tensor_of(a).view({m, k}),
                                                              .scale_a = tensor_of(scale).view({1, 1}),
                                                              .b = tensor_of(b).view({n, k}),
                                                              .scale_b = tensor_of(scale).view({1, 1}),
                                                              .c = tensor_of(c).view({m, n}),
                                                              .trans_b = true});
  if (error.empty()) {
    EXPECT_EQ(c.back(), float(k));
  }
  return error;
}

TEST(CudaKernels, SayWhichKernelTookAProductOfCodes) {
  auto hopper = make_emulated_device(true), ampere = make_emulated_device();
  EXPECT_EQ(product_of_codes(*hopper, 32, 16, 48), "");
  EXPECT_EQ(hopper->kernels().last_kernel(), "8-bit one");
  EXPECT_EQ(product_of_codes(*hopper, 32, 24, 48), "");  // 24: no multiple of 16
  EXPECT_EQ(hopper->kernels().last_kernel(), "bf16");
  EXPECT_EQ(product_of_codes(*hopper, 16, 16, 16), "");
  const auto taken = hopper->kernels().kernels_taken();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].launches, 2);
  EXPECT_EQ(taken[1].launches, 1);
  EXPECT_EQ(product_of_codes(*ampere, 32, 16, 48), "");
  EXPECT_EQ(ampere->kernels().last_kernel(), "bf16");
}

// A product of bf16 that another op runs inside itself leaves that op its own name.
TEST(CudaKernels, SayWhichKernelTookAProduct) {
  auto device = make_emulated_device();
  std::vector<float> a(6, 1), b(6, 1), c(4);
  EXPECT_EQ(error_of_op(*device, MatmulArgs{.a = tensor_of(a).view({2, 3}),
                                            .b = tensor_of(b).view({3, 2}),
                                            .c = tensor_of(c).view({2, 2})}),
            "");
  EXPECT_EQ(device->kernels().last_kernel(), "simt");
  EXPECT_EQ(product_of_codes(*device, 32, 16, 48), "");
  const auto taken = device->kernels().kernels_taken();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].op, "matmul");
  EXPECT_EQ(taken[0].kernel, "simt");
  EXPECT_EQ(taken[1].op, "fp8_matmul");
  EXPECT_EQ(taken[1].kernel, "bf16");
  EXPECT_EQ(taken[1].launches, 1);
}

TEST(CudaKernels, EndWhere8BitKernelsAreRequiredAndNoneTakesTheProduct) {
  auto hopper = make_emulated_device(true, true), ampere = make_emulated_device(false, true);
  EXPECT_EQ(product_of_codes(*hopper, 32, 16, 48), "");
  EXPECT_EQ(product_of_codes(*hopper, 32, 24, 48),
            "precision.fp8_kernels = \"required\": op 'fp8_matmul', c f32 [32, 24], 48 summed: no 8-bit "
            "tensor cores take it on this GPU (sm_90), and 'bf16' would; give \"auto\"");
  EXPECT_NE(product_of_codes(*ampere, 32, 16, 48).find("(sm_80)"), std::string::npos);
}

TEST(CudaKernels, NameTheFirstBadIdAtTheNextSync) {
  auto device = make_emulated_device();
  auto cpu = make_cpu_device({.threads = 1});
  std::vector<int32_t> good(700, 2), bad = good;
  bad[300] = 9, bad[513] = -4;
  auto table = normals<float>(1, 5 * 3);
  std::vector<float> y(700 * 3);
  auto look_up = [&](Device& d, std::vector<int32_t>& ids) {
    d.kernels().run(EmbeddingArgs{
        .ids = tensor_of(ids), .table = tensor_of(table).view({5, 3}), .y = tensor_of(y).view({700, 3})});
  };
  const std::string want = error_of([&] { look_up(*cpu, bad); });
  EXPECT_EQ(want, "embedding: id 9 at place 300 is out of range: the table has ids [0, 5)");
  for (int64_t launches : {int64_t(1), int64_t(3000)}) {  // more than there are slots
    look_up(*device, good);
    const std::string got = error_of([&] {
      look_up(*device, bad);
      for (int64_t i = 1; i < launches; i++) look_up(*device, good);
      device->sync({});
    });
    EXPECT_EQ(got, want);
    EXPECT_EQ(error_of([&] { device->sync({}); }), "");
  }
}

// Rows of experts are another number each step, and so another kind of check: a long run has more of them
// than there are slots.
TEST(CudaKernels, LookAtMoreKindsOfIdsThanThereAreSlots) {
  auto device = make_emulated_device();
  constexpr int64_t kRows = 2600;
  std::vector<int32_t> good(3, 0), bad{0, 1, 7000};
  std::vector<float> table(size_t(kRows), 1), y(3);
  auto look_up = [&](std::vector<int32_t>& ids, int64_t rows) {
    device->kernels().run(EmbeddingArgs{.ids = tensor_of(ids),
                                        .table = Tensor(table.data(), {rows, 1}, DType::f32),
                                        .y = tensor_of(y).view({3, 1})});
  };
  for (int64_t rows = 1; rows < kRows; rows++) look_up(good, rows);
  device->sync({});
  for (int64_t rows : {int64_t(2), kRows - 1}) {
    look_up(bad, rows);
    look_up(good, kRows);
    EXPECT_EQ(error_of([&] { device->sync({}); }),
              fmt::format("embedding: id 7000 at place 2 is out of range: the table has ids [0, {})", rows));
  }
  // Among many kinds, none of them looked at since.
  const std::string late = error_of([&] {
    look_up(bad, 5);
    for (int64_t rows = 6; rows < kRows; rows++) look_up(good, rows);
    device->sync({});
  });
  EXPECT_EQ(late, "embedding: id 7000 at place 2 is out of range: the table has ids [0, 5)");
}

}  // namespace
}  // namespace trireme
