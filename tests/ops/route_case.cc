// route: keys n tokens, e experts, k choices, sigmoid, normalise (1), bias, groups, top_groups, pairs, scale;
// levels=l: logits take l values only, so that most choices are between equals. route_backward: balance=u
// units, z, unit and first: units of so many tokens, the first token number `first`. route_shares: the same.
// route_order: keys of routing.h. given=1: choices are of routing.h, and read.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "cases.h"
#include "routing.h"

namespace trireme::harness {
namespace {

using Row = std::vector<double>;

Row softmax(const Row& x) {
  double m = *std::max_element(x.begin(), x.end()), z = 0;
  Row s;
  for (double v : x) s.push_back(std::exp(v - m)), z += s.back();
  for (double& v : s) v /= z;
  return s;
}
Row scores(const Row& x, RouteScore how) {
  if (how == RouteScore::softmax) return softmax(x);
  Row s;
  for (double v : x) s.push_back(1 / (1 + std::exp(-v)));
  return s;
}
double logsumexp(const Row& x) {
  double m = *std::max_element(x.begin(), x.end()), z = 0;
  for (double v : x) z += std::exp(v - m);
  return m + std::log(z);
}
Row row(const std::vector<double>& all, int64_t n, int64_t cols) {
  return Row(all.begin() + n * cols, all.begin() + (n + 1) * cols);
}

Builder::Fill logits_fill(Builder& b) {
  const int64_t levels = b.problem.size("levels", 0);
  auto normal = b.gaussian("logits", b.problem.number("spread", 1));
  if (levels == 0) return normal;
  return [=](int64_t i) { return std::round(normal(i) * double(levels) / 4); };
}

class RouteCase final : public CaseOf<RouteArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    n_ = p.size("n"), e_ = p.size("e"), k_ = p.size("k");
    args = {};
    args.score = p.flag("sigmoid") ? RouteScore::sigmoid : RouteScore::softmax;
    args.normalise = p.size("normalise", 1) != 0;
    args.groups = p.size("groups", 1), args.top_groups = p.size("top_groups", args.groups);
    args.group_pairs = p.flag("pairs");
    args.scale = float(p.number("scale", 1));
    args.logits = b.dense(Role::in, "logits", {n_, e_}, DType::f32, logits_fill(b));
    if (p.flag("bias")) args.bias = b.dense(Role::in, "bias", {e_}, DType::f32, b.gaussian("bias", 0.2));
    args.given = p.flag("given");
    args.ids = args.given ? b.dense(Role::in, "ids", {n_, k_}, DType::i32, numbers(routing_of(p).ids))
                          : b.dense(Role::out, "ids", {n_, k_}, DType::i32);
    args.weights = b.dense(Role::out, "weights", {n_, k_}, DType::f32);
  }
  void reference(Operands& o) const override {
    for (int64_t n = 0; n < n_; n++) {
      Row s = scores(row(o.in("logits"), n, e_), args.score), key = s;
      if (args.given) {
        double total = 1e-20;
        for (int64_t j = 0; j < k_; j++) total += s[size_t(o.in("ids")[size_t(n * k_ + j)])];
        for (int64_t j = 0; j < k_; j++)
          o.want("weights")[size_t(n * k_ + j)] =
              args.scale * s[size_t(o.in("ids")[size_t(n * k_ + j)])] / (args.normalise ? total : 1);
        continue;
      }
      for (int64_t i = 0; i < e_ && args.bias; i++) key[size_t(i)] += o.in("bias")[size_t(i)];
      std::vector<int64_t> order = candidates(key);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return key[size_t(a)] > key[size_t(b)]; });
      double total = 1e-20;
      for (int64_t j = 0; j < k_; j++) total += s[size_t(order[size_t(j)])];
      for (int64_t j = 0; j < k_; j++) {
        o.want("ids")[size_t(n * k_ + j)] = double(order[size_t(j)]);
        o.want("weights")[size_t(n * k_ + j)] =
            args.scale * s[size_t(order[size_t(j)])] / (args.normalise ? total : 1);
      }
    }
  }

 private:
  // Experts of the worthiest groups, ascending.
  std::vector<int64_t> candidates(const Row& key) const {
    const int64_t size = e_ / args.groups;
    std::vector<std::pair<double, int64_t>> worth;
    for (int64_t g = 0; g < args.groups; g++) {
      Row own(key.begin() + g * size, key.begin() + (g + 1) * size);
      std::sort(own.rbegin(), own.rend());
      worth.emplace_back(args.group_pairs ? own[0] + own[1] : own[0], g);
    }
    std::stable_sort(worth.begin(), worth.end(), [](auto& a, auto& b) { return a.first > b.first; });
    std::vector<int64_t> out;
    for (int64_t i = 0; i < args.top_groups; i++)
      for (int64_t j = 0; j < size; j++) out.push_back(worth[size_t(i)].second * size + j);
    std::sort(out.begin(), out.end());
    return out;
  }
  int64_t n_ = 0, e_ = 0, k_ = 0;
};

