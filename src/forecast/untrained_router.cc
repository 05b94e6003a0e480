#include "forecast/untrained_router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "data/token_shard.h"

namespace trireme {
namespace {

// Covariances of a residual stream's elements between tokens, by cells of neighbouring positions.
class TokenKernel {
 public:
  TokenKernel(int64_t cells, double each) : n_(size_t(cells)), each_(each) {
    same_.resize(n_ * n_), other_.resize(n_ * n_), own_.resize(n_);
  }
  size_t cells() const { return n_; }
  double each() const { return each_; }  // tokens of a cell
  // Of two different tokens of one sequence, and of two sequences; the variance of a token.
  double& same(size_t i, size_t j) { return same_[i * n_ + j]; }
  double& other(size_t i, size_t j) { return other_[i * n_ + j]; }
  double& own(size_t i) { return own_[i]; }
  double same(size_t i, size_t j) const { return same_[i * n_ + j]; }
  double other(size_t i, size_t j) const { return other_[i * n_ + j]; }
  double own(size_t i) const { return own_[i]; }

  // As an RMS norm leaves it: variances 1.
  TokenKernel normalised() const {
    TokenKernel k = *this;
    for (size_t i = 0; i < n_; i++)
      for (size_t j = 0; j < n_; j++) {
        const double scale = 1 / std::sqrt(own(i) * own(j));
        k.same(i, j) *= scale, k.other(i, j) *= scale;
      }
    std::fill(k.own_.begin(), k.own_.end(), 1.0);
    return k;
  }

  // What the mean over a token and all before it has. peaked: sum of squares of a token's weights, over that
  // of equal weights.
  TokenKernel means(double peaked) const {
    TokenKernel k(int64_t(n_), each_);
    const std::vector<double> sums = prefix(same_), others = prefix(other_);
    std::vector<double> apart(n_ + 1);  // of a token with itself, beyond what it has with its neighbours
    for (size_t i = 0; i < n_; i++) apart[i + 1] = apart[i] + each_ * (own(i) - same(i, i));
    for (size_t i = 0; i < n_; i++)
      for (size_t j = 0; j < n_; j++) {
        const double pairs = double(i + 1) * double(j + 1), tokens = double(std::max(i, j) + 1) * each_;
        const size_t at = (i + 1) * (n_ + 1) + j + 1;
        const double with_itself = apart[std::min(i, j) + 1] / (double(std::min(i, j) + 1) * each_) / tokens;
        k.same(i, j) = sums[at] / pairs + with_itself;
        k.other(i, j) = others[at] / pairs;
        if (i == j) k.own(i) = sums[at] / pairs + with_itself * std::min(peaked, tokens);
      }
    return k;
  }

  // this += factor * f(k).
  template <class F>
  void add(const TokenKernel& k, double factor, const F& f) {
    for (size_t i = 0; i < n_ * n_; i++)
      same_[i] += factor * f(k.same_[i]), other_[i] += factor * f(k.other_[i]);
    for (size_t i = 0; i < n_; i++) own_[i] += factor * f(k.own_[i]);
  }

