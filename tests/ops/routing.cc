#include "routing.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace trireme::harness {

Routing routing_of(const Problem& p) {
  Routing r{.n = p.size("n"), .e = p.size("e"), .k = p.size("k")};
  const double skew = p.number("skew", 1), without = p.number("without", 0);
  const int64_t capacity = p.size("capacity", 0), unit = p.size("unit", 0);
  const uint64_t key = rng_key(uint64_t(p.size("seed", 1)), 0, "ids");
  uint64_t draws = 0;
  for (int64_t t = 0; t < r.n; t++)
    for (int64_t j = 0; j < r.k;) {  // without replacement
      auto id = int64_t(double(r.e) * std::pow(uniform(key, draws++), skew));
      if (draws % 64 == 0) id = int64_t(draws) / 64 % r.e;  // so that a steep skew ends
      if (std::find(r.ids.end() - j, r.ids.end(), id) == r.ids.end()) r.ids.push_back(id), j++;
    }
  r.load.assign(size_t(r.e), 0);
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(r.e));
  std::vector<int64_t> in_unit(static_cast<size_t>(r.e), 0);
  for (int64_t i = 0; i < r.n * r.k; i++) {
    if (unit > 0 && i % (unit * r.k) == 0) std::fill(in_unit.begin(), in_unit.end(), 0);
    const auto e = size_t(r.ids[size_t(i)]);
    r.load[e]++;
    if (uniform(rng_key(7, 0, "without"), uint64_t(i)) < without) {  // marked as one that has no row
      r.ids[size_t(i)] = -1 - r.ids[size_t(i)];
      continue;
    }
    if (capacity == 0 || in_unit[e] < capacity) rows[e].push_back(i);
    in_unit[e]++;
  }
  r.place.assign(size_t(r.n * r.k), -1);
  r.offsets = {0};
  for (const auto& of_e : rows) {
    for (int64_t i : of_e) {
      r.place[size_t(i)] = int64_t(r.source.size());
      r.source.push_back(i);
    }
    r.offsets.push_back(int64_t(r.source.size()));
  }
  r.source.resize(size_t(r.n * r.k), -1);
  return r;
}

}  // namespace trireme::harness
