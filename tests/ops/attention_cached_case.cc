// cache_append and attention_cached. Keys: b texts of s new rows, cap rows in each text's cache, h heads, kv
// of them for keys and values (h when absent), d head size, dv that of values (d when absent); tight=1: the
// cache is [b, kv, cap, d] in memory, as the runner lays it out, else rows are pad elements longer than kv *
// d; full=1: every row sees the whole cache. Positions are spread over [-1, cap): some rows are padding.
// dtype f32, bf16.
#include <cmath>

#include "base/rng.h"
#include "cases.h"

namespace trireme::harness {
namespace {

using Values = std::vector<double>;

struct CacheSizes {
  int64_t b, s, cap, h, kv, d, dv;
  explicit CacheSizes(const Problem& p)
      : b(p.size("b", 1)),
        s(p.size("s", 1)),
        cap(p.size("cap")),
        h(p.size("h")),
        kv(p.size("kv", h)),
        d(p.size("d")),
        dv(p.size("dv", d)) {}
};

Tensor rows(Builder& b, Role role, std::string name, const CacheSizes& z, int64_t heads, int64_t d) {
  int64_t row = heads * d + b.problem.size("pad", 0);
  return b.strided(role, std::move(name), {z.b, z.s, heads, d}, {z.s * row, row, d, 1}, b.problem.dtype());
}
Tensor cache(Builder& b, Role role, std::string name, const CacheSizes& z, int64_t d) {
  int64_t row = z.kv * d + b.problem.size("pad", 0);
  std::array<int64_t, kMaxDims> stride{z.cap * row, row, d, 1};
  if (b.problem.flag("tight")) stride = {z.cap * z.kv * d, d, z.cap * d, 1};
  return b.strided(role, std::move(name), {z.b, z.cap, z.kv, d}, stride, b.problem.dtype());
}
// Neighbouring rows of a text take neighbouring places, so that no two write to the same one.
Tensor positions(Builder& b, const CacheSizes& z) {
  bool full = b.problem.flag("full");
  uint64_t seed = uint64_t(b.problem.size("seed", 0));
  return b.dense(Role::in, "positions", {z.b, z.s}, DType::i32, [=](int64_t i) {
    if (full) return double(z.cap - 1);
    uint64_t start = below(rng_key(seed, uint64_t(i / z.s), "positions"), 0, uint64_t(z.cap + 1));
    return double((int64_t(start) + i % z.s) % (z.cap + 1) - 1);
  });
}

class CacheAppendCase final : public CaseOf<CacheAppendArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<CacheSizes>(b.problem);
    args.k = rows(b, Role::in, "k", *z_, z_->kv, z_->d);
    args.v = rows(b, Role::in, "v", *z_, z_->kv, z_->dv);
    args.positions = positions(b, *z_);
    args.k_cache = cache(b, Role::inout, "k_cache", *z_, z_->d);
    args.v_cache = cache(b, Role::inout, "v_cache", *z_, z_->dv);
  }
  void reference(Operands& o) const override {
    for (const char* name : {"k", "v"}) {
      const int64_t row = z_->kv * (*name == 'k' ? z_->d : z_->dv);
      std::string to = std::string(name) + "_cache";
      Values want = o.in(to);
      for (int64_t i = 0; i < z_->b * z_->s; i++) {
        auto p = int64_t(o.in("positions")[size_t(i)]);
        if (p < 0) continue;
        auto from = o.in(name).begin() + i * row;
        std::copy(from, from + row, want.begin() + (i / z_->s * z_->cap + p) * row);
      }
      o.want(to) = std::move(want);
    }
  }

 private:
  std::unique_ptr<CacheSizes> z_;
};

class CachedAttentionCase final : public CaseOf<CachedAttentionArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<CacheSizes>(b.problem);
    args.scale = float(b.problem.number("scale", 1 / std::sqrt(double(z_->d))));
    args.q = rows(b, Role::in, "q", *z_, z_->h, z_->d);
    args.k = cache(b, Role::in, "k", *z_, z_->d);
    args.v = cache(b, Role::in, "v", *z_, z_->dv);
    args.positions = positions(b, *z_);
    args.o = rows(b, Role::out, "o", *z_, z_->h, z_->dv);
  }
  void reference(Operands& operands) const override {
    const CacheSizes& z = *z_;
    const Values &q = operands.in("q"), &k = operands.in("k"), &v = operands.in("v");
    Values o(size_t(z.b * z.s * z.h * z.dv));
    for (int64_t i = 0; i < z.b * z.s * z.h; i++) {
      int64_t b = i / (z.s * z.h), g = i % z.h * z.kv / z.h;
      auto at = [&](int64_t j, int64_t d) { return size_t(((b * z.cap + j) * z.kv + g) * d); };
      Values p(size_t(operands.in("positions")[size_t(i / z.h)]) + 1);
      double sum = 0, most = -HUGE_VAL;
      for (size_t j = 0; j < p.size(); j++) {
        for (int64_t e = 0; e < z.d; e++) p[j] += q[size_t(i * z.d + e)] * k[at(int64_t(j), z.d) + size_t(e)];
        most = std::max(most, p[j] *= args.scale);
      }
      for (double& x : p) sum += x = std::exp(x - most);
      for (size_t j = 0; j < p.size(); j++)
        for (int64_t e = 0; e < z.dv; e++)
          o[size_t(i * z.dv + e)] += p[j] / sum * v[at(int64_t(j), z.dv) + size_t(e)];
    }
    operands.want("o") = std::move(o);
  }

 private:
  std::unique_ptr<CacheSizes> z_;
};

}  // namespace

std::unique_ptr<Case> make_cache_append() {
  return std::make_unique<CacheAppendCase>();
}
std::unique_ptr<Case> make_attention_cached() {
  return std::make_unique<CachedAttentionCase>();
}

}  // namespace trireme::harness
