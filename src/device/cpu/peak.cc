#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/peak.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/peak.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

double f32_flops_per_round() {
  return kChains * double(kLanes) * 2;
}

double f32_burst(long rounds) {
  const VF a = fill(1.008f), b = fill(0.00995f);
  // Named one by one: an array would have to be unrolled to stay in registers.
  VF s0 = fill(0), s1 = fill(1), s2 = fill(2), s3 = fill(3), s4 = fill(4), s5 = fill(5), s6 = fill(6),
     s7 = fill(7), s8 = fill(8), s9 = fill(9), s10 = fill(10), s11 = fill(11);
  for (long r = 0; r < rounds; r++) {
    s0 = hn::MulAdd(a, b, s0), s1 = hn::MulAdd(a, b, s1), s2 = hn::MulAdd(a, b, s2);
    s3 = hn::MulAdd(a, b, s3), s4 = hn::MulAdd(a, b, s4), s5 = hn::MulAdd(a, b, s5);
    s6 = hn::MulAdd(a, b, s6), s7 = hn::MulAdd(a, b, s7), s8 = hn::MulAdd(a, b, s8);
    s9 = hn::MulAdd(a, b, s9), s10 = hn::MulAdd(a, b, s10), s11 = hn::MulAdd(a, b, s11);
  }
  VF sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  sum = hn::Add(sum, hn::Add(hn::Add(s8, s9), hn::Add(s10, s11)));
  return double(hn::GetLane(hn::SumOfLanes(DF(), sum)));
}

// n is a multiple of 4 vectors of any target.
float read_all(const float* x, long n) {
  VF s0 = fill(0), s1 = fill(0), s2 = fill(0), s3 = fill(0);
  for (long i = 0; i < n; i += 4 * kLanes) {
    s0 = hn::Add(s0, hn::LoadU(DF(), x + i)), s1 = hn::Add(s1, hn::LoadU(DF(), x + i + kLanes));
    s2 = hn::Add(s2, hn::LoadU(DF(), x + i + 2 * kLanes)),
    s3 = hn::Add(s3, hn::LoadU(DF(), x + i + 3 * kLanes));
  }
  return hn::GetLane(hn::SumOfLanes(DF(), hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}
void write_all(float* x, long n, float value) {
  const VF v = fill(value);
  for (long i = 0; i < n; i += kLanes) hn::StoreU(v, DF(), x + i);
}
void triad(float* a, const float* b, const float* c, long n, float scale) {
  const VF s = fill(scale);
  for (long i = 0; i < n; i += kLanes)
    hn::StoreU(hn::MulAdd(s, hn::LoadU(DF(), c + i), hn::LoadU(DF(), b + i)), DF(), a + i);
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "device/cpu/cpu_device.h"
#include "device/cpu/gemm_tiles.h"

namespace trireme::cpu {
HWY_EXPORT(f32_flops_per_round);
HWY_EXPORT(f32_burst);
HWY_EXPORT(read_all);
HWY_EXPORT(write_all);
HWY_EXPORT(triad);

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best rate of `burst(thread)`, each call doing `work` on every thread, over `seconds` of bursts. A burst
// lasts from its first thread's start to its last one's end.
template <class F>
double best_rate(int threads, double seconds, double work, const Stop& stop, F&& burst) {
  double best = 0;
  const double begin = now();
  do {
    double first = 1e300, last = 0;
#pragma omp parallel num_threads(threads) reduction(min : first) reduction(max : last)
    {
#pragma omp barrier
      first = now();
      burst(omp_get_thread_num());
      last = now();
    }
    best = std::max(best, work * threads / (last - first));
  } while (now() - begin < seconds && !(stop && stop()));
  return best;
}

// Keeps results alive; of each thread, for several measure at once.
thread_local volatile double g_sink = 0;

// Fewer than asked for where the environment lets a team have no more.
int of_a_team(int threads) {
  if (omp_get_dynamic()) omp_set_dynamic(0);
  return std::min(threads, most_threads());
}

double arithmetic_peak(int threads, double seconds, const Stop& stop, double flops_per_round,
                       double (*burst)(long)) {
  threads = of_a_team(threads);
  constexpr long kRounds = 200'000;  // about a millisecond
  return best_rate(threads, seconds, flops_per_round * double(kRounds), stop,
                   [=](int) { g_sink = burst(kRounds); });
}

// One anonymous mapping, unmapped at the end.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) run_failed("out of memory: the bandwidth measurement needs {} bytes", bytes);
    (void)madvise(data_, bytes, MADV_HUGEPAGE);
  }
  Pages(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace

double f32_peak(int threads, double seconds, const Stop& stop) {
  return arithmetic_peak(threads, seconds, stop, HWY_DYNAMIC_DISPATCH(f32_flops_per_round)(),
                         [](long rounds) { return HWY_DYNAMIC_DISPATCH(f32_burst)(rounds); });
}

double bf16_peak(int threads, double seconds, const Stop& stop) {
  if (!multiplies_natively(DType::bf16)) return 0;
  // A round takes some eight times as long as one on vectors.
  if (tiles::kernels())
    return arithmetic_peak(threads, seconds, stop, tile_flops_per_round() / 8,
                           [](long rounds) { return tile_burst(rounds / 8); });
  return arithmetic_peak(threads, seconds, stop, bf16_flops_per_round(), bf16_burst);
}

MemoryRates memory_rates(int threads, double seconds, long bytes_of_all, const Stop& stop) {
  threads = of_a_team(threads);
  if (bytes_of_all == 0)
    bytes_of_all = std::max(4 * std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)), 192L << 20);
  const long per_thread = std::max(1L, bytes_of_all / 3 / 4 / threads / 4096) * 4096;  // floats of one array
  const long n = per_thread * threads;
  Pages pages(size_t(3 * n) * sizeof(float));
  float *a = pages.floats(), *b = a + n, *c = b + n;
  auto part = [=](float* x, int t) { return x + t * per_thread; };
  auto write = [&](int t) { HWY_DYNAMIC_DISPATCH(write_all)(part(a, t), per_thread, 1.5f); };
  // Pages come when they are touched first, on a busy machine in many seconds; by the thread that reads them.
  constexpr long kTouched = 1L << 20;
  for (float* x : {a, b, c})
    for (long at = 0; at < per_thread; at += kTouched) {
      if (stop && stop()) return {};
#pragma omp parallel num_threads(threads)
      HWY_DYNAMIC_DISPATCH(write_all)
      (part(x, omp_get_thread_num()) + at, std::min(kTouched, per_thread - at), 1.f);
    }
  const double bytes = double(per_thread) * sizeof(float);
  MemoryRates rates;
  rates.read = best_rate(threads, seconds / 3, 3 * bytes, stop, [&](int t) {
    double sum = 0;
    for (float* x : {a, b, c}) sum += double(HWY_DYNAMIC_DISPATCH(read_all)(part(x, t), per_thread));
    g_sink = sum;
  });
  rates.write = best_rate(threads, seconds / 3, bytes, stop, write);
  rates.triad = best_rate(threads, seconds / 3, 3 * bytes, stop, [&](int t) {
    HWY_DYNAMIC_DISPATCH(triad)(part(a, t), part(b, t), part(c, t), per_thread, 0.5f);
  });
  return rates;
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
