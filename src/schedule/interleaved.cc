// Interleaved 1F1B (Narayanan et al. 2021, figure 4, bottom; section 2.2): rank r holds the stages r, r + p,
// ..., v of them, and takes microbatches in groups of p: a group through one chunk after the other. Bubble
// (p-1)/(v m) of the ideal time; the first rank holds p (1 + (p-1)/(p v)) microbatches.
//
// Where p does not divide m, groups are larger than p if that makes them equal (as PyTorch's
// ScheduleInterleaved1F1B has it), else the sequence is that of the next multiple of p (writer.h).
#include <algorithm>

#include "schedule/writer.h"

namespace trireme {
namespace {

struct Groups {
  int microbatches, size;
};
Groups groups_of(int pp, int microbatches) {
  const int rounds = std::max(1, microbatches / pp);
  if (microbatches % rounds == 0) return {microbatches, microbatches / rounds};
  return {(microbatches + pp - 1) / pp * pp, pp};
}

}  // namespace

Schedule interleaved(int pp, int chunks, int microbatches) {
  Schedule s{.stages = pp * chunks, .microbatches = microbatches, .ranks = {}};
  const Groups groups = groups_of(pp, microbatches);
  const int all = chunks * groups.microbatches;
  for (int r = 0; r < pp; r++) {
    std::vector<Chunk> held;
    for (int v = 0; v < chunks; v++) held.push_back({.stage = v * pp + r, .count = microbatches});
    RankWriter out(s.ranks.emplace_back());
    const auto chunk = [&](int n) { return n / groups.size % chunks; };
    const int ahead = std::min(all, (chunks - 1) * groups.size + 2 * (pp - 1 - r));
    for (int n = 0; n < ahead; n++) out.f(held[size_t(chunk(n))]);
    for (int n = 0; n < all; n++) {
      if (n + ahead < all) out.f(held[size_t(chunk(n + ahead))]);
      out.b(held[size_t(chunks - 1 - chunk(n))]);
    }
  }
  return s;
}

}  // namespace trireme
