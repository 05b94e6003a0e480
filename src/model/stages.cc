#include "model/stages.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"

namespace trireme {
namespace {

constexpr double kSame = 1e-12;  // relative: costs are sums of FLOPs in different orders

// Of each block, the head added to the last one.
std::vector<double> costs_of(const ModelSpec& m, int64_t seq) {
  const double head = 2.0 * double(m.vocab) * double(m.hidden);
  const double dense = block_flops_per_token(m, seq, false);
  const double experts = m.moe() ? block_flops_per_token(m, seq, true) : dense;
  std::vector<double> costs;
  for (int64_t i = 0; i < m.layers; i++) costs.push_back(m.moe() && m.expert_block(i) ? experts : dense);
  costs.back() += head;
  return costs;
}

// How far stages that may cost no more than `most` each come, from the first block on: of [s] the end of s of
// them. They end where all blocks are in one, or where a block alone costs more.
std::vector<size_t> reach(const std::vector<double>& costs, double most) {
  std::vector<size_t> ends = {0};
  for (size_t at = 0; at < costs.size(); ends.push_back(at)) {
    double sum = 0;
    const size_t first = at;
    while (at < costs.size() && sum + costs[at] <= most) sum += costs[at++];
    if (at == first) break;
  }
  return ends;
}

// What the dearest stage costs in the best cut.
double least_dearest(const std::vector<double>& costs, size_t stages) {
  const auto enough = [&](double most) {
    const std::vector<size_t> ends = reach(costs, most);
    return ends.back() == costs.size() && ends.size() <= stages + 1;
  };
  double high = 0;
  for (double c : costs) high += c;
  constexpr int kHalvings = 60;
  double low = 0;
  for (int i = 0; i < kHalvings; i++) {
    const double middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

// Cuts into stages of which none costs more than `most`, from the last stage to the first: of every number of
// stages and every block that they may begin at, the least sum of squares of their costs.
class EvenCut {
 public:
  EvenCut(const std::vector<double>& costs, size_t stages, double most)
      : n_(costs.size()), stages_(stages), most_(most * (1 + kSame)), before_(n_ + 1) {
    for (size_t i = 0; i < n_; i++) before_[i + 1] = before_[i] + costs[i];
    const std::vector<size_t> ends = reach(costs, most_), back = reach({costs.rbegin(), costs.rend()}, most_);
    for (size_t s = 0; s <= stages; s++) {  // the others leave no less and need no more
      const size_t others = stages - s, far = ends[std::min(others, ends.size() - 1)],
                   near = n_ - back[std::min(s, back.size() - 1)];
      windows_.push_back({std::max(near, others), {}});
      const size_t last = std::min(far, n_ - s);
      if (last >= windows_[s].first) windows_[s].least.resize(last - windows_[s].first + 1, INFINITY);
    }
    windows_[0].least.at(0) = 0;
    for (size_t s = 1; s <= stages; s++)
      for (size_t k = 0; k < windows_[s].least.size(); k++) {
        const size_t i = windows_[s].first + k;
        double& least = windows_[s].least[k];
        for (size_t end = first_end(s, i); end <= last_end(s) && before_[end] - before_[i] <= most_; end++)
          least = std::min(least, with(s, i, end));
      }
  }
  // Of equal sums the cut whose early stages have more.
  std::vector<int64_t> counts() const {
    std::vector<int64_t> out;
    for (size_t s = stages_, i = 0; s > 0; s--) {
      size_t end = last_end(s);
      while (with(s, i, end) > least(s, i) * (1 + kSame)) end--;
      out.push_back(int64_t(end - i)), i = end;
    }
    return out;
  }

 private:
  struct Window {
    size_t first = 0;  // block
    std::vector<double> least;
  };
  double least(size_t s, size_t i) const { return windows_[s].least[i - windows_[s].first]; }
  size_t first_end(size_t s, size_t i) const { return std::max(i + 1, windows_[s - 1].first); }
  size_t last_end(size_t s) const { return windows_[s - 1].first + windows_[s - 1].least.size() - 1; }
  // Of s stages from block i on, the first of which ends there.
  double with(size_t s, size_t i, size_t end) const {
    const double cost = before_[end] - before_[i];
    return cost <= most_ ? cost / most_ * (cost / most_) + least(s - 1, end) : INFINITY;
  }

  size_t n_, stages_;
  double most_;
  std::vector<double> before_;   // costs of all blocks before this one
  std::vector<Window> windows_;  // by number of stages
};

// The embedding before the first, the head behind the last.
std::vector<StageRange> ranges_of(const std::vector<int64_t>& counts) {
  std::vector<StageRange> out;
  int64_t first = 0;
  for (size_t s = 0; s < counts.size(); first += counts[s++])
    out.push_back(
        {.first = first, .last = first + counts[s], .embedding = s == 0, .head = s + 1 == counts.size()});
  return out;
}

}  // namespace

std::vector<StageRange> split_layers(const ModelSpec& m, int64_t seq, int stages) {
  require(stages >= 1 && stages <= m.layers, "each stage has a block");
  const std::vector<double> costs = costs_of(m, seq);
  return ranges_of(EvenCut(costs, size_t(stages), least_dearest(costs, size_t(stages))).counts());
}

std::vector<StageRange> split_evenly(const ModelSpec& m, int stages) {
  require(stages >= 1 && stages <= m.layers + 2, "only the first and the last stage may have no block");
  const int64_t each = (m.layers + stages - 1) / stages;
  std::vector<int64_t> counts(size_t(stages), each);
  int64_t fewer = each * stages - m.layers;
  for (size_t i = 0; fewer > 0; i++, fewer--)  // the last, the first, the one before the last, ...
    counts[i == 1 ? 0 : i == 0 ? counts.size() - 1 : counts.size() - i]--;
  return ranges_of(counts);
}

std::vector<StageRange> stages_of(const NumberList& layers) {
  return ranges_of(layers);
}

std::vector<StageRange> split_layers(const ModelSpec& m, int64_t seq, std::string_view cut,
                                     const NumberList* layers, int stages) {
  if (layers) {
    require(int(layers->size()) == stages, "layout.stage_layers has a number for each stage");
    return ranges_of(*layers);
  }
  return cut == "even" ? split_evenly(m, stages) : split_layers(m, seq, stages);
}

std::vector<StageRange> split_layers(const RunSpec& run, int stages) {
  const NumberList layers(run.layout.stage_layers.begin(), run.layout.stage_layers.end());
  return split_layers(run.model, run.data.seq_len, run.layout.cut, layers.empty() ? nullptr : &layers,
                      stages);
}

// As split_layers(): the least time of the slowest stage first, then the least sum of squares of all times.
NumberList split_by_speed(const ModelSpec& m, int64_t seq, const std::vector<double>& speeds) {
  const size_t n = speeds.size();
  require(n >= 1 && int64_t(n) <= m.layers, "each stage has a block");
  const std::vector<double> costs = costs_of(m, seq);
  const size_t layers = costs.size();
  std::vector<double> before(layers + 1);
  for (size_t i = 0; i < layers; i++) before[i + 1] = before[i] + costs[i];
  const auto time = [&](size_t s, size_t first, size_t end) {
    return (before[end] - before[first]) / speeds[s];
  };
  // By stage s and its first block: of it and later stages the slowest one's time, the squares, its end.
  struct Best {
    double slowest = INFINITY;
    double squares = INFINITY;
    size_t end = 0;
  };
  std::vector<std::vector<Best>> best(n + 1, std::vector<Best>(layers + 1));
  best[n][layers] = {0, 0, layers};
  for (size_t s = n; s-- > 0;)
    for (size_t i = s; i + (n - s) <= layers; i++) {
      Best& least = best[s][i];
      for (size_t end = i + 1; end + (n - s - 1) <= layers; end++) {
        const double t = time(s, i, end);
        if (t > least.slowest * (1 + kSame)) break;
        const Best& rest = best[s + 1][end];
        const Best one = {std::max(t, rest.slowest), t * t + rest.squares, end};
        const bool same =
            one.slowest <= least.slowest * (1 + kSame) && one.slowest * (1 + kSame) >= least.slowest;
        if (same ? one.squares <= least.squares * (1 + kSame) : one.slowest < least.slowest) least = one;
      }
    }
  NumberList counts;
  for (size_t s = 0, i = 0; s < n; s++) {
    const size_t end = best[s][i].end;
    counts.push_back(int64_t(end - i));
    i = end;
  }
  return counts;
}

}  // namespace trireme
