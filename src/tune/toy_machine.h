// The toy machine of self-distillation (PAPERS 1.5; appendix C.4 of the SSD paper): three kinds of positions
// whose distributions are known, so that every effect of the method can be computed.
//
// From the root two paths lead to PASS, each over one fork and three locks. A lock has one right token and
// distractors. A fork has several likely tokens. The most likely token of the root fails.
#pragma once
#include <array>
#include <vector>

namespace trireme {

struct ToyMachine {
  std::vector<double> root, fork, lock;  // next-token distributions [16]

  // The paper's heads. Their tails are geometric, of ratio 0.75 (lock), 0.5 (fork, root): the ratios that
  // give the paper's entropies.
  static ToyMachine teacher();

  // The limit of fine-tuning on samples that are drawn with this rule: each distribution, decoded.
  ToyMachine student(double temperature, double top_p) const;

  // Chance of PASS when every position is decoded with this rule:
  // (root[0] + root[1]) * fork[0] * lock[0]^3.
  double pass(double temperature, double top_p) const;

  struct Best {
    double temperature = 0, pass = 0;
  };
  // The largest chance over temperatures from 0.1 to 4, found on a grid of 0.001.
  Best best(double top_p) const;
};

}  // namespace trireme
