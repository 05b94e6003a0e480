// What binds the best layout, and what would make another one the best.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "cost/stated_links.h"
#include "search/search.h"

namespace trireme {
namespace {

// Something of the machine or of the software that may be larger or smaller.
struct Knob {
  std::string_view what;
  std::string_view ordered;       // where nothing is exposed by a share; "" = as `what`
  double DeviceFigures::*figure;  // or null, and
  Fit fit;
};
constexpr Knob kKnobs[] = {
    {"peak of products", "", &DeviceFigures::bf16, Fit::count},
    {"bandwidth of memory", "", &DeviceFigures::bandwidth, Fit::count},
    {"bandwidth inside a node", "", &DeviceFigures::bus, Fit::count},
    {"bandwidth between nodes", "", &DeviceFigures::nic, Fit::count},
    {"exposed share of tp's sums", "seconds of tp's sums", nullptr, Fit::tp},
    {"exposed share of messages between stages", "seconds of messages between stages", nullptr, Fit::pp},
    {"exposed share of cp's exchange", "seconds of cp's exchange", nullptr, Fit::cp},
    {"exposed share of experts' exchange", "seconds of experts' exchange", nullptr, Fit::ep},
    {"exposed share of gradients and weights", "seconds of gradients and weights on their way", nullptr,
     Fit::dp},
    {"start of a collective, a rank", "", nullptr, Fit::ring},
    {"launches of a layer", "", nullptr, Fit::host},
};

SearchRequest turned(SearchRequest q, const Knob& k, double factor) {
  q.change([&](DeviceFigures& figures, FitValues& fits) {
    if (k.figure == &DeviceFigures::bus)
      set_near(figures, figures.bus * factor);
    else if (k.figure == &DeviceFigures::nic)
      set_far(figures, figures.nic * factor);
    else if (k.figure)
      figures.*k.figure *= factor;
    else
      fits[size_t(k.fit)] *= factor;
  });
  return q;
}

// The best of some layouts, and what beats it where figures are other ones.
class Pool {
 public:
  Pool(const SearchRequest& q, const SearchResult& r) : q_(q) {
    constexpr size_t kMost = 48;
    for (const Priced& p : r.divisions) {
      if (priced_.size() == kMost) break;
      priced_.push_back(p), all_.push_back(all_.size()), now_.push_back(step_of(q, p.layout, false).total);
    }
  }
  // Returns the layouts of `among` that score below the first layout; the best one is at the front.
  std::vector<size_t> beaten_by(const Knob& k, double factor, const std::vector<size_t>& among) const {
    const SearchRequest q = turned(q_, k, factor);
    double least = score(q, 0);
    const double first = least;
    std::vector<size_t> out;
    for (const size_t i : among) {
      const double s = i == 0 ? first : score(q, i);
      if (s >= first) continue;
      out.push_back(i);
      if (s < least) least = s, std::swap(out.front(), out.back());
    }
    return out;
  }
  // Whether the knob is in any price.
  bool depends_on(const Knob& k, double factor) const {
    const SearchRequest q = turned(q_, k, factor);
    return std::any_of(all_.begin(), all_.end(),
                       [&](size_t i) { return step_of(q, priced_[i].layout, false).total != now_[i]; });
  }
  const std::vector<size_t>& all() const { return all_; }
  const Priced& at(size_t i) const { return priced_[i]; }

 private:
  // The parts that do not depend on the knob (tokens, failures, prices) are unchanged.
  double score(const SearchRequest& q, size_t i) const {
    return priced_[i].score * step_of(q, priced_[i].layout, false).total / priced_[i].time.total;
  }
  const SearchRequest& q_;
  std::vector<Priced> priced_;
  std::vector<size_t> all_;  // numbers in priced_
  std::vector<double> now_;  // steps
};

// The smallest factor in this direction (1 or -1 in logarithms) at which the best is another; 0: none to 64.
double flip_factor(const Pool& pool, const Knob& k, double direction, size_t& winner) {
  constexpr double kStep = 0.5, kMost = 6;  // powers of two
  constexpr int kHalvings = 12;             // to five digits; three are printed
  if (!pool.depends_on(k, std::exp2(direction * kMost))) return 0;
  for (double other = kStep; other <= kMost; other += kStep) {
    std::vector<size_t> better = pool.beaten_by(k, std::exp2(direction * other), pool.all());
    if (better.empty()) continue;
    double same = other - kStep;
    for (int i = 0; i < kHalvings; i++) {
      const double middle = (same + other) / 2;
      std::vector<size_t> there = pool.beaten_by(k, std::exp2(direction * middle), better);
      if (there.empty())
        same = middle;
      else
        other = middle, better = std::move(there);
    }
    winner = better.front();
    return std::exp2(direction * other);
  }
  return 0;
}

// With twice the memory: of what is faster then, what needs least. Both are on the front.
Priced faster_with_memory(const SearchRequest& q, const Priced& best) {
  SearchRequest wide = q;
  wide.change([](DeviceFigures& figures, FitValues&) { figures.memory *= 2; });
  Priced least;
  for (const Priced& p : search(wide).front) {
    if (!(p.score < best.score) || p.memory.used() <= q.figures.memory * q.memory_share) continue;
    if (least.token_s == 0 || p.memory.total < least.memory.total) least = p;
  }
  return least;
}

}  // namespace

SearchWhy why(const SearchRequest& q, const SearchResult& r, bool with_memory) {
  SearchWhy w;
  if (r.divisions.empty()) return w;
  const Priced& best = w.best = r.divisions.front();
  std::tie(w.binds, w.binds_s) = binding_toll(best.time);
  if (r.divisions.size() > 1) w.runner_up = r.divisions[1];
  const Pool pool(q, r);
  for (const Knob& k : kKnobs)
    for (const double direction : {1.0, -1.0}) {
      size_t winner = 0;
      const double factor = flip_factor(pool, k, direction, winner);
      if (factor > 0)
        w.flips.push_back({std::string(q.software.ordered() && !k.ordered.empty() ? k.ordered : k.what),
                           factor, pool.at(winner)});
    }
  std::stable_sort(w.flips.begin(), w.flips.end(), [](const Flip& a, const Flip& b) {
    return std::abs(std::log(a.factor)) < std::abs(std::log(b.factor));
  });
  if (with_memory) w.with_memory = faster_with_memory(q, best);
  return w;
}

}  // namespace trireme
