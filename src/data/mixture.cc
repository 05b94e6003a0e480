#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace trireme {

Mixture::Mixture(std::span<const double> weights) : parts_(weights.size()) {
  require(!weights.empty() && weights.size() <= 4096, "a mixture has 1 to 4096 sources");
  double largest = 0, sum = 0;
  for (double w : weights) {
    require(std::isfinite(w) && w >= 0, "a weight of a mixture is below 0 or not finite");
    largest = std::max(largest, w);
  }
  require(largest > 0, "every weight of a mixture is 0");
  for (double w : weights) sum += w / largest;
  // Whole parts, at least one each; what rounding leaves over goes to the heaviest, which hardly notices.
  for (size_t i = 0; i < weights.size(); i++) {
    if (weights[i] == 0) continue;
    parts_[i] = std::max<int64_t>(1, std::llround(weights[i] / largest / sum * double(kWhole)));
    only_ = active_++ == 0 ? int64_t(i) : -1;
  }
  auto heaviest = std::max_element(parts_.begin(), parts_.end());
  *heaviest += kWhole - std::accumulate(parts_.begin(), parts_.end(), int64_t(0));
  start_.drawn.assign(parts_.size(), 0), start_.deficit.assign(parts_.size(), 0);
  now_ = kept_[0] = kept_[1] = start_;
}

void Mixture::step() {
  if (now_.n % kEvery == 0) kept_[next_kept_] = now_, next_kept_ ^= 1;
  // Deficits times 2K-2, so that the bound 1/(2K-2) is a whole number.
  const int64_t scale = 2 * active_ - 2;
  int64_t best = -1, best_due = 0;
  for (size_t i = 0; i < parts_.size(); i++) {
    if (parts_[i] == 0) continue;
    const int64_t deficit = now_.deficit[i] += parts_[i];
    if (deficit * scale < kWhole) continue;
    // Due when the deficit would pass 1 - 1/(2K-2): in this many samples times part times scale.
    const int64_t due = kWhole * (scale - 1) - deficit * scale;
    if (best < 0 || __int128(due) * parts_[size_t(best)] < __int128(best_due) * parts_[i])
      best = int64_t(i), best_due = due;
  }
  require(best >= 0, "a mixture has no source that is due");
  now_.deficit[size_t(best)] -= kWhole;
  now_.drawn[size_t(best)]++;
  now_.n++;
  last_ = best;
}

// Leaves n samples drawn.
void Mixture::seek(int64_t n) {
  if (n < now_.n) {
    const State* from = &start_;
    for (const State& s : kept_)
      if (s.n <= n && s.n > from->n) from = &s;
    now_ = *from;
  }
  while (now_.n < n) step();
}

Mixture::Draw Mixture::at(int64_t n) {
  require(n >= 0, "a sample's index is below 0");
  if (only_ >= 0) return {only_, n};
  if (now_.n != n + 1) seek(n), step();
  return {last_, now_.drawn[size_t(last_)] - 1};
}

std::span<const int64_t> Mixture::drawn(int64_t n) {
  require(n >= 0, "a number of samples is below 0");
  if (only_ >= 0)
    now_.drawn[size_t(only_)] = n;
  else
    seek(n);
  return now_.drawn;
}

}  // namespace trireme
