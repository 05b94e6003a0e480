// attention, forward and backward. Keys: b sequences of s rows, h heads, kv of them for keys and values (h
// when absent), d head size of q and k, dv of v and o (d when absent), causal (1 when absent), fa=1 for
// version 1, bq and bk block sizes, fused=1: rows of q, k, v (and their gradients) are h*d + kv*(d + dv)
// elements apart, as columns of one fused matrix are; pad lengthens rows; dropout = rate of the
// probabilities, first = global index of the first. dtype f64, f32, bf16, f16. Of a part of attention: keys
// (s when absent), diagonal = columns it is moved to the right, documents=n: borders about n rows apart,
// drawn for each row; sums=1: results unrounded; acc=1: added to what another part left. With dropout: rows
// are those from `from` on of rank `rank` of `ranks` of sequences of `whole`, keys those of rank `other` (for
// placement 0, 1, 2: contiguous, zigzag, striped), and numbered so. The reference is naive attention over
// whole rows of scores.
#include <cmath>

#include "cases.h"

namespace trireme::harness {
namespace {

// Row-major q [b, s, h, d]; o [b, s, h, dv]; k [b, keys, kv, d]; v [b, keys, kv, dv]; lse [b, h, s].
struct AttentionSizes {
  int64_t b, s, h, kv, d, dv, keys, diagonal, documents;
  bool causal, sums, acc;
  float scale;
  DropoutMask dropout;

