// Newton-Schulz iterations of several matrices in one launch. A step of the definition
// (optim/newton_schulz.h) is
//   G = X X^T;  P = a I + (b I + c G) G;  X <- P X            (tall X: G = X^T X, X <- X P)
//
// Three things make it cheap:
// - G, P and all other polynomials of G are symmetric. The product computes one triangle and mirrors it.
// - Polynomials of G commute. Where X is much longer than wide, three steps (then two) run on k x k matrices
// alone:
//     P = a I + (b I + c G) G;  Q <- P Q;  G <- (P G) P       and at the end X <- Q X
//   G squares the singular values, so rounding hits the small ones harder than in X. After three steps G is
//   therefore computed from X again. Results in f32 are then as near to double as the results of plain steps
//   (2e-6).
// - Small matrices are shared out among the threads, one whole matrix to a thread. Nothing waits inside a
// matrix.
//
// FLOPs of k x l, k <= l: 5 k^3 + 15 k^2 l by plain steps, 14 k^3 + 6 k^2 l by the other form. (All products
// in full would be 10 k^3 + 20 k^2 l.)
#include "device/cpu/orthogonalise.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "base/rounding.h"
#include "device/cpu/gemm.h"
#include "device/cpu/launch.h"

namespace trireme::cpu {
namespace {

using Sides = OrthogonaliseArgs::Sides;

constexpr float kA = 3.4445f;
constexpr float kB = -4.7750f;
constexpr float kC = 2.0315f;
constexpr double kLeastNorm = 1e-7;
constexpr int64_t kLeastSide = 48;          // below it panels are mostly padding
constexpr int64_t kMostElements = 1 << 22;  // larger matrices are not taken
constexpr int64_t kSmall = 1 << 19;         // elements; one thread takes such a matrix alone
constexpr int64_t kLine = 64;               // bytes

int64_t shorter(const Sides& s) {
  return std::min(s.rows, s.cols);
}
int64_t longer(const Sides& s) {
  return std::max(s.rows, s.cols);
}

Tensor matrix(float* data, int64_t rows, int64_t cols) {
  return Tensor(reinterpret_cast<std::byte*>(data), {rows, cols}, DType::f32);
}

// Buffers of one lane: one more X, four squares, scratch of products.
struct Lane {
  float* next = nullptr;
  float* square[4] = {};
  std::byte* scratch = nullptr;
};

int64_t bytes_of_floats(int64_t n) {
  return round_up(n * int64_t(sizeof(float)), kLine);
}

// One matrix.
class Iterations {
 public:
  Iterations(float* x, const Sides& s, const Lane& lane, const Context& ctx)
      : sides_(s),
        k_(shorter(s)),
        x_(x),
        next_(lane.next),
        gram_(lane.square[0]),
        hand_(lane.square[1]),
        poly_(lane.square[2]),
        total_(lane.square[3]),
        scratch_(lane.scratch),
        ctx_(ctx) {}

  void run() {
    float* const home = x_;
    normalise();
    if (2 * longer(sides_) >= 3 * k_) {
      steps_of_gram(3);
      steps_of_gram(2);
    } else {
      for (int i = 0; i < 5; i++) plain_step();
    }
    if (x_ != home) std::copy_n(x_, sides_.numel(), home);
  }

  // The most scratch that a product takes.
  int64_t scratch_bytes() const {
    const MatmulArgs all[] = {gram(), square(hand_, gram_, poly_), applied(poly_)};
    int64_t most = 0;
    for (const MatmulArgs& p : all) most = std::max(most, own_matmul_scratch_bytes(p, ctx_));
    return most;
  }

 private:
  bool tall() const { return sides_.rows > sides_.cols; }
  Tensor whole(float* data) const { return matrix(data, sides_.rows, sides_.cols); }

  MatmulArgs gram() const {
    const Tensor x = whole(x_);
    return {.a = x,
            .b = x,
            .c = matrix(gram_, k_, k_),
            .trans_a = tall(),
            .trans_b = !tall(),
            .bias = {},
            .residual = {}};
  }
  MatmulArgs square(float* a, float* b, float* c) const {
    return {
        .a = matrix(a, k_, k_), .b = matrix(b, k_, k_), .c = matrix(c, k_, k_), .bias = {}, .residual = {}};
  }
  MatmulArgs applied(float* poly) const {
    const Tensor p = matrix(poly, k_, k_);
    return {.a = tall() ? whole(x_) : p,
            .b = tall() ? p : whole(x_),
            .c = whole(next_),
            .bias = {},
            .residual = {}};
  }

  // By the Frobenius norm: sums in double, in an order that depends on the size alone.
  void normalise() {
    constexpr int64_t kSums = 16;
    double sums[kSums] = {};
    const int64_t n = sides_.numel();
    for (int64_t i = 0; i + kSums <= n; i += kSums)
      for (int64_t j = 0; j < kSums; j++) sums[j] += double(x_[i + j]) * double(x_[i + j]);
    for (int64_t i = n / kSums * kSums; i < n; i++) sums[i % kSums] += double(x_[i]) * double(x_[i]);
    const double norm = std::sqrt(std::accumulate(sums, sums + kSums, 0.0));
    const auto scale = float(1 / std::max(kLeastNorm, norm));
    for (int64_t i = 0; i < n; i++) x_[i] *= scale;
  }

  void plain_step() {
    symmetric(gram(), 0);
    polynomial();
    apply(poly_);
  }

