// The orthogonal factor of a matrix by Newton-Schulz iterations, from matrix products alone.
//
// With X0 = M / |M|_F, singular values in [0, 1], five times
//   A = X X^T;  B = b A + c A^2;  X <- a X + B X          (a, b, c) = (3.4445, -4.7750, 2.0315)
// (of a tall matrix A = X^T X and X <- a X + X B: the smaller of the two products). The odd polynomial
// a s + b s^3 + c s^5 moves every singular value towards 1 at once; its coefficients give the steepest slope
// at 0 rather than convergence, and leave values in about [0.68, 1.13] (Jordan et al. 2024, "Muon: an
// optimizer for hidden layers in neural networks"; torch.optim.Muon has the same numbers).
#pragma once
#include <span>

#include "device/device.h"
#include "tensor/arena.h"

namespace trireme {

inline constexpr int kNewtonSchulzSteps = 5;

// FLOPs of the products: per step 4 k^2 l + 2 k^3 of a matrix whose sides are k <= l.
double newton_schulz_flops(int64_t rows, int64_t cols);

class NewtonSchulz {
 public:
  // What the largest of several matrices takes.
  struct Sizes {
    int64_t matrix = 0, gram = 0;  // elements: of a matrix, of the square of its shorter side
    void cover(int64_t rows, int64_t cols);
    int64_t blocks() const;  // block sums of squares
  };

  // Memory of the arena (scratch) as long as this lives: two matrices and two squares of `dtype` (f32 or
  // bf16), and the block sums. host: at least sizes.blocks() numbers; it outlives this.
  NewtonSchulz(const Sizes&, DType dtype, Device&, Arena&, std::span<double> host);

  // The most scratch that an op of run() takes, beside the above.
  static int64_t scratch(Kernels&, DType, int64_t rows, int64_t cols);

  // Where the matrix goes [rows, cols]; then the result, which stays until the next input().
  Tensor input(int64_t rows, int64_t cols) const;
  Tensor run(int64_t rows, int64_t cols, Stream);

 private:
  void normalise(const Tensor& x, Stream);

  Device& device_;
  Owned x_, next_, gram_, poly_, sums_;
  std::span<double> host_;
};

}  // namespace trireme
