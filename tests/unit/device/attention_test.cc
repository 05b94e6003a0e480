// FlashAttention on CPU against naive attention in double, what its tiles move against the closed form, and
// what it keeps in memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "device/attention_traffic.h"
#include "device/cpu/attention.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/targets.h"
#include "device/device.h"
#include "hwy/targets.h"
#include "sanitized.h"

namespace trireme {
namespace {

namespace att = cpu::attention;

struct Size {
  int64_t batch, seq, heads, kv_heads, dim;
  bool causal;
  int block_q = 0, block_k = 0;
  FlashVersion version = FlashVersion::fa2;
};
std::ostream& operator<<(std::ostream& out, const Size& s) {
  return out << "B" << s.batch << " S" << s.seq << " H" << s.heads << " KV" << s.kv_heads << " D" << s.dim
             << (s.causal ? " causal" : "") << " blocks " << s.block_q << "x" << s.block_k
             << (s.version == FlashVersion::fa1 ? " FA1" : " FA2");
}

double value(double x) {
  return x;
}
double value(float x) {
  return x;
}
double value(bf16 x) {
  return float(x);
}

// Operands of one problem: q, k, v are columns of one fused [B*S, (H + 2 KV) D + 3] matrix and dq, dk, dv of
// another, as the model has them; the 3 spare columns must stay as they were.
template <class T>
struct Problem {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr int64_t kSpare = 3;
  Size size;
  int64_t width;
  std::vector<T> qkv, o, dout, dqkv;
  std::vector<Acc> lse;
  float scale;

  explicit Problem(const Size& s, unsigned seed = 1, double spread = 1.0)
      : size(s),
        width((s.heads + 2 * s.kv_heads) * s.dim + kSpare),
        qkv(size_t(s.batch * s.seq * width)),
        o(size_t(s.batch * s.seq * s.heads * s.dim)),
        dout(o.size()),
        dqkv(qkv.size(), T(7)),
        lse(size_t(s.batch * s.heads * s.seq)),
        scale(float(spread / std::sqrt(double(s.dim)))) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (T& x : qkv) x = T(normal(rng));
    for (T& x : dout) x = T(normal(rng));
  }
  Tensor part(std::vector<T>& m, int64_t first_head, int64_t heads) {
    Tensor t(m.data() + first_head * size.dim, {size.batch, size.seq, heads, size.dim}, dtype_of<T>);
    t.stride = {size.seq * width, width, size.dim, 1};
    return t;
  }
  Tensor whole(std::vector<T>& m) {
    return Tensor(m.data(), {size.batch, size.seq, size.heads, size.dim}, dtype_of<T>);
  }
  Tensor rows() { return Tensor(lse.data(), {size.batch, size.heads, size.seq}, dtype_of<Acc>); }
  AttentionArgs forward() {
    int64_t h = size.heads, kv = size.kv_heads;
    return {.q = part(qkv, 0, h),
            .k = part(qkv, h, kv),
            .v = part(qkv, h + kv, kv),
            .o = whole(o),
            .lse = rows(),
            .scale = scale,
            .causal = size.causal,
            .version = size.version,
            .block_q = size.block_q,
            .block_k = size.block_k};
  }
  AttentionBackwardArgs backward() {
    int64_t h = size.heads, kv = size.kv_heads;
    return {.q = part(qkv, 0, h),
            .k = part(qkv, h, kv),
            .v = part(qkv, h + kv, kv),
            .o = whole(o),
            .lse = rows(),
            .dout = whole(dout),
            .dq = part(dqkv, 0, h),
            .dk = part(dqkv, h, kv),
            .dv = part(dqkv, h + kv, kv),
            .scale = scale,
            .causal = size.causal,
            .block_q = size.block_q,
            .block_k = size.block_k};
  }
};

struct Aligned {
  explicit Aligned(int64_t bytes)
      : size(bytes), data(static_cast<std::byte*>(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64)))) {
    std::fill(data.get(), data.get() + bytes, std::byte(0xff));  // NaN in every float type
  }
  Tensor tensor() const { return Tensor(data.get(), Shape{size}, DType::u8); }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  int64_t size;
  std::unique_ptr<std::byte, Free> data;
};

template <class Args>
void launch(const Args& p, int threads = 1) {
  check(p);
  cpu::Context ctx{threads};
  Aligned scratch(cpu::scratch_bytes(p, ctx));
  cpu::launch(p, scratch.tensor(), ctx);
}
// On given tile functions.
template <class Acc>
void launch(const AttentionArgs& p, const att::Tiles<Acc>& tiles, int threads = 1) {
  Aligned scratch(att::scratch_bytes(p, tiles, {threads}));
  att::forward(p, tiles, scratch.tensor(), {threads});
}
template <class Acc>
void launch(const AttentionBackwardArgs& p, const att::Tiles<Acc>& tiles, int threads = 1) {
  Aligned scratch(att::scratch_bytes(p, tiles, {threads}));
  att::backward(p, tiles, scratch.tensor(), {threads});
}