class RouteBackwardCase final : public CaseOf<RouteBackwardArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    Routing r = routing_of(p);
    n_ = r.n, e_ = r.e, k_ = r.k, units_ = p.size("balance", 0);
    args = {};
    args.score = p.flag("sigmoid") ? RouteScore::sigmoid : RouteScore::softmax;
    args.normalise = p.size("normalise", 1) != 0;
    args.scale = float(p.number("scale", 1)), args.z_scale = float(p.number("z", 0));
    args.unit = p.size("unit", 0), args.first = p.size("first", 0);
    args.logits = b.dense(Role::in, "logits", {n_, e_}, DType::f32, logits_fill(b));
    args.ids = b.dense(Role::in, "ids", {n_, k_}, DType::i32, numbers(r.ids));
    args.dweights = b.dense(Role::in, "dweights", {n_, k_}, DType::f32);
    if (units_ > 0) args.balance = b.dense(Role::in, "balance", {units_, e_}, DType::f32);
    args.dlogits = b.dense(Role::out, "dlogits", {n_, e_}, DType::f32);
  }
  // The Jacobian of each token, entry by entry.
  void reference(Operands& o) const override {
    for (int64_t n = 0; n < n_; n++) {
      const Row x = row(o.in("logits"), n, e_), s = scores(x, args.score), soft = softmax(x);
      double total = 0, chosen = 1e-20;
      for (double v : s) total += v;
      for (int64_t j = 0; j < k_; j++) chosen += s[id(o, n, j)];
      for (size_t i = 0; i < size_t(e_); i++) {
        double d = 2 * args.z_scale * logsumexp(x) * soft[i];
        for (size_t m = 0; m < size_t(e_); m++) {
          const double slope = args.score == RouteScore::softmax ? s[m] * ((m == i) - s[i])
                               : m == i                          ? s[i] * (1 - s[i])
                                                                 : 0;
          double ds = 0;
          for (int64_t j = 0; j < k_; j++) {
            const double g = args.scale * o.in("dweights")[size_t(n * k_ + j)], sj = s[id(o, n, j)];
            if (!args.normalise)
              ds += id(o, n, j) == m ? g : 0;
            else if (chooses(o, n, m))
              ds += g * ((id(o, n, j) == m ? 1 : 0) / chosen - sj / (chosen * chosen));
          }
          for (size_t q = 0; q < size_t(e_) && units_ > 0; q++)
            ds += balance(o, n, q) * ((q == m) / total - s[q] / (total * total));
          d += ds * slope;
        }
        o.want("dlogits")[size_t(n * e_) + i] = d;
      }
    }
  }
  std::vector<GradPair> gradients() const override { return {{"logits", "dlogits"}}; }
  double objective(const Operands& o) const override {
    double loss = 0;
    for (int64_t n = 0; n < n_; n++) {
      const Row x = row(o.in("logits"), n, e_), s = scores(x, args.score);
      double total = 0, chosen = 1e-20;
      for (double v : s) total += v;
      for (int64_t j = 0; j < k_; j++) chosen += s[id(o, n, j)];
      for (int64_t j = 0; j < k_; j++)
        loss += o.in("dweights")[size_t(n * k_ + j)] * args.scale * s[id(o, n, j)] /
                (args.normalise ? chosen : 1);
      for (size_t i = 0; i < size_t(e_) && units_ > 0; i++) loss += balance(o, n, i) * s[i] / total;
      loss += args.z_scale * logsumexp(x) * logsumexp(x);
    }
    return loss;
  }

 private:
  size_t id(const Operands& o, int64_t n, int64_t j) const { return size_t(o.in("ids")[size_t(n * k_ + j)]); }
  bool chooses(const Operands& o, int64_t n, size_t m) const {
    for (int64_t j = 0; j < k_; j++)
      if (id(o, n, j) == m) return true;
    return false;
  }
  double balance(const Operands& o, int64_t n, size_t i) const {
    const int64_t unit = args.unit > 0 ? (args.first + n) / args.unit : n / (n_ / units_);
    return o.in("balance")[size_t(unit * e_) + i];
  }
  int64_t n_ = 0, e_ = 0, k_ = 0, units_ = 0;
};

