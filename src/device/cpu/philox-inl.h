// Philox4x32-10 (Salmon et al., SC'11; base/rng.h) for many counters at once, once per target
// (hwy/foreach_target.h). Include after simd-inl.h.
//
// A counter takes one 64-bit lane for each of its four words, of which the low half counts: a 32 x 32 -> 64
// bit multiplication leaves both halves of the product in one lane, and what garbage the other words carry in
// their high halves never reaches a low one (xor, and multiplications of low halves, are all there is).
#if defined(TRIREME_DEVICE_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_DEVICE_CPU_PHILOX_INL_H_
#undef TRIREME_DEVICE_CPU_PHILOX_INL_H_
#else
#define TRIREME_DEVICE_CPU_PHILOX_INL_H_
#endif

#include "base/rng.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {

using DQ = hn::ScalableTag<uint64_t>;
// Two vectors of counters at a time: the ten rounds are one chain of dependent multiplications.
inline constexpr int kChains = 2;
inline constexpr int64_t kCounters = int64_t(HWY_LANES(uint64_t));  // in a vector
inline constexpr int64_t kDrawn = 4 * kChains * kCounters;          // words of one call

// words[0, kDrawn) = the words of counters `counter`, counter + 1, ...
HWY_INLINE void philox_words(uint64_t key, uint64_t counter, uint32_t* words) {
  const DQ d;
  const hn::Repartition<uint32_t, DQ> half;
  using V = hn::Vec<DQ>;
  // Lanes in the order in which the interleaving below puts their words one behind the other: even lanes hold
  // the first half of a vector's counters, odd lanes the second.
  HWY_ALIGN uint64_t order[kCounters];
  for (int64_t l = 0; l < kCounters; l++) order[l] = uint64_t(l / 2 + l % 2 * (kCounters / 2));
  V c0[kChains], c1[kChains], c2[kChains], c3[kChains];
  for (int i = 0; i < kChains; i++) {
    const V at = hn::Add(hn::Load(d, order), hn::Set(d, counter + uint64_t(i * kCounters)));
    c0[i] = at, c1[i] = hn::ShiftRight<32>(at), c2[i] = c3[i] = hn::Zero(d);
  }
  const V m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  V k0 = hn::Set(d, key & 0xffffffffu), k1 = hn::Set(d, key >> 32);
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < kChains; i++) {
      const V p0 = hn::MulEven(hn::BitCast(half, m0), hn::BitCast(half, c0[i]));
      const V p1 = hn::MulEven(hn::BitCast(half, m1), hn::BitCast(half, c2[i]));
      c0[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1[i]), k0);
      c2[i] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3[i]), k1);
      c1[i] = p1, c3[i] = p0;
    }
    k0 = hn::Add(k0, hn::Set(d, 0x9E3779B9u)), k1 = hn::Add(k1, hn::Set(d, 0xBB67AE85u));
  }
  const V low = hn::Set(d, 0xffffffffu);
  for (int i = 0; i < kChains; i++, words += 4 * kCounters) {
    const V first = hn::Or(hn::And(c0[i], low), hn::ShiftLeft<32>(c1[i]));
    const V second = hn::Or(hn::And(c2[i], low), hn::ShiftLeft<32>(c3[i]));
    hn::StoreU(hn::BitCast(half, hn::InterleaveLower(d, first, second)), half, words);
    hn::StoreU(hn::BitCast(half, hn::InterleaveUpper(d, first, second)), half, words + 2 * kCounters);
  }
}

// Calls body(i, words) for runs of at most kRun elements [i, i + kRun) of [0, n): words[j] is the word of
// element first + i + j.
inline constexpr int64_t kRun = 256;
template <class Body>
HWY_INLINE void each_drawn(uint64_t key, uint64_t first, int64_t n, const Body& body) {
  HWY_ALIGN uint32_t words[kRun + 2 * kDrawn];
  for (int64_t i = 0; i < n; i += kRun) {
    const uint64_t at = first + uint64_t(i);
    const int64_t skip = int64_t(at % 4), want = skip + std::min(kRun, n - i);
    for (int64_t w = 0; w < want; w += kDrawn) philox_words(key, at / 4 + uint64_t(w / 4), words + w);
    body(i, words + skip);
  }
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
