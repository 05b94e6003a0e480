#include "device/cpu/sum_pieces.h"
#include "device/device_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace trireme {
namespace {

template <class T>
double wide(T x) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return double(float(x));
  else
    return double(x);
}
template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return T(float(x));
  else
    return T(x);
}

// In f32 for floats up to f32, exactly for the rest: as sum_pieces.h says.
template <class T>
T added(const std::vector<std::vector<T>>& src, size_t i) {
  if constexpr (std::is_same_v<T, double> || std::is_integral_v<T>) {
    T s = src[0][i];
    for (size_t r = 1; r < src.size(); r++) s += src[r][i];
    return s;
  } else {
    float s = float(wide(src[0][i]));
    for (size_t r = 1; r < src.size(); r++) s += float(wide(src[r][i]));
    return T(s);
  }
}

template <class T>
std::vector<std::byte*> pointers(std::vector<std::vector<T>>& v) {
  std::vector<std::byte*> p;
  for (auto& x : v) p.push_back(reinterpret_cast<std::byte*>(x.data()));
  return p;
}
std::span<const std::byte* const> sources(const std::vector<std::byte*>& p) {
  return {p.data(), p.size()};
}

template <class T>
class SumPieces : public ::testing::Test {};
using Types = ::testing::Types<float, double, bf16, f16, int32_t, int64_t>;
TYPED_TEST_SUITE(SumPieces, Types);

TYPED_TEST(SumPieces, AgreesWithADoubleLoop) {
  using T = TypeParam;
  uint64_t trial = 0;
  for (size_t ranks : {1, 2, 3, 5})
    for (size_t n : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 1000}) {
      trial++;
      std::vector<std::vector<T>> src(ranks, std::vector<T>(n)), dst(2, std::vector<T>(n + 1, narrow<T>(9)));
      for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < n; i++)
          src[r][i] = narrow<T>((double(below(trial, r * n + i, 20001)) - 10000) / 64);
      std::vector<std::byte*> from = pointers(src), to = pointers(dst);
      cpu::sum_pieces(to, sources(from), int64_t(n), dtype_of<T>);
      for (auto& d : dst) {
        for (size_t i = 0; i < n; i++)
          ASSERT_EQ(wide(d[i]), wide(added(src, i))) << ranks << " pieces of " << n << ", element " << i;
        EXPECT_EQ(wide(d[n]), 9) << "one too many was written";
      }
      cpu::max_pieces(to, sources(from), int64_t(n), dtype_of<T>);
      for (size_t i = 0; i < n; i++) {
        double most = wide(src[0][i]);
        for (auto& s : src) most = std::max(most, wide(s[i]));
        ASSERT_EQ(wide(dst[1][i]), most);
      }
    }
}

TYPED_TEST(SumPieces, MayWriteOverItsSources) {
  using T = TypeParam;
  std::vector<std::vector<T>> src(3, std::vector<T>(77));
  for (size_t r = 0; r < 3; r++)
    for (size_t i = 0; i < 77; i++) src[r][i] = narrow<T>(double(r * 10 + i));
  auto before = src;
  std::vector<std::byte*> at = pointers(src);
  cpu::sum_pieces(at, sources(at), 77, dtype_of<T>);
  for (auto& s : src)
    for (size_t i = 0; i < 77; i++) ASSERT_EQ(wide(s[i]), wide(added(before, i)));
}

// So large that results are written past the caches, from an odd place on.
template <class T>
void many_megabytes() {
  const size_t n = size_t(cpu::last_cache_bytes()) * 3 / 8 / sizeof(T) + 77, shift = 3;
  std::vector<std::vector<T>> src(2, std::vector<T>(n + 8));
  for (size_t r = 0; r < 2; r++)
    for (size_t i = 0; i < n + 8; i++) src[r][i] = narrow<T>(double((i * 7 + r) % 64));
  std::vector<std::byte*> at = pointers(src);
  for (std::byte*& p : at) p += shift * sizeof(T);
  cpu::sum_pieces(at, sources(at), int64_t(n), dtype_of<T>);
  size_t wrong = 0;
  for (size_t i = 0; i < n + 8; i++) {
    const bool inside = i >= shift && i < shift + n;
    const float first = float(i * 7 % 64), second = float((i * 7 + 1) % 64), sum = first + second;
    wrong += float(src[0][i]) != (inside ? sum : first) || float(src[1][i]) != (inside ? sum : second);
  }
  EXPECT_EQ(wrong, 0u);
}
TEST(SumPieces, OfManyMegabytes) {
  many_megabytes<float>();
  many_megabytes<bf16>();
}