  explicit AttentionSizes(const Problem& p)
      : b(p.size("b", 1)),
        s(p.size("s")),
        h(p.size("h")),
        kv(p.size("kv", h)),
        d(p.size("d")),
        dv(p.size("dv", d)),
        keys(p.size("keys", s)),
        diagonal(p.size("diagonal", 0)),
        documents(p.size("documents", 0)),
        causal(p.size("causal", 1) != 0),
        sums(p.flag("sums") || p.flag("acc")),
        acc(p.flag("acc")),
        scale(float(p.number("scale", 1 / std::sqrt(double(d))))),
        dropout{.rate = p.number("dropout", 0),
                .key = rng_key(uint64_t(p.size("seed", 1)), 3, "probs"),
                .first = p.size("first", 0)} {
    const ContextPlace place{.size = int(p.size("ranks", 1)),
                             .rank = int(p.size("rank", 0)),
                             .placement = ContextPlacement(p.size("placement", 0))};
    if (place.size == 1) return;
    dropout.seq = p.size("whole");
    dropout.rows = place.runs(dropout.seq, place.rank).from(p.size("from", 0));
    dropout.keys = place.runs(dropout.seq, int(p.size("other", 0)));
  }
  // What the probability of a key is multiplied with.
  double factor(int64_t n, int64_t head, int64_t row, size_t key) const {
    if (!dropout) return 1;
    const int64_t seq = dropout.seq > 0 ? dropout.seq : s;
    const int64_t index = ((n * h + head) * seq + dropout.rows.at(row)) * seq + dropout.keys.at(int64_t(key));
    return dropout.keeps(index) ? dropout.scale() : 0;
  }
  int64_t q_at(int64_t n, int64_t row, int64_t head) const { return ((n * s + row) * h + head) * d; }
  int64_t k_at(int64_t n, int64_t row, int64_t head) const {
    return ((n * keys + row) * kv + head / (h / kv)) * d;
  }
  int64_t o_at(int64_t n, int64_t row, int64_t head) const { return q_at(n, row, head) / d * dv; }
  int64_t v_at(int64_t n, int64_t row, int64_t head) const { return k_at(n, row, head) / d * dv; }
  // Where the document of a row begins: rows of one sequence need not ascend, and some see nothing.
  int64_t first_key(int64_t n, int64_t row) const {
    if (documents == 0) return 0;
    const int64_t x = int64_t(philox(99, uint64_t(n * s + row))[0] % uint32_t(documents));
    return std::clamp<int64_t>(row + diagonal + 2 - x, 0, keys);
  }
  // Keys [first, second) that a row sees.
  std::pair<int64_t, int64_t> seen(int64_t n, int64_t row) const {
    int64_t end = causal ? std::clamp<int64_t>(row + diagonal + 1, 0, keys) : keys;
    return {std::min(first_key(n, row), end), end};
  }
};
using Values = std::vector<double>;

double dot(const Values& a, int64_t i, const Values& b, int64_t j, int64_t n) {
  double sum = 0;
  for (int64_t e = 0; e < n; e++) sum += a[size_t(i + e)] * b[size_t(j + e)];
  return sum;
}
void add(Values& a, int64_t i, double factor, const Values& b, int64_t j, int64_t n) {
  for (int64_t e = 0; e < n; e++) a[size_t(i + e)] += factor * b[size_t(j + e)];
}

struct Attended {
  Values o, lse;
};
// each(n, head, row, probabilities of the keys that the row sees, of which first is the first), after o and
// lse of the row are known.
template <class F>
Attended attend(const AttentionSizes& z, const Values& q, const Values& k, const Values& v, F&& each) {
  Attended a{Values(size_t(z.b * z.s * z.h * z.dv)), Values(size_t(z.b * z.h * z.s))};
  for (int64_t n = 0; n < z.b; n++)
    for (int64_t head = 0; head < z.h; head++)
      for (int64_t i = 0; i < z.s; i++) {
        auto [first, end] = z.seen(n, i);
        Values p(size_t(end - first));
        int64_t at = z.q_at(n, i, head);
        double most = -HUGE_VAL, sum = 0;
        for (size_t j = 0; j < p.size(); j++)
          most = std::max(most, p[j] = z.scale * dot(q, at, k, z.k_at(n, first + int64_t(j), head), z.d));
        for (double& x : p) sum += x = std::exp(x - most);
        for (size_t j = 0; j < p.size(); j++)
          add(a.o, z.o_at(n, i, head), (p[j] /= sum) * z.factor(n, head, i, size_t(first) + j), v,
              z.v_at(n, first + int64_t(j), head), z.dv);
        a.lse[size_t((n * z.h + head) * z.s + i)] = p.empty() ? -HUGE_VAL : most + std::log(sum);
        each(a, n, head, i, p, first);
      }
  return a;
}
Attended attend(const AttentionSizes& z, const Values& q, const Values& k, const Values& v) {
  return attend(z, q, k, v, [](auto&&...) {});
}

DType sums(DType t) {
  return t == DType::f64 ? t : DType::f32;
}
double rounded(double x, DType t) {
  if (t == DType::f64) return x;
  float f = float(x);
  return double(t == DType::bf16 ? float(bf16(f)) : t == DType::f16 ? float(f16(f)) : f);
}

template <class Args>
class Common : public CaseOf<Args> {
 protected:
  // q, k, v and, for the backward pass, their gradients.
  Tensor rows(Builder& b, const AttentionSizes& z, Role role, std::string name, int64_t heads, int64_t d,
              int64_t n, DType type) {
    int64_t fused = b.problem.flag("fused") ? z.h * z.d + z.kv * (z.d + z.dv) : heads * d;
    int64_t row = fused + b.problem.size("pad", 0);
    return b.strided(role, std::move(name), {z.b, n, heads, d}, {n * row, row, d, 1}, type);
  }
  void operands(Builder& b, const AttentionSizes& z) {
    Args& a = this->args;
    const Problem& p = b.problem;
    a = {};
    a.q = rows(b, z, Role::in, "q", z.h, z.d, z.s, p.dtype());
    a.k = rows(b, z, Role::in, "k", z.kv, z.d, z.keys, p.dtype());
    a.v = rows(b, z, Role::in, "v", z.kv, z.dv, z.keys, p.dtype());
    a.offset = z.diagonal, a.accumulate = z.acc;
    if (z.documents)
      a.first = b.dense(Role::in, "documents", {z.b, z.s}, DType::i32,
                        [=](int64_t i) { return double(z.first_key(i / z.s, i % z.s)); });
    a.scale = z.scale, a.causal = z.causal, a.dropout = z.dropout;
    a.block_q = int(p.size("bq", 0)), a.block_k = int(p.size("bk", 0));
  }
};

class AttentionCase final : public Common<AttentionArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<AttentionSizes>(b.problem);
    operands(b, *z_);
    const Role role = z_->acc ? Role::inout : Role::out;
    const DType type = b.problem.dtype();
    // Before: some rows saw nothing, and what lies there is not read.
    auto o = b.gaussian("o"), lse = b.gaussian("lse");
    const AttentionSizes z = *z_;
    args.o = b.matrix(role, "o", {z.b, z.s, z.h, z.dv}, z.sums ? sums(type) : type, o);
    args.lse = b.dense(role, "lse", {z.b, z.h, z.s}, sums(type),
                       [=](int64_t i) { return i % 5 == 3 ? -HUGE_VAL : lse(i); });
    args.version = b.problem.size("fa", 2) == 1 ? FlashVersion::fa1 : FlashVersion::fa2;
  }
  void reference(Operands& o) const override {
    Attended a = attend(*z_, o.in("q"), o.in("k"), o.in("v"));
    if (z_->acc) merge(a, o.in("o"), o.in("lse"));
    o.want("o") = std::move(a.o), o.want("lse") = std::move(a.lse);
  }

 private:
  void merge(Attended& a, const Values& o, const Values& lse) const {
    const AttentionSizes& z = *z_;
    for (int64_t n = 0; n < z.b; n++)
      for (int64_t head = 0; head < z.h; head++)
        for (int64_t i = 0; i < z.s; i++) {
          const size_t row = size_t((n * z.h + head) * z.s + i);
          const double old = lse[row], now = a.lse[row], most = std::max(old, now);
          if (std::isinf(most)) continue;
          const double both = most + std::log(std::exp(old - most) + std::exp(now - most));
          for (int64_t e = z.o_at(n, i, head); e < z.o_at(n, i, head) + z.dv; e++)
            a.o[size_t(e)] = std::exp(now - both) * a.o[size_t(e)] +
                             (std::isinf(old) ? 0 : std::exp(old - both) * o[size_t(e)]);
          a.lse[row] = both;
        }
  }

