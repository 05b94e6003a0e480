#include "optim/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "mesh/shard.h"
#include "optim/grad_norm.h"

namespace trireme {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;  // a matrix of zeros stays one

// A = X X^T, A^2, and (on top of a X in next) B X; of a tall X: X^T X, and X B.
struct Products {
  MatmulArgs gram, square, step;
};
Products products(const Tensor& x, const Tensor& gram, const Tensor& poly, const Tensor& next) {
  const bool tall = x.rows() > x.cols();
  return {.gram = {.a = x, .b = x, .c = gram, .trans_a = tall, .trans_b = !tall},
          .square = {.a = gram, .b = gram, .c = poly},
          .step = {.a = tall ? x : poly, .b = tall ? poly : x, .c = next, .trans_b = tall, .residual = next}};
}

}  // namespace

double newton_schulz_flops(int64_t rows, int64_t cols) {
  const double k = double(std::min(rows, cols)), l = double(std::max(rows, cols));
  return kNewtonSchulzSteps * (4 * k * k * l + 2 * k * k * k);
}

void NewtonSchulz::Sizes::cover(int64_t rows, int64_t cols) {
  const int64_t k = std::min(rows, cols);
  matrix = std::max(matrix, rows * cols), gram = std::max(gram, k * k);
}
int64_t NewtonSchulz::Sizes::blocks() const {
  return flat_blocks(matrix);
}

NewtonSchulz::NewtonSchulz(const Sizes& sizes, DType dtype, Device& device, Arena& arena,
                           std::span<double> host)
    : device_(device),
      x_(arena, Bucket::scratch, {sizes.matrix}, dtype),
      next_(arena, Bucket::scratch, {sizes.matrix}, dtype),
      gram_(arena, Bucket::scratch, {sizes.gram}, dtype),
      poly_(arena, Bucket::scratch, {sizes.gram}, dtype),
      sums_(arena, Bucket::scratch, {sizes.blocks()}, DType::f64),
      host_(host) {}

Tensor NewtonSchulz::input(int64_t rows, int64_t cols) const {
  return x_->narrow(0, 0, rows * cols).view({rows, cols});
}

// By its Frobenius norm: the sum of squares has no order, as the gradients' norm.
void NewtonSchulz::normalise(const Tensor& x, Stream stream) {
  const int64_t blocks = flat_blocks(x.numel());
  const Tensor sums = sums_->narrow(0, 0, blocks), flat = x.view({x.numel()});
  device_.kernels().run(SquareSumsArgs{.x = flat, .sums = sums}, stream);
  std::span<double> host = host_.first(size_t(blocks));
  if (!device_.has_data()) std::fill(host.begin(), host.end(), 1.0);
  device_.download(host.data(), sums);
  const double norm = std::max(kLeastNorm, std::sqrt(order_independent_sum(host)));
  device_.kernels().run(ScaledSumArgs{.a = flat, .b = {}, .y = flat, .alpha = float(1 / norm)}, stream);
}

int64_t NewtonSchulz::scratch(Kernels& k, DType dtype, int64_t rows, int64_t cols) {
  const int64_t side = std::min(rows, cols);
  // Addresses that nobody looks behind.
  auto at = [&](int i, const Shape& s) {
    return Tensor(reinterpret_cast<void*>(uintptr_t(i) << 40), s, dtype);
  };
  const Tensor x = at(1, {rows, cols}), next = at(2, {rows, cols});
  const Tensor gram = at(3, {side, side}), poly = at(4, {side, side});
  const Products p = products(x, gram, poly, next);
  return std::max({k.scratch_of(p.gram), k.scratch_of(p.square), k.scratch_of(p.step)});
}

Tensor NewtonSchulz::run(int64_t rows, int64_t cols, Stream stream) {
  Kernels& k = device_.kernels();
  const int64_t side = std::min(rows, cols), square = side * side;
  Tensor x = input(rows, cols), next = next_->narrow(0, 0, rows * cols).view({rows, cols});
  const Tensor gram = gram_->narrow(0, 0, square).view({side, side});
  const Tensor poly = poly_->narrow(0, 0, square).view({side, side});
  normalise(x, stream);
  for (int i = 0; i < kNewtonSchulzSteps; i++) {
    const Products p = products(x, gram, poly, next);
    k.run(p.gram, stream);
    k.run(p.square, stream);
    k.run(ScaledSumArgs{.a = gram, .b = poly, .y = poly, .alpha = float(kB), .beta = float(kC)}, stream);
    k.run(ScaledSumArgs{.a = x, .b = {}, .y = next, .alpha = float(kA)}, stream);
    k.run(p.step, stream);
    std::swap(x, next);
  }
  return x;
}

}  // namespace trireme