TEST(CopyPiece, OfAnySize) {
  for (size_t n : {size_t(0), size_t(1), size_t(63), size_t(cpu::last_cache_bytes()) / 8 + 129})
    for (size_t shift : {0, 1, 63}) {
      std::vector<std::byte> from(n + 1), to(n + 100, std::byte{7});
      for (size_t i = 0; i < n; i++) from[i] = std::byte(i * 31 % 253);
      cpu::copy_piece(to.data() + shift, from.data(), int64_t(n));
      EXPECT_TRUE(std::equal(from.begin(), from.begin() + int64_t(n), to.begin() + int64_t(shift)));
      EXPECT_EQ(to[n + shift], std::byte{7});
      if (shift > 0) {
        EXPECT_EQ(to[shift - 1], std::byte{7});
      }
    }
}

// Memory of a device that this test makes believe: nobody but its copy may touch it.
std::vector<std::byte> far(7 << 20);
int64_t moved = 0;
void move_bytes(void* dst, const void* src, int64_t n) {
  std::memmove(dst, src, size_t(n));
  moved += n;
}
TEST(SumPieces, OfADevicesMemory) {
  std::byte* begin = far.data();
  EXPECT_EQ(device_copy_of(begin), nullptr);
  add_device_memory(begin, int64_t(far.size()), move_bytes);
  EXPECT_EQ(device_copy_of(begin), &move_bytes);
  EXPECT_EQ(device_copy_of(begin + far.size() - 1), &move_bytes);
  EXPECT_EQ(device_copy_of(begin + far.size()), nullptr);
  // More elements than go to the host at once; the second source lies there.
  const int64_t n = (1 << 20) / 4 + 1003;
  auto* a = reinterpret_cast<float*>(begin);
  float* sum = a + n;
  std::vector<float> b(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i++) a[i] = float(i) * 0.25f, b[size_t(i)] = float(i % 97);
  std::byte* to[] = {reinterpret_cast<std::byte*>(sum), begin};
  const std::byte* from[] = {begin, reinterpret_cast<const std::byte*>(b.data())};
  cpu::sum_pieces(to, from, n, DType::f32);
  EXPECT_EQ(moved, 4 * n * 4);  // two sources come, two sums go
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; i++) {
    const float want = float(i) * 0.25f + float(i % 97);
    wrong += sum[i] != want || a[i] != want;
  }
  EXPECT_EQ(wrong, 0);
  moved = 0;
  cpu::copy_piece(reinterpret_cast<std::byte*>(b.data()), begin, 40);
  EXPECT_EQ(moved, 40);
  EXPECT_EQ(b[9], a[9]);
  remove_device_memory(begin);
  EXPECT_EQ(device_copy_of(begin), nullptr);
}