  std::unique_ptr<AttentionSizes> z_;
};

// The reference is the exact gradient; the op is given o and lse as the forward pass rounds them.
class AttentionBackwardCase final : public Common<AttentionBackwardArgs> {
 public:
  void build(Builder& b) override {
    z_ = std::make_unique<AttentionSizes>(b.problem);
    DType type = b.problem.dtype();
    operands(b, *z_);
    auto known = forward_of(b, *z_, type);
    Builder::Fill o_value = [=](int64_t i) { return (*known)().o[size_t(i)]; },
                  lse_value = [=](int64_t i) { return (*known)().lse[size_t(i)]; };
    // Times alone want values of that size: the reference's forward pass over 16 k rows takes minutes.
    if (!b.problem.is_for("test") && !b.problem.is_for("grad")) {
      const double all_keys = std::log(double(z_->keys)) + 0.5;
      o_value = b.gaussian("o", 0.1), lse_value = [all_keys](int64_t) { return all_keys; };
    }
    const Shape o{z_->b, z_->s, z_->h, z_->dv};
    args.o = b.matrix(Role::in, "o", o, type, o_value);
    args.lse = b.dense(Role::in, "lse", {z_->b, z_->h, z_->s}, sums(type), lse_value);
    args.dout = b.matrix(Role::in, "dout", o, type);
    const Role role = z_->acc ? Role::inout : Role::out;
    const DType written = z_->sums ? sums(type) : type;
    args.dq = rows(b, *z_, role, "dq", z_->h, z_->d, z_->s, written);
    args.dk = rows(b, *z_, role, "dk", z_->kv, z_->d, z_->keys, written);
    args.dv = rows(b, *z_, role, "dv", z_->kv, z_->dv, z_->keys, written);
  }
  void reference(Operands& o) const override {
    const AttentionSizes& z = *z_;
    const Values &q = o.in("q"), &k = o.in("k"), &v = o.in("v"), &g = o.in("dout");
    Values dq(q.size()), dk(k.size()), dv(v.size());
    if (z.acc) dq = o.in("dq"), dk = o.in("dk"), dv = o.in("dv");
    attend(z, q, k, v,
           [&](const Attended& a, int64_t n, int64_t head, int64_t i, const Values& p, int64_t first) {
             int64_t at = z.q_at(n, i, head), o_at = z.o_at(n, i, head);
             double delta = dot(g, o_at, a.o, o_at, z.dv);
             for (size_t j = 0; j < p.size(); j++) {
               int64_t key = z.k_at(n, first + int64_t(j), head), value = z.v_at(n, first + int64_t(j), head);
               double factor = z.factor(n, head, i, size_t(first) + j);
               double ds = p[j] * (factor * dot(g, o_at, v, value, z.dv) - delta) * z.scale;
               add(dv, value, factor * p[j], g, o_at, z.dv);
               add(dq, at, ds, k, key, z.d);
               add(dk, key, ds, q, at, z.d);
             }
           });
    o.want("dq") = std::move(dq), o.want("dk") = std::move(dk), o.want("dv") = std::move(dv);
  }
  std::vector<GradPair> gradients() const override { return {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}}; }
  double objective(const Operands& o) const override {
    Attended a = attend(*z_, o.in("q"), o.in("k"), o.in("v"));
    return dot(a.o, 0, o.in("dout"), 0, int64_t(a.o.size()));
  }

 private:
  // o and lse of the values that q, k, v will hold; worked out when first asked for.
  static std::shared_ptr<std::function<const Attended&()>> forward_of(const Builder& b, AttentionSizes z,
                                                                      DType type) {
    auto values = [type](Builder::Fill fill, int64_t n) {
      Values x(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; i++) x[size_t(i)] = rounded(fill(i), type);
      return x;
    };
    auto cache = std::make_shared<Attended>();
    auto q = b.gaussian("q"), k = b.gaussian("k"), v = b.gaussian("v");
    return std::make_shared<std::function<const Attended&()>>([=]() -> const Attended& {
      int64_t rows = z.b * z.s * z.d, keys = z.b * z.keys;
      if (cache->o.empty())
        *cache =
            attend(z, values(q, rows * z.h), values(k, keys * z.kv * z.d), values(v, keys * z.kv * z.dv));
      return *cache;
    });
  }

  std::unique_ptr<AttentionSizes> z_;
};

}  // namespace

std::unique_ptr<Case> make_attention() {
  return std::make_unique<AttentionCase>();
}
std::unique_ptr<Case> make_attention_backward() {
  return std::make_unique<AttentionBackwardCase>();
}

}  // namespace trireme::harness
