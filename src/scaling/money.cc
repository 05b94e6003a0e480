#include "scaling/money.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace trireme {
namespace {

constexpr int kGrid = 25;    // points per axis and round
constexpr int kRounds = 12;  // each a third as wide
constexpr double kMostSamples = 1e5;

// The least value of f over a box: a grid, then finer grids around its best.
template <size_t Axes, class F>
std::array<double, Axes> least_in(std::array<double, Axes> low, std::array<double, Axes> high, F&& f) {
  const std::array<double, Axes> first_low = low;
  const std::array<double, Axes> first_high = high;
  std::array<double, Axes> best = low;
  double value = INFINITY;
  for (int round = 0; round < kRounds; round++) {
    int64_t all = 1;
    for (size_t a = 0; a < Axes; a++) all *= kGrid;
    for (int64_t i = 0; i < all; i++) {
      std::array<double, Axes> x{};
      for (size_t a = 0, rest = size_t(i); a < Axes; a++, rest /= kGrid)
        x[a] = low[a] + (high[a] - low[a]) * double(rest % kGrid) / (kGrid - 1);
      const double v = f(x);
      if (v < value) {
        value = v;
        best = x;
      }
    }
    for (size_t a = 0; a < Axes; a++) {
      const double half = (high[a] - low[a]) / 6;
      low[a] = std::max(first_low[a], best[a] - half);
      high[a] = std::min(first_high[a], best[a] + half);
    }
  }
  require(std::isfinite(value), "least_in: no value in the box");
  return best;
}

}  // namespace

double Market::seconds(double parameters, double PricedSize::*of) const {
  size_t i = 1;
  while (i + 1 < sizes.size() && parameters > sizes[i].parameters) i++;
  const PricedSize& a = sizes[i - 1];
  const PricedSize& b = sizes[i];
  const double share = std::log(parameters / a.parameters) / std::log(b.parameters / a.parameters);
  return std::exp(std::log(a.*of) + share * std::log(b.*of / a.*of));
}

double Market::train_dollars(double parameters, double tokens) const {
  return tokens * seconds(parameters, &PricedSize::train_s) / 3600 * dollars_per_hour;
}

double Market::serve_dollars(double parameters, double samples) const {
  const double problem = life.prompt * seconds(parameters, &PricedSize::prefill_s) +
                         samples * life.answer * seconds(parameters, &PricedSize::decode_s);
  return life.problems * problem / 3600 * dollars_per_hour;
}

Bargain best_for_dollars(const std::function<double(double, double, double)>& cost, const Market& m,
                         double dollars) {
  const double smallest = m.sizes.front().parameters;
  if (m.serve_dollars(smallest, 1) >= dollars)
    bad_request("--dollars = {:g}: serving {:g} problems with {:g} parameters costs {:.3g}; expected more",
                dollars, m.life.problems, smallest, m.serve_dollars(smallest, 1));
  const auto tokens_of = [&](double n, double k) {
    return (dollars - m.serve_dollars(n, k)) / m.train_dollars(n, 1);
  };
  const auto x =
      least_in<2>({std::log(smallest), 0.0}, {std::log(m.sizes.back().parameters), std::log(kMostSamples)},
                  [&](const auto& at) {
                    const double n = std::exp(at[0]);
                    const double d = tokens_of(n, std::exp(at[1]));
                    return d >= 1 ? cost(n, d, std::exp(at[1])) : INFINITY;
                  });
  Bargain b;
  b.choice = {std::exp(x[0]), tokens_of(std::exp(x[0]), std::exp(x[1])), std::exp(x[1])};
  b.choice.value = cost(b.choice.parameters, b.choice.tokens, b.choice.samples);
  b.train_dollars = m.train_dollars(b.choice.parameters, b.choice.tokens);
  b.serve_dollars = m.serve_dollars(b.choice.parameters, b.choice.samples);
  return b;
}

Bargain cheapest_solution(const std::function<double(double, double, double)>& pass, const Market& m) {
  const auto dollars = [&](double n, double d, double k) {
    const double solved = m.life.problems * pass(n, d, k);
    return (m.train_dollars(n, d) + m.serve_dollars(n, k)) / std::max(1e-300, solved);
  };
  const double low = std::log(m.sizes.front().parameters);
  const double high = std::log(m.sizes.back().parameters);
  const auto x =
      least_in<3>({low, low, 0.0}, {high, high + std::log(1e5), std::log(kMostSamples)},
                  [&](const auto& at) { return dollars(std::exp(at[0]), std::exp(at[1]), std::exp(at[2])); });
  Bargain b;
  b.choice = {std::exp(x[0]), std::exp(x[1]), std::exp(x[2])};
  b.choice.value = pass(b.choice.parameters, b.choice.tokens, b.choice.samples);
  b.train_dollars = m.train_dollars(b.choice.parameters, b.choice.tokens);
  b.serve_dollars = m.serve_dollars(b.choice.parameters, b.choice.samples);
  return b;
}

}  // namespace trireme