 private:
  std::vector<double> prefix(const std::vector<double>& of) const {
    std::vector<double> sums((n_ + 1) * (n_ + 1));
    for (size_t i = 0; i < n_; i++)
      for (size_t j = 0; j < n_; j++)
        sums[(i + 1) * (n_ + 1) + j + 1] = of[i * n_ + j] + sums[i * (n_ + 1) + j + 1] +
                                           sums[(i + 1) * (n_ + 1) + j] - sums[i * (n_ + 1) + j];
    return sums;
  }
  size_t n_;
  double each_;
  std::vector<double> same_, other_, own_;
};

constexpr int64_t kCells = 64;

// The mean of silu(g) u silu(g') u' where g and u have variance s and tokens the correlation r:
// silu(g) = g / 2 + g^2 / 4 for the small g of fresh weights.
double swiglu_kernel(double r, double s) {
  return r * s * (r * s / 4 + (1 + 2 * r * r) * s * s / 16);
}

// Inputs of each block's router; empty kernels of blocks without experts are left out.
std::vector<TokenKernel> router_inputs(const RunSpec& run, double repeat) {
  const ModelSpec& m = run.model;
  const double h = double(m.hidden), std2 = m.init_std * m.init_std, out2 = std2 / (2.0 * double(m.layers));
  const int64_t seq = run.data.seq_len, cells = std::min(seq, kCells);
  TokenKernel x(cells, double(seq) / double(cells));
  const TokenKernel zero = x;
  x.add(zero, 1, [&](double) { return std2 * repeat; });
  for (size_t i = 0; i < x.cells(); i++) x.own(i) = std2;
  const double value = h * std2;                  // variance of a query's, key's or value's element
  const double peaked = std::exp(value * value);  // of the scores q k / sqrt(d), whose variance that is
  const double width = double(m.heads * m.value_dim());  // of what attention hands to its output matrix
  const double k = double(m.experts_per_token), experts = double(m.experts);
  const auto plain = [](double v) { return v; };
  std::vector<TokenKernel> inputs;
  for (int64_t b = 0; b < m.layers; b++) {
    x.add(x.normalised().means(peaked), value * width * out2, plain);
    const TokenKernel in = x.normalised();
    const auto dense = [&](double r) { return swiglu_kernel(r, value); };
    if (!m.expert_block(b)) {
      x.add(in, double(m.ffn) * out2, dense);
      continue;
    }
    inputs.push_back(in);
    // k experts of weight 1 / k; two tokens share k / E of them by chance, and all where they are the same.
    x.add(in, double(m.moe_ffn) * out2 / k,
          [&](double r) { return dense(r) * (k / experts + (1 - k / experts) * r * r); });
    if (m.shared_ffn > 0) x.add(in, double(m.shared_ffn) * out2, dense);
  }
  return inputs;
}

// Lower triangle of a positive semidefinite matrix; what rounding made negative counts as 0.
std::vector<double> cholesky(std::vector<double> a, size_t n) {
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j <= i; j++) {
      double v = a[i * n + j];
      for (size_t c = 0; c < j; c++) v -= a[i * n + c] * a[j * n + c];
      if (i == j)
        a[i * n + i] = std::sqrt(std::max(v, 0.0));
      else
        a[i * n + j] = a[j * n + j] > 1e-9 ? v / a[j * n + j] : 0;
    }
  return a;
}

class Draws {
 public:
  double next() {
    if (at_ % 2 == 0) pair_ = normal_pair(key_, at_ / 2);
    return pair_[at_++ % 2];
  }

 private:
  uint64_t key_ = rng_key(0, 0, "untrained router"), at_ = 0;
  std::array<double, 2> pair_ = {};
};

// Logits of one block's experts, expert by expert: what sequences have in common, what tokens of one sequence
// have, and each token's own.
class BlockLogits {
 public:
  explicit BlockLogits(const TokenKernel& k) : n_(k.cells()), own_(n_) {
    std::vector<double> common(n_ * n_), rest(n_ * n_);
    for (size_t i = 0; i < n_; i++) {
      own_[i] = std::sqrt(std::max(0.0, k.own(i) - k.same(i, i)));
      for (size_t j = 0; j < n_; j++)
        common[i * n_ + j] = k.other(i, j), rest[i * n_ + j] = k.same(i, j) - k.other(i, j);
    }
    common_ = cholesky(std::move(common), n_), rest_ = cholesky(std::move(rest), n_);
  }
  // Rows of each rank over their mean, of the fullest one. tokens: simulated of each cell.
  double fullest(const ModelSpec& m, int64_t ep, int64_t sequences, int64_t tokens, Draws& draws) const {
    const auto experts = size_t(m.experts), k = size_t(m.experts_per_token), each = experts / size_t(ep);
    std::vector<double> all(experts * n_), here(experts * n_);
    for (size_t e = 0; e < experts; e++) correlated(common_, draws, &all[e * n_]);
    std::vector<double> rows(static_cast<size_t>(ep));
    std::vector<std::pair<double, size_t>> logits(experts);
    std::vector<double> part(n_);
    for (int64_t s = 0; s < sequences; s++) {
      for (size_t e = 0; e < experts; e++) {
        correlated(rest_, draws, part.data());
        for (size_t i = 0; i < n_; i++) here[e * n_ + i] = all[e * n_ + i] + part[i];
      }
      for (size_t i = 0; i < n_; i++)
        for (int64_t t = 0; t < tokens; t++) {
          for (size_t e = 0; e < experts; e++) logits[e] = {here[e * n_ + i] + own_[i] * draws.next(), e};
          std::nth_element(logits.begin(), logits.begin() + std::ptrdiff_t(k) - 1, logits.end(),
                           std::greater<>());
          for (size_t c = 0; c < k; c++) rows[logits[c].second / each]++;
        }
    }
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    return *std::max_element(rows.begin(), rows.end()) * double(ep) / sum;
  }