// Naive attention in double, with whole rows of scores: o, lse, dq, dk, dv with the layouts of Problem.
struct Reference {
  std::vector<double> o, lse, dqkv;

  template <class T>
  explicit Reference(const Problem<T>& p) : o(p.o.size()), lse(p.lse.size()), dqkv(p.qkv.size(), 7.0) {
    const Size& z = p.size;
    for (int64_t b = 0; b < z.batch; b++)
      for (int64_t s = 0; s < z.seq; s++)
        for (int64_t c = 0; c < p.width - Problem<T>::kSpare; c++)
          dqkv[size_t((b * z.seq + s) * p.width + c)] = 0;
    for (int64_t b = 0; b < z.batch; b++)
      for (int64_t h = 0; h < z.heads; h++)
        for (int64_t i = 0; i < z.seq; i++) row(p, b, h, i);
  }

 private:
  template <class T>
  void row(const Problem<T>& p, int64_t b, int64_t h, int64_t i) {
    const Size& z = p.size;
    int64_t kv = h / (z.heads / z.kv_heads), d = z.dim, seen = z.causal ? i + 1 : z.seq;
    auto at = [&](int64_t s, int64_t head) { return (b * z.seq + s) * p.width + head * d; };
    auto dot = [&](int64_t x, int64_t y) {
      double sum = 0;
      for (int64_t e = 0; e < d; e++) sum += value(p.qkv[size_t(x + e)]) * value(p.qkv[size_t(y + e)]);
      return sum;
    };
    int64_t q = at(i, h), out = ((b * z.seq + i) * z.heads + h) * d;
    std::vector<double> prob(static_cast<size_t>(seen));
    double m = -INFINITY, l = 0, delta = 0;
    for (int64_t j = 0; j < seen; j++)
      m = std::max(m, prob[size_t(j)] = p.scale * dot(q, at(j, z.heads + kv)));
    for (double& x : prob) l += x = std::exp(x - m);
    lse[size_t((b * z.heads + h) * z.seq + i)] = m + std::log(l);
    for (int64_t j = 0; j < seen; j++)
      for (int64_t e = 0; e < d; e++)
        o[size_t(out + e)] +=
            prob[size_t(j)] / l * value(p.qkv[size_t(at(j, z.heads + z.kv_heads + kv) + e)]);
    auto g = [&](int64_t e) { return value(p.dout[size_t(out + e)]); };
    for (int64_t e = 0; e < d; e++) delta += g(e) * o[size_t(out + e)];
    for (int64_t j = 0; j < seen; j++) {
      int64_t k = at(j, z.heads + kv), v = at(j, z.heads + z.kv_heads + kv);
      double pj = prob[size_t(j)] / l, dp = 0;
      for (int64_t e = 0; e < d; e++) dp += g(e) * value(p.qkv[size_t(v + e)]);
      double ds = pj * (dp - delta) * p.scale;
      for (int64_t e = 0; e < d; e++) {
        dqkv[size_t(v + e)] += pj * g(e);
        dqkv[size_t(q + e)] += ds * value(p.qkv[size_t(k + e)]);
        dqkv[size_t(k + e)] += ds * value(p.qkv[size_t(q + e)]);
      }
    }
  }
};

// Largest difference, in units of the value plus the root mean square of all (at least 1e-3).
template <class T>
double error(const std::vector<T>& got, const std::vector<double>& want) {
  double worst = 0, square = 0;
  for (double x : want) square += x * x;
  double rms = std::max(1e-3, std::sqrt(square / double(want.size())));
  for (size_t i = 0; i < want.size(); i++) {
    double e = std::abs(value(got[i]) - want[i]) / (std::abs(want[i]) + rms);
    worst = e > worst || std::isnan(e) ? e : worst;
  }
  return worst;
}

struct Bounds {
  double o, lse, grad;
};

template <class T>
void expect_close(const Problem<T>& p, const Reference& want, const Bounds& b, bool backward = true) {
  EXPECT_LE(error(p.o, want.o), b.o) << p.size;
  EXPECT_LE(error(p.lse, want.lse), b.lse) << p.size;
  if (backward) {
    EXPECT_LE(error(p.dqkv, want.dqkv), b.grad) << p.size;
  }
}