// Where all pieces lie with a device that adds, it does, and nothing moves.
int folds = 0;
bool takes = true;
bool fold_far(std::span<std::byte* const> dst, std::span<const std::byte* const> src, int64_t n, DType,
              bool max) {
  if (!takes) return false;
  folds++;
  for (int64_t i = 0; i < n; i++) {
    float y = reinterpret_cast<const float*>(src[0])[i];
    for (const std::byte* s : src.subspan(1)) {
      const float x = reinterpret_cast<const float*>(s)[i];
      y = max ? std::max(y, x) : y + x;
    }
    for (std::byte* d : dst) reinterpret_cast<float*>(d)[i] = y;
  }
  return true;
}
TEST(SumPieces, OfADeviceThatAdds) {
  std::byte* begin = far.data();
  const int64_t half = int64_t(far.size()) / 2, n = 1003;
  // Two ranges, as two ranks' arenas are.
  add_device_memory(begin, half, move_bytes, fold_far);
  add_device_memory(begin + half, half, move_bytes, fold_far);
  EXPECT_EQ(device_fold_of(begin), &fold_far);
  EXPECT_EQ(device_fold_of(begin + 2 * half), nullptr);
  auto *a = reinterpret_cast<float*>(begin), *b = reinterpret_cast<float*>(begin + half);
  std::vector<float> here(static_cast<size_t>(n));
  std::byte* to[] = {begin, begin + half};
  const std::byte* from[] = {begin, begin + half};
  const auto draw = [&] {
    for (int64_t i = 0; i < n; i++) a[i] = float(i) * 0.5f, b[i] = here[size_t(i)] = float(i % 97);
    moved = folds = 0;
  };
  const auto sums = [&] {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong += a[i] != float(i) * 0.5f + float(i % 97);
    return wrong;
  };
  draw();
  cpu::sum_pieces(to, from, n, DType::f32);
  EXPECT_EQ(sums(), 0);
  EXPECT_EQ(moved, 0);
  EXPECT_EQ(folds, 1);
  draw();
  cpu::max_pieces(to, from, n, DType::f32);
  EXPECT_EQ(b[1000], 500.f);
  EXPECT_EQ(b[96], 96.f);
  EXPECT_EQ(folds, 1);
  // A piece of the host, a destination there, or a device that takes none of it: by way of the host.
  draw();
  from[1] = reinterpret_cast<const std::byte*>(here.data());
  cpu::sum_pieces({to, 1}, from, n, DType::f32);
  EXPECT_EQ(sums(), 0);
  EXPECT_EQ(folds, 0);
  draw();
  from[1] = begin + half;
  to[1] = reinterpret_cast<std::byte*>(here.data());
  cpu::sum_pieces(to, from, n, DType::f32);
  EXPECT_EQ(sums(), 0);
  EXPECT_EQ(here[1000], a[1000]);
  EXPECT_EQ(folds, 0);
  draw();
  to[1] = begin + half;
  takes = false;
  cpu::sum_pieces(to, from, n, DType::f32);
  takes = true;
  EXPECT_EQ(sums(), 0);
  EXPECT_EQ(moved, 4 * n * 4);
  remove_device_memory(begin);
  remove_device_memory(begin + half);
}

TEST(SumPieces, RoundOnceInF32) {
  // 256 + 1 + 1: in bf16 steps it would stay 256 (ties to even), in f32 it is 258.
  std::vector<std::vector<bf16>> src = {{bf16(256)}, {bf16(1)}, {bf16(1)}};
  std::vector<std::byte*> at = pointers(src);
  cpu::sum_pieces({at.data(), 1}, sources(at), 1, DType::bf16);
  EXPECT_EQ(float(src[0][0]), 258);
}

TEST(SumPieces, OrderIsThatOfTheSources) {
  std::vector<std::vector<float>> src = {{1e8f}, {-1e8f}, {1.f}};
  std::vector<std::byte*> at = pointers(src), last = {at[2], at[1], at[0]};
  float out = 0;
  std::byte* to = reinterpret_cast<std::byte*>(&out);
  cpu::sum_pieces({&to, 1}, sources(at), 1, DType::f32);
  EXPECT_EQ(out, 1.f);
  cpu::sum_pieces({&to, 1}, sources(last), 1, DType::f32);
  EXPECT_EQ(out, 0.f);
}

TEST(SumPieces, IntegersWrapAndNanIsTheLargest) {
  std::vector<std::vector<int32_t>> ints = {{std::numeric_limits<int32_t>::max()}, {1}};
  std::vector<std::byte*> at = pointers(ints);
  cpu::sum_pieces({at.data(), 1}, sources(at), 1, DType::i32);
  EXPECT_EQ(ints[0][0], std::numeric_limits<int32_t>::min());
  for (int place : {0, 1, 2}) {
    std::vector<std::vector<float>> f = {{1}, {5}, {-2}};
    f[size_t(place)][0] = NAN;
    std::vector<std::byte*> p = pointers(f);
    cpu::max_pieces({p.data(), 1}, sources(p), 1, DType::f32);
    EXPECT_TRUE(std::isnan(f[0][0])) << place;
    std::vector<std::vector<double>> d = {{1}, {5}, {-2}};
    d[size_t(place)][0] = NAN;
    p = pointers(d);
    cpu::max_pieces({p.data(), 1}, sources(p), 1, DType::f64);
    EXPECT_TRUE(std::isnan(d[0][0])) << place;
  }
}

}  // namespace
}  // namespace trireme