 private:
  void correlated(const std::vector<double>& root, Draws& draws, double* out) const {
    std::vector<double> g(n_);
    for (double& v : g) v = draws.next();
    for (size_t i = 0; i < n_; i++)
      out[i] = std::inner_product(&root[i * n_], &root[i * n_] + i + 1, g.begin(), 0.0);
  }
  size_t n_;
  std::vector<double> own_, common_, rest_;
};

}  // namespace

std::vector<RouterLikeness> router_likeness(const RunSpec& run, double repeat) {
  std::vector<RouterLikeness> all;
  for (const TokenKernel& k : router_inputs(run, repeat)) {
    RouterLikeness l;
    const double pairs = double(k.cells()) * double(k.cells());
    for (size_t i = 0; i < k.cells(); i++)
      for (size_t j = 0; j < k.cells(); j++)
        l.within += k.same(i, j) / pairs, l.between += k.other(i, j) / pairs;
    all.push_back(l);
  }
  return all;
}

UntrainedLoad untrained_load(const RunSpec& run, double repeat) {
  constexpr int64_t kMostBlocks = 4, kMostSequences = 8, kMostDraws = 200, kMostLogits = 50'000'000;
  constexpr int64_t kFewestDraws = 16;
  if (run.layout.ep == 1 || !run.model.moe()) return {};
  const std::vector<TokenKernel> inputs = router_inputs(run, repeat);
  if (inputs.empty()) return {};
  // Blocks that stand for all: they differ little from one to the next.
  std::vector<BlockLogits> blocks;
  const size_t n = std::min(inputs.size(), size_t(kMostBlocks));
  for (size_t i = 0; i < n; i++) blocks.emplace_back(inputs[n == 1 ? 0 : i * (inputs.size() - 1) / (n - 1)]);
  // Neighbours on tp and cp have parts of the same sequences.
  const int64_t parts = run.layout.tp * run.layout.cp;
  const int64_t sequences =
      std::min(kMostSequences, run.batch.micro * std::max<int64_t>(1, run.layout.ep / parts));
  const int64_t cells = int64_t(inputs.front().cells()),
                tokens = std::clamp<int64_t>(run.data.seq_len / cells, 1, 4);
  const int64_t logits = int64_t(n) * sequences * cells * run.model.experts * (tokens + cells / 2);
  const int64_t draws = std::clamp(kMostLogits / std::max<int64_t>(1, logits), kFewestDraws, kMostDraws);
  Draws numbers;
  std::vector<double> means;
  for (int64_t d = 0; d < draws; d++) {
    double sum = 0;
    for (const BlockLogits& b : blocks)
      sum += b.fullest(run.model, run.layout.ep, sequences, tokens, numbers);
    means.push_back(sum / double(n));
  }
  UntrainedLoad load;
  load.mean = std::accumulate(means.begin(), means.end(), 0.0) / double(draws);
  std::sort(means.begin(), means.end());
  // A mean over more blocks scatters less.
  const double less = std::sqrt(double(n) / double(inputs.size()));
  load.low = load.mean + less * (means[size_t(draws / 10)] - load.mean);
  load.high = load.mean + less * (means[size_t(draws - 1 - draws / 10)] - load.mean);
  return load;
}

RunSpec with_expected_load(const RunSpec& run) {
  RunSpec now = run;
  if (run.layout.ep_load.untrained) now.layout.ep_load = untrained_load(run, token_repeat(run)).mean;
  return now;
}

double token_repeat(const RunSpec& run) {
  constexpr int64_t kLooked = 1 << 16;
  const std::string name = run.data.train.first();
  const double vocab = double(run.model.vocab);
  // Zipf: sum of 1 / r^2 over the square of that of 1 / r.
  const double harmonic = std::log(vocab) + 0.5772;
  const double zipf = std::max(1 / vocab, M_PI * M_PI / 6 / (harmonic * harmonic));
  try {
    const TokenShard shard = TokenShard::open(name);
    std::vector<int32_t> ids(size_t(std::min(kLooked, shard.tokens())));
    if (ids.size() < 2) return zipf;
    shard.read(0, ids, run.model.vocab);
    std::map<int32_t, double> counts;
    for (const int32_t id : ids) counts[id]++;
    double pairs = 0;
    for (const auto& [id, c] : counts) pairs += c * (c - 1);
    return pairs / (double(ids.size()) * double(ids.size() - 1));
  } catch (const Error&) {  // forecasts need no data
    return zipf;
  }
}

}  // namespace trireme
