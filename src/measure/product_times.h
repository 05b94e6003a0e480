// Seconds of matrix products, of experts' products and of attention at any size, from sizes that `bench`
// measured.
//
// Two steps. First what all sizes have in common: seconds are a sum, no part of it negative, of those of
// arithmetic (rows x columns x depth, columns rounded up to the kernel's panel), of the output, of either
// operand and of the launch itself, fitted to the measured seconds in relative error, robustly (Beaton and
// Tukey 1974: weights that fall with the error); the panel is the one of a few that fits best. Then what is
// left of each measured size, as a factor: its mean weighted by 1 / distance^6 of the sizes' logarithms, and
// of matrices' sides also of how far they are multiples of powers of two (Shepard 1968). So a measured size
// is exact, and a far one is what arithmetic, bytes and launch come to.
#pragma once
#include <array>
#include <vector>

#include "spec/calibration.h"

namespace trireme {

class ProductTimes {
 public:
  explicit ProductTimes(const SpeedTable&);
  // Of one launch with so many FLOPs; never at a higher rate than the fastest measured.
  double seconds(double rows, double cols, double flops) const;
  // What the common law alone says.
  double lawful_seconds(double rows, double cols, double flops) const;
  double panel() const { return panel_; }  // columns that arithmetic is rounded up to

 private:
  // Logarithms of rows, columns and depth, and of matrices the alignment of all three.
  using Size = std::array<double, 6>;
  struct Measured {
    Size size;
    double flops, seconds, left;  // left: logarithm of measured / lawful seconds
  };
  Size size_of(double rows, double cols, double flops) const;

  bool matrices_;
  double panel_ = 1, fastest_ = 0;
  std::array<double, 5> law_ = {};  // seconds of each unit of a product's parts
  std::vector<Measured> measured_;
};

}  // namespace trireme
