#include "tune/toy_machine.h"

#include <cmath>

#include "generate/decode_rule.h"

namespace trireme {
namespace {

constexpr int kToyVocab = 16;

// The first four values, and a geometric tail of what they leave.
std::vector<double> head(const std::array<double, 4>& first, double ratio) {
  std::vector<double> p(first.begin(), first.end());
  double left = 1;
  for (double v : first) left -= v;
  const int tail = kToyVocab - int(first.size());
  const double sum = (1 - std::pow(ratio, tail)) / (1 - ratio);
  for (int i = 0; i < tail; i++) p.push_back(left * std::pow(ratio, i) / sum);
  return p;
}

}  // namespace

ToyMachine ToyMachine::teacher() {
  return {.root = head({0.200, 0.190, 0.329, 0.126}, 0.5),
          .fork = head({0.148, 0.280, 0.140, 0.144}, 0.5),
          .lock = head({0.750, 0.055, 0.050, 0.037}, 0.75)};
}

ToyMachine ToyMachine::student(double temperature, double top_p) const {
  return {.root = decoded(root, temperature, 0, top_p),
          .fork = decoded(fork, temperature, 0, top_p),
          .lock = decoded(lock, temperature, 0, top_p)};
}

double ToyMachine::pass(double temperature, double top_p) const {
  const ToyMachine d = student(temperature, top_p);
  return (d.root[0] + d.root[1]) * d.fork[0] * std::pow(d.lock[0], 3);
}

ToyMachine::Best ToyMachine::best(double top_p) const {
  Best b;
  for (int i = 100; i <= 4000; i++)
    if (const double p = pass(i * 1e-3, top_p); p > b.pass) b = {i * 1e-3, p};
  return b;
}

}  // namespace trireme
