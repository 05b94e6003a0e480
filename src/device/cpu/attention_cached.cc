// The key/value cache of generation: writing new rows into it, and attention of few queries to long caches.
//
// A decoding step is bound by memory: each key and value is read once and used in 4 G FLOPs an element, G =
// H / KV the queries that share it. So there are no tiles: a unit of work is one text's kv head with its G
// queries; keys stream past all G of them for the scores, then values for the sums, in blocks of kKeys rows
// that stay in L1 or L2 between chunks of kQueries queries. Scores [G, Cap], scaled queries and sums are f32
// scratch of the thread. Every sum runs in an order that depends on D and the row's position alone, so bits
// do not depend on the batch around a row nor on threads.
#include "device/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention_cached.cc"
#include "hwy/foreach_target.h"

#include "device/cpu/attention_cached.h"
#include "device/cpu/indices.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kKeys = 128;  // rows of a block: 16 KiB of bf16 keys of 64
constexpr int kQueries = 4;     // accumulators: 4 queries x 4 vectors

// Rows of f32 scratch, or of the cache; `stride` in elements.
template <class T>
struct Strip {
  T* data;
  int64_t stride;
  T* operator[](int64_t i) const { return data + i * stride; }
};

// s[r][j] = q[r] . k[j]. Rows of q are padded with zeros to whole vectors.
template <int R, class T>
void score(Strip<const float> q, Strip<const T> k, int64_t keys, int64_t d, Strip<float> s) {
  for (int64_t j = 0; j < keys; j++) {
    VF acc[R];
    for (int r = 0; r < R; r++) acc[r] = fill(0);
    each_vector(d, [&](int64_t i, auto part) HWY_ATTR {
      const VF key = load(k[j] + i, part);
      for (int r = 0; r < R; r++) acc[r] = hn::MulAdd(load(q[r] + i, Whole()), key, acc[r]);
    });
    for (int r = 0; r < R; r++) s[r][j] = sum(acc[r]);
  }
}

// o[r] += sum over j of p[r][j] v[j]. Rows of o are padded to whole vectors.
template <int R, class T>
void mix(Strip<const float> p, Strip<const T> v, int64_t keys, int64_t d, Strip<float> o) {
  each_pack(d, [&](int64_t i, auto width, auto part) HWY_ATTR {
    constexpr int kWidth = width();
    VF acc[R][kWidth];
    for (int r = 0; r < R; r++)
      for (int w = 0; w < kWidth; w++) acc[r][w] = load(o[r] + i + w * kLanes, Whole());
    for (int64_t j = 0; j < keys; j++) {
      const T* row = v[j] + i;
      for (int w = 0; w < kWidth; w++) {
        const VF value = load(row + w * kLanes, part);
        for (int r = 0; r < R; r++) acc[r][w] = hn::MulAdd(fill(p[r][j]), value, acc[r][w]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int w = 0; w < kWidth; w++) store(acc[r][w], o[r] + i + w * kLanes, Whole());
  });
}

// s = exp(s - max s) in place; returns 1 / sum.
float softmax(float* s, int64_t n) {
  VF most = fill(-HUGE_VALF), total = fill(0);
  each_vector(n, [&](int64_t i, auto part)
                     HWY_ATTR { most = hn::Max(most, pad(load(s + i, part), part, -HUGE_VALF)); });
  const VF top = hn::MaxOfLanes(DF(), most);
  each_vector(n, [&](int64_t i, auto part) HWY_ATTR {
    const VF e = pad(exp(hn::Sub(load(s + i, part), top)), part, 0);
    total = hn::Add(total, e);
    store(e, s + i, part);
  });
  return 1 / sum(total);
}

// Calls f with chunks of at most kQueries of n queries: (first, count as a constant).
template <class F>
HWY_INLINE void each_chunk(int64_t n, const F& f) {
  int64_t r = 0;
  for (; r + kQueries <= n; r += kQueries) f(r, std::integral_constant<int, kQueries>());
  switch (n - r) {
    case 3:
      return f(r, std::integral_constant<int, 3>());
    case 2:
      return f(r, std::integral_constant<int, 2>());
    case 1:
      return f(r, std::integral_constant<int, 1>());
    default:
      return;
  }
}

// The G queries of one row and kv head.
template <class T>
void row(const CachedAttentionArgs& a, const CachedScratch& z, float* scratch, int64_t b, int64_t s,
         int64_t g) {
  const int64_t d = a.q.shape[3], dv = a.v.shape[3], group = z.group,
                keys = a.positions.as<int32_t>()[b * a.q.shape[1] + s] + 1;
  auto at = [&](const Tensor& t, int64_t i, int64_t head) {
    return t.as<T>() + b * t.stride[0] + i * t.stride[1] + head * t.stride[2];
  };
  T* out = at(a.o, s, g * group);
  if (keys == 0) {
    for (int64_t r = 0; r < group; r++) std::memset(out + r * a.o.stride[2], 0, size_t(dv) * sizeof(T));
    return;
  }
  const Strip<float> scores{scratch, z.keys}, q{scratch + group * z.keys, z.dim},
      o{scratch + group * (z.keys + z.dim), z.v_dim};
  std::memset(q[0], 0, size_t(group * (z.dim + z.v_dim)) * sizeof(float));
  for (int64_t r = 0; r < group; r++)
    each_vector(d, [&](int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(load(at(a.q, s, g * group + r) + i, part), fill(a.scale)), q[r] + i, part);
    });
  for (int64_t j = 0; j < keys; j += kKeys)
    each_chunk(group, [&](int64_t r, auto n) {
      score<n()>({q[r], z.dim}, Strip<const T>{at(a.k, j, g), a.k.stride[1]}, std::min(kKeys, keys - j), d,
                 {scores[r] + j, z.keys});
    });
  float* inverse = o[group];
  for (int64_t r = 0; r < group; r++) inverse[r] = softmax(scores[r], keys);
  for (int64_t j = 0; j < keys; j += kKeys)
    each_chunk(group, [&](int64_t r, auto n) {
      mix<n()>({scores[r] + j, z.keys}, Strip<const T>{at(a.v, j, g), a.v.stride[1]},
               std::min(kKeys, keys - j), dv, {o[r], z.v_dim});
    });
  for (int64_t r = 0; r < group; r++)
    each_vector(dv, [&](int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(load(o[r] + i, part), fill(inverse[r])), out + r * a.o.stride[2] + i, part);
    });
}

}  // namespace