  void steps_of_gram(int steps) {
    symmetric(gram(), 0);
    for (int i = 0; i < steps; i++) {
      polynomial();
      if (i == 0) {
        std::copy_n(poly_, k_ * k_, total_);
      } else {
        symmetric(square(poly_, total_, hand_), 0);
        std::swap(hand_, total_);
      }
      if (i + 1 == steps) break;
      symmetric(square(poly_, gram_, hand_), 0);
      symmetric(square(hand_, poly_, gram_), 0);
    }
    apply(total_);
  }

  // poly = a I + (b I + c gram) gram
  void polynomial() {
    parallel_for(ctx_, k_, kGrainRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < k_; j++) hand_[i * k_ + j] = kC * gram_[i * k_ + j];
        hand_[i * k_ + i] += kB;
      }
    });
    symmetric(square(hand_, gram_, poly_), kA);
  }

  // c = a b + diagonal I, of products known to be symmetric.
  void symmetric(const MatmulArgs& p, float diagonal) {
    own_lower_matmul(p, scratch_, ctx_);
    mirror(p.c.as<float>(), diagonal);
  }

  // Writes what is above the diagonal from what is below, in tiles. A thread owns rows of the upper part.
  void mirror(float* m, float diagonal) const {
    constexpr int64_t kTile = 16;
    parallel_for(ctx_, k_, kTile, [&](int64_t begin, int64_t end, int) {
      for (int64_t i0 = begin; i0 < end; i0 += kTile)
        for (int64_t j0 = i0; j0 < k_; j0 += kTile)
          for (int64_t i = i0; i < std::min(end, i0 + kTile); i++)
            for (int64_t j = std::max(i + 1, j0); j < std::min(k_, j0 + kTile); j++)
              m[i * k_ + j] = m[j * k_ + i];
      for (int64_t i = begin; i < end; i++) m[i * k_ + i] += diagonal;
    });
  }

  void apply(float* poly) {
    own_matmul(applied(poly), scratch_, ctx_);
    std::swap(x_, next_);
  }

  static constexpr int64_t kGrainRows = 64;
  const Sides sides_;
  const int64_t k_;
  float *x_, *next_, *gram_, *hand_, *poly_, *total_;
  std::byte* scratch_;
  const Context ctx_;
};

// How a launch is shared out.
struct Shares {
  int lanes = 1;
  Context inside;          // for one lane
  int64_t lane_bytes = 0;  // buffers and scratch
  int64_t elements = 0;    // largest matrix
  int64_t square = 0;      // elements of the largest k x k

  Shares(const OrthogonaliseArgs& p, const Context& ctx) : inside{ctx.threads, nullptr} {
    for (int i = 0; i < p.count; i++) {
      elements = std::max(elements, p.sides[size_t(i)].numel());
      square = std::max(square, shorter(p.sides[size_t(i)]) * shorter(p.sides[size_t(i)]));
    }
    if (p.count > 1 && elements <= kSmall) {
      lanes = std::min(ctx.threads, p.count);
      inside.threads = 1;
    }
    int64_t scratch = 0;
    for (int i = 0; i < p.count; i++)
      scratch = std::max(scratch, Iterations(nullptr, p.sides[size_t(i)], {}, inside).scratch_bytes());
    lane_bytes = bytes_of_floats(elements) + 4 * bytes_of_floats(square) + round_up(scratch, kLine);
  }

  Lane lane(std::byte* scratch, int64_t i) const {
    std::byte* at = scratch + i * lane_bytes;
    Lane l;
    l.next = reinterpret_cast<float*>(at);
    at += bytes_of_floats(elements);
    for (float*& s : l.square) {
      s = reinterpret_cast<float*>(at);
      at += bytes_of_floats(square);
    }
    l.scratch = at;
    return l;
  }
};

}  // namespace

bool orthogonalises(int64_t rows, int64_t cols) {
  return std::min(rows, cols) >= kLeastSide && rows * cols <= kMostElements && has_own_matmul(DType::f32);
}

int64_t scratch_bytes(const OrthogonaliseArgs& p, const Context& ctx) {
  const Shares shares(p, ctx);
  return shares.lanes * shares.lane_bytes;
}

// Threads take matrices in turn, those with the most work first.
void launch(const OrthogonaliseArgs& p, const Tensor& scratch, const Context& ctx) {
  const Shares shares(p, ctx);
  std::array<int64_t, OrthogonaliseArgs::kMost> begins{};
  std::array<int, OrthogonaliseArgs::kMost> order{};
  int64_t at = 0;
  for (int i = 0; i < p.count; i++) {
    begins[size_t(i)] = at;
    order[size_t(i)] = i;
    at += p.sides[size_t(i)].numel();
  }
  std::stable_sort(order.begin(), order.begin() + p.count,
                   [&](int a, int b) { return p.sides[size_t(a)].numel() > p.sides[size_t(b)].numel(); });
  std::atomic<int> next = 0;
  parallel_for({shares.lanes, nullptr}, shares.lanes, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t lane = begin; lane < end; lane++)
      for (int i = next++; i < p.count; i = next++) {
        const auto m = size_t(order[size_t(i)]);
        Iterations(p.x.as<float>() + begins[m], p.sides[m], shares.lane(scratch.data, lane), shares.inside)
            .run();
      }
  });
}

}  // namespace trireme::cpu