class RouteSharesCase final : public CaseOf<RouteSharesArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    r_ = routing_of(p);
    args = {};
    args.score = p.flag("sigmoid") ? RouteScore::sigmoid : RouteScore::softmax;
    args.unit = p.size("unit"), args.first = p.size("first", 0);
    const int64_t units = p.size("balance");
    args.logits = b.dense(Role::in, "logits", {r_.n, r_.e}, DType::f32, logits_fill(b));
    args.ids = b.dense(Role::in, "ids", {r_.n, r_.k}, DType::i32, numbers(r_.ids));
    args.choices = b.dense(Role::out, "choices", {units, r_.e}, DType::f32);
    args.shares = b.dense(Role::out, "shares", {units, r_.e}, DType::f32);
    args.squares = b.dense(Role::out, "squares", {units}, DType::f32);
  }
  void reference(Operands& o) const override {
    for (std::string_view name : {"choices", "shares", "squares"})
      std::fill(o.want(name).begin(), o.want(name).end(), 0.0);
    for (int64_t n = 0; n < r_.n; n++) {
      const Row x = row(o.in("logits"), n, r_.e), s = scores(x, args.score);
      const auto unit = size_t((args.first + n) / args.unit), at = unit * size_t(r_.e);
      double total = 0;
      for (double v : s) total += v;
      for (size_t i = 0; i < size_t(r_.e); i++) o.want("shares")[at + i] += s[i] / total;
      for (int64_t j = 0; j < r_.k; j++) o.want("choices")[at + size_t(r_.ids[size_t(n * r_.k + j)])]++;
      o.want("squares")[unit] += logsumexp(x) * logsumexp(x);
    }
  }

 private:
  Routing r_;
};

class RouteOrderCase final : public CaseOf<RouteOrderArgs> {
 public:
  void build(Builder& b) override {
    r_ = routing_of(b.problem);
    args = {};
    args.capacity = b.problem.size("capacity", 0), args.unit = b.problem.size("unit", 0);
    args.ids = b.dense(Role::in, "ids", {r_.n, r_.k}, DType::i32, numbers(r_.ids));
    args.offsets = b.dense(Role::out, "offsets", {r_.e + 1}, DType::i32);
    args.place = b.dense(Role::out, "place", {r_.n, r_.k}, DType::i32);
    args.source = b.dense(Role::out, "source", {r_.n * r_.k}, DType::i32);
    args.load = b.dense(Role::out, "load", {r_.e}, DType::i32);
  }
  void reference(Operands& o) const override {
    auto put = [&](std::string_view name, const std::vector<int64_t>& v) {
      o.want(name).assign(v.begin(), v.end());
    };
    put("offsets", r_.offsets), put("place", r_.place), put("source", r_.source), put("load", r_.load);
  }

 private:
  Routing r_;
};

}  // namespace

std::unique_ptr<Case> make_route() {
  return std::make_unique<RouteCase>();
}
std::unique_ptr<Case> make_route_backward() {
  return std::make_unique<RouteBackwardCase>();
}
std::unique_ptr<Case> make_route_shares() {
  return std::make_unique<RouteSharesCase>();
}
std::unique_ptr<Case> make_route_order() {
  return std::make_unique<RouteOrderCase>();
}

}  // namespace trireme::harness