// Units [begin, end) of texts x kv heads.
void attention_cached(const CachedAttentionArgs& a, const CachedScratch& z, float* scratch, int64_t begin,
                      int64_t end) {
  const int64_t heads = a.k.shape[2];
  for (int64_t u = begin; u < end; u++)
    for (int64_t s = 0; s < a.q.shape[1]; s++)
      a.q.dtype == DType::bf16 ? row<bf16>(a, z, scratch, u / heads, s, u % heads)
                               : row<float>(a, z, scratch, u / heads, s, u % heads);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(attention_cached);

CachedScratch::CachedScratch(const CachedAttentionArgs& p, const Context& ctx)
    : group(p.q.shape[2] / p.k.shape[2]),
      keys(up(p.k.shape[1])),
      dim(up(p.q.shape[3])),
      v_dim(up(p.v.shape[3])) {
  pieces = std::min<int64_t>(ctx.threads, p.q.shape[0] * p.k.shape[2]);
  floats = group * (keys + dim + v_dim) + up(group);
}

int64_t scratch_bytes(const CachedAttentionArgs& p, const Context& ctx) {
  if (p.q.numel() == 0) return 0;
  CachedScratch z(p, ctx);
  return z.pieces * z.floats * int64_t(sizeof(float));
}
void launch(const CachedAttentionArgs& p, const Tensor& scratch, const Context& ctx) {
  if (p.q.numel() == 0) return;
  require_indices(p.positions, -1, p.k.shape[1], "attention_cached: position", "the cache has positions");
  const CachedScratch z(p, ctx);
  const int32_t* position = p.positions.as<int32_t>();
  int64_t rows = p.positions.numel(), seen = rows;
  for (int64_t i = 0; i < rows; i++) seen += position[i];
  int64_t mean = (p.q.shape[3] + p.v.shape[3]) *
                 std::max<int64_t>(1, seen / rows);  // elements of a row's keys and values
  parallel_for(ctx, p.q.shape[0] * p.k.shape[2], row_grain(mean * p.q.shape[1]),
               [&](int64_t begin, int64_t end, int t) {
                 HWY_DYNAMIC_DISPATCH(attention_cached)
                 (p, z, reinterpret_cast<float*>(scratch.data) + t * z.floats, begin, end);
               });
}

int64_t scratch_bytes(const CacheAppendArgs&, const Context&) {
  return 0;
}
// Copies rows of D elements: at most a few hundred KB a layer, and of a decoding step one row a text.
void launch(const CacheAppendArgs& p, const Tensor&, const Context&) {
  if (p.k.numel() == 0) return;
  require_indices(p.positions, -1, p.k_cache.shape[1], "cache_append: position", "the cache has positions");
  const int64_t seq = p.k.shape[1], heads = p.k.shape[2], element = size_of(p.k.dtype);
  const auto k_bytes = size_t(p.k.shape[3] * element), v_bytes = size_t(p.v.shape[3] * element);
  auto at = [&](const Tensor& t, int64_t b, int64_t s, int64_t h) {
    return t.data + (b * t.stride[0] + s * t.stride[1] + h * t.stride[2]) * element;
  };
  for (int64_t i = 0; i < p.positions.numel(); i++) {
    const int64_t b = i / seq, s = i % seq, to = p.positions.as<int32_t>()[i];
    if (to < 0) continue;
    for (int64_t h = 0; h < heads; h++) {
      std::memcpy(at(p.k_cache, b, to, h), at(p.k, b, s, h), k_bytes);
      std::memcpy(at(p.v_cache, b, to, h), at(p.v, b, s, h), v_bytes);
    }
  }
}

}  // namespace trireme::cpu
#endif  // HWY_ONCE
