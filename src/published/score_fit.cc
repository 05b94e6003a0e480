#include "published/score_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cost/step_memory.h"

namespace trireme {
namespace {

constexpr double kNoise = 0.05;     // of a measurement: what releases of one thing
                                    // differ by (COSTMODEL floor)
constexpr double kOwnNoise = 0.02;  // of steps of one's own, of one release: what they repeat to
constexpr double kFar = 0.08;       // residuals beyond lose weight: a Cauchy likelihood

bool of_memory(Fit f) {
  return f == Fit::kept || f == Fit::base;
}

struct Unknown {
  std::string scope;
  Fit fit;
  Prior prior;
  double log_value = 0;
};

// Solves A x = b, A symmetric positive definite, row-major n x n; A is
// overwritten by its factor.
std::vector<double> solve_spd(std::vector<double>& a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) a[j * n + j] -= a[j * n + k] * a[j * n + k];
    a[j * n + j] = std::sqrt(std::max(a[j * n + j], 1e-30));
    for (size_t i = j + 1; i < n; ++i) {
      double v = a[i * n + j];
      for (size_t k = 0; k < j; ++k) v -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = v / a[j * n + j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return b;
}

// The fit's state: unknowns, and for each row where its constants are among
// them (-1: fixed).
class Fitter {
 public:
  Fitter(const ScoreConstants& c, std::span<const MeasuredRow* const> rows, Moves moves,
         const ScoreConstants* start)
      : constants_(c),
        rows_(rows),
        noise_(moves == Moves::sites_alone ? kOwnNoise : kNoise),
        at_(rows.size()),
        fixed_(rows.size()) {
    std::map<std::pair<std::string, Fit>, int> index;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i]->step_s > 0) observations_.push_back({i, false});
      if (rows[i]->memory > 0) observations_.push_back({i, true});
    }
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t f = 0; f < kFits; ++f) {
        const Fit fit = Fit(f);
        fixed_[i][f] = 0;
        for (const std::string& scope : scopes_of(*rows[i], fit)) {
          if (moves == Moves::sites_alone &&
              !(layer_of(fit) == ConstantLayer::site && scope.find(':') != scope.npos)) {
            fixed_[i][f] += std::log(c.factor(scope, fit));
            continue;
          }
          Prior p = c.prior(scope, fit);
          if (p.sigma == 0) {  // known: no measurement of a step moves it
            fixed_[i][f] += std::log(p.center);
            continue;
          }
          const auto [it, fresh] = index.try_emplace({scope, fit}, int(unknowns_.size()));
          if (fresh) {
            if (moves == Moves::sites_alone) p.center = c.factor(scope, fit);
            unknowns_.push_back({scope, fit, p, std::log(start ? start->factor(scope, fit) : p.center)});
          }
          at_[i][f].push_back(it->second);
        }
      }
  }

  ScoreConstants run() {
    constexpr int kMostSteps = 60;
    double cost = objective(), damping = 1e-3;
    for (int step = 0; step < kMostSteps; ++step) {
      const double before = cost;
      const std::vector<Unknown> kept = unknowns_;
      linearize();
      bool better = false;
      for (int attempt = 0; attempt < 6 && !better; ++attempt) {
        move(kept, damping);
        cost = objective();
        better = cost < before;
        damping = better ? damping * 0.3 : damping * 10;
      }
      if (!better) {
        unknowns_ = kept;
        break;
      }
      constexpr double kSettled = 1e-5;
      if (before - cost < kSettled * before) break;
    }
    ScoreConstants out = constants_;
    for (const Unknown& u : unknowns_) out.fitted[u.scope][u.fit] = std::exp(u.log_value);
    return out;
  }

 private:
  FitValues values_of(size_t row) const {
    FitValues v = constants_.of(*rows_[row]);
    for (size_t f = 0; f < kFits; ++f) {
      if (at_[row][f].empty()) continue;
      double log_value = fixed_[row][f];
      for (const int u : at_[row][f]) log_value += unknowns_[size_t(u)].log_value;
      v[f] = std::exp(log_value);
    }
    return v;
  }
  // What one measurement says: seconds, or bytes.
  struct Observation {
    size_t row;
    bool memory;
  };
  double residual(const Observation& o, const FitValues& v) const {
    const MeasuredRow& r = *rows_[o.row];
    return o.memory ? std::log(memory_of(r, v).middle / r.memory)
                    : std::log(forecast_of(r, v).middle / r.step_s);
  }
  double objective() const {
    double sum = 0;
    for (const Observation& o : observations_) {
      const double r = residual(o, values_of(o.row)) / kFar;
      sum += kFar * kFar / (noise_ * noise_) * std::log1p(r * r);
    }
    for (const Unknown& u : unknowns_) {
      const double d = (u.log_value - std::log(u.prior.center)) / u.prior.sigma;
      sum += d * d;
    }
    return sum;
  }
  void linearize() {
    const size_t n = unknowns_.size();
    normal_.assign(n * n, 0), gradient_.assign(n, 0);
    for (const Observation& o : observations_) {
      const size_t i = o.row;
      FitValues v = values_of(i);
      const double r = residual(o, v);
      const double weight = 1 / (noise_ * noise_ * (1 + r * r / (kFar * kFar)));
      std::array<double, kFits> slope{};
      constexpr double kStep = 1e-4;
      for (size_t f = 0; f < kFits; ++f) {
        if (at_[i][f].empty() || o.memory != of_memory(Fit(f))) continue;
        const double kept = v[f];
        v[f] = kept * std::exp(kStep);
        slope[f] = (residual(o, v) - r) / kStep;
        v[f] = kept;
      }
      std::vector<std::pair<size_t, double>> slopes;  // unknown and its slope
      for (size_t f = 0; f < kFits; ++f)
        if (slope[f] != 0)
          for (const int u : at_[i][f]) slopes.emplace_back(size_t(u), slope[f]);
      for (const auto& [a, sa] : slopes) {
        gradient_[a] += weight * sa * r;
        for (const auto& [b, sb] : slopes) normal_[a * n + b] += weight * sa * sb;
      }
    }
    for (size_t a = 0; a < n; ++a) {
      const double precision = 1 / (unknowns_[a].prior.sigma * unknowns_[a].prior.sigma);
      normal_[a * n + a] += precision;
      gradient_[a] += precision * (unknowns_[a].log_value - std::log(unknowns_[a].prior.center));
    }
  }
  void move(const std::vector<Unknown>& from, double damping) {
    std::vector<double> a = normal_;
    const size_t n = from.size();
    for (size_t i = 0; i < n; ++i) a[i * n + i] *= 1 + damping;
    const std::vector<double> step = solve_spd(a, gradient_);
    constexpr double kLongest = 1;  // a factor of e at once
    for (size_t i = 0; i < n; ++i)
      unknowns_[i].log_value = from[i].log_value - std::clamp(step[i], -kLongest, kLongest);
  }

  const ScoreConstants& constants_;
  std::span<const MeasuredRow* const> rows_;
  double noise_;
  std::vector<std::array<std::vector<int>, kFits>> at_;  // by row and constant: its unknowns, outer first
  std::vector<std::array<double, kFits>> fixed_;         // logarithm of what does not move
  std::vector<Unknown> unknowns_;
  std::vector<Observation> observations_;
  std::vector<double> normal_, gradient_;
};