const std::vector<Size> kSizes = {
    {1, 1, 1, 1, 1, true},
    {1, 1, 1, 1, 64, false},
    {2, 2, 2, 1, 3, true},
    {1, 17, 3, 3, 40, true},
    {2, 33, 4, 2, 80, false},
    {1, 100, 2, 2, 64, true},
    {1, 129, 6, 2, 37, true},
    {1, 64, 2, 1, 256, true},
    {1, 257, 2, 2, 64, true},
    {2, 70, 3, 1, 16, false},
    {1, 300, 1, 1, 48, true, 64, 32},
    {1, 53, 2, 1, 24, true, 7, 5},
    {1, 53, 2, 1, 24, false, 7, 5},
    {1, 90, 2, 2, 20, true, 16, 48},
    {1, 90, 2, 2, 20, true, 48, 16},
    {1, 61, 2, 2, 128, true, 1, 1},
    {1, 150, 1, 1, 72, false, 100, 60},
    {1, 150, 2, 1, 96, true, 33, 70},
};

// Both versions at every size; under sanitizers, ten times slower, in turn.
template <class T>
void run_all_sizes(const Bounds& bounds) {
  for (size_t i = 0; i < kSizes.size(); i++) {
    Size size = kSizes[i];
    unsigned seed = unsigned(size.seq + size.dim);
    const Reference want{Problem<T>(size, seed)};
    for (FlashVersion version : {FlashVersion::fa1, FlashVersion::fa2}) {
      if (test::kSanitized && (version == FlashVersion::fa2) != (i % 2 == 1)) continue;
      size.version = version;
      Problem<T> p(size, seed);
      launch(p.forward());
      launch(p.backward());
      expect_close(p, want, bounds);
    }
  }
}

TEST(attention, f64_equals_naive_attention) {
  run_all_sizes<double>({1e-14, 1e-14, 1e-13});
}
TEST(attention, f32_is_within_its_bounds) {
  run_all_sizes<float>({6e-6, 1e-6, 1e-5});
}
TEST(attention, bf16_is_within_its_bounds) {
  run_all_sizes<bf16>({1.5e-2, 3e-5, 3e-2});
}

// Scores near +-60: nothing overflows, and the largest wins.
TEST(attention, large_scores_stay_finite) {
  Problem<float> p({1, 70, 2, 1, 32, true}, 5, 12.0);
  launch(p.forward());
  launch(p.backward());
  expect_close(p, Reference(p), {2e-4, 1e-5, 1e-3});
}

TEST(attention, bf16_operands_in_f32_arithmetic) {
  for (Size size : kSizes) {
    Problem<bf16> p(size, 3);
    launch(p.forward(), att::tiles_bf16_by_f32());
    launch(p.backward(), att::tiles_bf16_by_f32());
    expect_close(p, Reference(p), {1.5e-2, 1e-5, 3e-2});
  }
}

// Both sets of bf16 that this processor may have; the launch takes but one of them.
TEST(attention, bf16_on_vectors_and_in_tile_registers) {
  if (!cpu::multiplies_natively(DType::bf16)) GTEST_SKIP() << "this processor has no AVX512-BF16";
  for (Size size : kSizes) {
    const Reference want{Problem<bf16>(size, 3)};
    for (const auto* tiles : {att::tiles_bf16(), att::tiles_amx()}) {
      if (!tiles) continue;
      for (FlashVersion version : {FlashVersion::fa1, FlashVersion::fa2}) {
        size.version = version;
        Problem<bf16> p(size, 3);
        launch(p.forward(), *tiles);
        launch(p.backward(), *tiles);
        expect_close(p, want, {1.5e-2, 3e-5, 3e-2});
      }
    }
  }
}