template <class Quantity>
RowForecast over_cases(const MeasuredRow& r, Quantity&& quantity) {
  RowForecast out;
  const size_t likely = r.likely_cases().size();
  double logs = 0;
  for (size_t i = 0; i < r.cases.size(); ++i) {
    const double s = quantity(r.cases[i]);
    out.low = out.low == 0 ? s : std::min(out.low, s), out.high = std::max(out.high, s);
    if (i < likely) logs += std::log(s);
  }
  out.middle = std::exp(logs / double(likely));
  return out;
}

// `c` without the values that an earlier fit gave to constants that are known now.
ScoreConstants without_known(const ScoreConstants& c) {
  ScoreConstants out = c;
  for (auto& [scope, fits] : out.fitted)
    std::erase_if(fits, [&, &of = scope](const auto& value) { return c.prior(of, value.first).sigma == 0; });
  std::erase_if(out.fitted, [](const auto& scope) { return scope.second.empty(); });
  return out;
}

}  // namespace

RowForecast forecast_of(const MeasuredRow& r, const FitValues& v) {
  return over_cases(r, [&](const StepCase& c) { return step_time(c, r.figures, v).total; });
}
RowForecast memory_of(const MeasuredRow& r, const FitValues& v) {
  return over_cases(r, [&](const StepCase& c) { return step_memory(c, v).total; });
}

ScoreConstants fit_constants(const ScoreConstants& c, std::span<const MeasuredRow* const> rows, Moves moves,
                             const ScoreConstants* start) {
  if (rows.empty()) return c;
  return moves == Moves::all ? Fitter(without_known(c), rows, moves, start).run()
                             : Fitter(c, rows, moves, start).run();
}

double memory_spread(const MeasuredRow& r, const ScoreConstants& c) {
  FitValues v = c.of(r);
  const auto log_of = [&] { return std::log(memory_of(r, v).middle); };
  const double here = log_of();
  constexpr double kPublication = 0.1;  // two publications of one software on one device differ by that
  double variance = kNoise * kNoise + kPublication * kPublication;
  for (size_t f = 0; f < kFits; ++f) {
    if (!of_memory(Fit(f))) continue;
    double unseen = 0;
    for (const std::string& scope : scopes_of(r, Fit(f)))
      if (const auto s = c.fitted.find(scope); s == c.fitted.end() || !s->second.contains(Fit(f)))
        unseen += c.prior(scope, Fit(f)).sigma * c.prior(scope, Fit(f)).sigma;
    if (unseen == 0) continue;
    constexpr double kStep = 1e-3;
    const double kept = v[f];
    v[f] = kept * std::exp(kStep);
    const double slope = (log_of() - here) / kStep;
    v[f] = kept;
    variance += slope * slope * unseen;
  }
  return std::sqrt(variance);
}

}  // namespace trireme