// Every instruction set that the f32 tiles were compiled for and this processor has.
TEST(attention, every_f32_target_agrees) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const Size& size : {kSizes[3], kSizes[6], kSizes[13]}) {
      Problem<float> p(size, 4);
      launch(p.forward(), att::tiles_f32());
      launch(p.backward(), att::tiles_f32());
      SCOPED_TRACE(hwy::TargetName(target));
      expect_close(p, Reference(p), {6e-6, 1e-6, 1e-5});
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

template <class T>
std::vector<std::byte> bits(const std::vector<T>& v) {
  auto* p = reinterpret_cast<const std::byte*>(v.data());
  return {p, p + v.size() * sizeof(T)};
}

// Also more threads than work, and blocks of q that thread counts and sizes would cut otherwise.
TEST(attention, bits_depend_on_neither_threads_nor_query_blocks) {
  for (Size size : {Size{2, 150, 4, 2, 40, true, 0, 48}, Size{1, 70, 1, 1, 64, false, 0, 32}}) {
    Problem<bf16> one(size);
    launch(one.forward());
    launch(one.backward());
    for (auto [threads, block_q] : {std::pair{2, 0}, {3, 0}, {8, 0}, {2, 16}, {1, 64}}) {
      size.block_q = block_q;
      Problem<bf16> p(size);
      launch(p.forward(), threads);
      EXPECT_EQ(bits(p.o), bits(one.o)) << size << ", " << threads << " threads";
      EXPECT_EQ(bits(p.lse), bits(one.lse));
      if (block_q > 0) continue;  // dk, dv sum over query blocks: one rounding chain whatever their size, but
      launch(p.backward(), threads);  // only the forward pass promises it
      EXPECT_EQ(bits(p.dqkv), bits(one.dqkv)) << size << ", " << threads << " threads";
    }
  }
}

TEST(attention, nan_reaches_the_rows_that_see_it) {
  Problem<float> p({1, 40, 1, 1, 16, true});
  p.qkv[size_t(20 * p.width + 16)] = std::nanf("");  // k of row 20
  launch(p.forward());
  for (size_t i = 0; i < 40; i++) EXPECT_EQ(std::isnan(p.o[i * 16]), i >= 20) << i;
}

std::string shown(const TileTraffic& t) {
  return fmt::format("loads {} stores {} row loads {} row stores {}", t.loads, t.stores, t.row_loads,
                     t.row_stores);
}

TEST(attention, counted_traffic_equals_the_closed_form) {
  for (Size size : kSizes) {
    if (size.seq < 2) continue;
    for (FlashVersion version : {FlashVersion::fa1, FlashVersion::fa2}) {
      size.version = version;
      Problem<float> p(size);
      TileTraffic forward, backward;
      AttentionArgs f = p.forward();
      AttentionBackwardArgs b = p.backward();
      f.traffic = &forward, b.traffic = &backward;
      launch(f, 2);
      launch(b, 2);
      TileTraffic f_want = flash_traffic(f, att::blocks(f)), b_want = flash_traffic(b, att::blocks(b));
      EXPECT_EQ(forward, f_want) << size << ": " << shown(forward) << ", closed form " << shown(f_want);
      EXPECT_EQ(backward, b_want) << size << ": " << shown(backward) << ", closed form " << shown(b_want);
    }
  }
}

// Parts: other keys than queries and a moved diagonal, written and added to.
TEST(attention, counted_traffic_of_parts_equals_the_closed_form) {
  for (auto [rows, keys, offset, causal] :
       {std::tuple{37, 90, 53, true}, {90, 37, -20, true}, {90, 90, -1, true}, {33, 70, 0, false}})
    for (bool accumulate : {false, true}) {
      Problem<float> p({2, std::max(rows, keys), 4, 2, 24, causal, 16, 32});
      AttentionArgs f = p.forward();
      AttentionBackwardArgs b = p.backward();
      auto part = [&, rows = rows, keys = keys, offset = offset](auto& a) {
        a.q = a.q.narrow(1, 0, rows), a.o = a.o.narrow(1, 0, rows), a.lse = a.lse.narrow(2, 0, rows);
        a.k = a.k.narrow(1, 0, keys), a.v = a.v.narrow(1, 0, keys);
        a.offset = offset, a.accumulate = accumulate;
      };
      part(f), part(b);
      b.dout = b.dout.narrow(1, 0, rows), b.dq = b.dq.narrow(1, 0, rows);
      b.dk = b.dk.narrow(1, 0, keys), b.dv = b.dv.narrow(1, 0, keys);
      TileTraffic forward, backward;
      f.traffic = &forward, b.traffic = &backward;
      launch(f, 2);
      launch(b, 2);
      TileTraffic f_want = flash_traffic(f, att::blocks(f)), b_want = flash_traffic(b, att::blocks(b));
      EXPECT_EQ(forward, f_want) << rows << "x" << keys << shown(forward) << ", closed form "
                                 << shown(f_want);
      EXPECT_EQ(backward, b_want) << rows << "x" << keys << shown(backward) << ", closed form "
                                  << shown(b_want);
    }
}

// v, o and their gradients of another width than q and k, each dense.
TEST(attention, counted_traffic_of_two_widths) {
  const int64_t s = 70, h = 4, kv = 2, d = 24, dv = 40;
  std::vector<float> memory(size_t(4 * s * (h + kv) * (d + dv)), 0.5f), lse(size_t(h * s));
  float* at = memory.data();
  auto dense = [&](int64_t heads, int64_t columns) {
    Tensor t(at, {1, s, heads, columns}, DType::f32);
    at += t.numel();
    return t;
  };
  AttentionArgs f{.q = dense(h, d),
                  .k = dense(kv, d),
                  .v = dense(kv, dv),
                  .o = dense(h, dv),
                  .lse = Tensor(lse.data(), {1, h, s}, DType::f32),
                  .block_q = 16,
                  .block_k = 32};
  AttentionBackwardArgs b{.q = f.q,
                          .k = f.k,
                          .v = f.v,
                          .o = f.o,
                          .lse = f.lse,
                          .dout = dense(h, dv),
                          .dq = dense(h, d),
                          .dk = dense(kv, d),
                          .dv = dense(kv, dv),
                          .block_q = 16,
                          .block_k = 32};
  for (FlashVersion version : {FlashVersion::fa1, FlashVersion::fa2}) {
    TileTraffic forward, backward;
    f.version = version;
    f.traffic = &forward, b.traffic = &backward;
    launch(f, 2);
    launch(b, 2);
    EXPECT_EQ(forward, flash_traffic(f, att::blocks(f))) << shown(forward);
    EXPECT_EQ(backward, flash_traffic(b, att::blocks(b))) << shown(backward);
  }
}

// 2205.14135 with N = 4096, d = 128 (elements, exact): the block sizes of a fast memory of M elements.
TEST(attention, traffic_of_the_papers_example) {
  AttentionArgs p;
  p.q = p.k = p.v = p.o = Tensor(nullptr, {1, 4096, 1, 128}, DType::bf16);
  p.causal = false;
  EXPECT_EQ(standard_traffic(p).total(), 69'206'016);
  p.version = FlashVersion::fa1;
  auto blocks = [](int64_t m, int64_t d) {
    int64_t bk = (m + 4 * d - 1) / (4 * d);
    return AttentionBlocks{std::min(bk, d), bk};
  };
  EXPECT_EQ(flash_traffic(p, blocks(100'000, 128)).total(), 34'078'720);
  EXPECT_EQ(flash_traffic(p, blocks(50'000, 128)).total(), 67'108'864);
  // The counter of a real run of the first.
  Size size{1, 4096, 1, 1, 128, false, 128, 196, FlashVersion::fa1};
  Problem<bf16> run(size);
  TileTraffic count;
  AttentionArgs args = run.forward();
  args.traffic = &count;
  launch(args, 2);
  EXPECT_EQ(count.total(), 34'078'720);
}

// As the ledger books it: linear in the sequence, far below one S x S matrix.
TEST(attention, scratch_is_linear_in_the_sequence) {
  auto device = make_device("meta", {.threads = 2, .models = "cpu"});
  auto peak = [&](int64_t seq, FlashVersion version, bool backward) {
    constexpr int64_t kRange = int64_t(1) << 40;
    Arena arena(device->reserve(kRange), kRange);
    device->kernels().attach(&arena);
    auto tensor = [&](int64_t heads, DType type) {
      return arena.alloc(Bucket::activations, {1, seq, heads, 64}, type);
    };
    AttentionArgs f{.q = tensor(4, DType::bf16),
                    .k = tensor(2, DType::bf16),
                    .v = tensor(2, DType::bf16),
                    .o = tensor(4, DType::bf16),
                    .lse = arena.alloc(Bucket::activations, {1, 4, seq}, DType::f32),
                    .version = version};
    AttentionBackwardArgs b{.q = f.q, .k = f.k, .v = f.v, .o = f.o, .lse = f.lse, .dout = f.o};
    b.dq = tensor(4, DType::bf16), b.dk = tensor(2, DType::bf16), b.dv = tensor(2, DType::bf16);
    if (backward)
      device->kernels().run(b);
    else
      device->kernels().run(f);
    device->kernels().attach(nullptr);
    return arena.ledger().peak(Bucket::scratch);
  };
  constexpr int64_t kLong = 1 << 16;
  EXPECT_EQ(peak(kLong, FlashVersion::fa2, false), peak(1024, FlashVersion::fa2, false));  // the tile alone
  for (auto [version, backward] : {std::pair{FlashVersion::fa1, false}, {FlashVersion::fa2, true}}) {
    int64_t s1 = peak(kLong, version, backward), s2 = peak(2 * kLong, version, backward);
    int64_t s4 = peak(4 * kLong, version, backward);
    EXPECT_EQ(s4 - s2, 2 * (s2 - s1));
    EXPECT_LT(s1, kLong * kLong / 16);
  }
}

}  // namespace
}  // namespace trireme
