#include "cost/pipeline_held.h"

#include <algorithm>

namespace trireme {
namespace {

void add(HeldMoments& all, double before, double waiting, double logits) {
  if (before + waiting > 0) all.at[size_t(all.count++)] = {before, waiting, logits};
}
// And the moment before the input gradient that made the last of `waiting` wait.
void add_both(HeldMoments& all, double before, double waiting, double logits) {
  add(all, before, waiting, logits), add(all, before + 1, waiting - 1, logits);
}

// ZB-H1 and -H2 (`ahead` 1, 2): as many microbatches on every rank, the later the rank the more of them wait.
// Behind an input gradient; and behind a forward pass.
HeldMoments split_held(double p, double m, double rank, double ahead) {
  const double all = std::min(m, ahead * (p - 1) + 1), waiting = std::min(all, ahead * rank + 1);
  const double before = std::min(m, ahead * (p - 1 - rank) + 1), logits = rank == p - 1 ? all : 0;
  HeldMoments h;
  add(h, all - waiting, waiting, logits), add(h, before, all - before, logits);
  return h;
}

// In chunks, two a rank. Rank 0 works off the head's microbatch at once.
HeldMoments v_chunks(PipelineOrder order, double p, double m, bool first) {
  HeldMoments h;
  const double ahead = std::min(m, 2 * p - 1);
  if (order == PipelineOrder::zb_v) {
    if (first) {
      add_both(h, ahead, 1, 1);
    } else {
      add_both(h, std::min(2 * m, 2 * p) - 1, 1, 0);
      add(h, 0, std::clamp(2 * (m - p) + 1, 0.0, 2 * p - 1), 0);
    }
  } else if (order == PipelineOrder::dualpipe_v) {
    if (first) {
      add_both(h, ahead, 1, 1);
      if (m >= 2 * p) add(h, 2 * p + 1, 0, 1);
    } else {
      add(h, std::min(2 * m, 2 * p + 1), 0, 0);
      add_both(h, std::min(2 * m, 2 * p) - 1, 1, 0);
      add(h, 0, std::clamp(2 * m - 3 * p, 0.0, p), 0);
    }
  } else {
    // V-Half holds p + 2 chunks of an even number of ranks and p + 1 of an odd one, V-Min two for each three
    // ranks begun; some of them wait.
    const bool half = order == PipelineOrder::v_half, even = int64_t(p) % 2 == 0;
    const double most = half ? (even ? p + 2 : p + 1) : 2 * double((int64_t(p) + 4) / 3);
    const double all = std::min(2 * m, most), few = half && first && p == 2 ? 3 : 2,
                 many = half ? (even ? 4 : 2) : (p > 24 ? 3 : 2);
    const double wait = std::min(all, first ? few : many);
    add(h, all - wait, wait, first ? 1 : 0), add(h, all, 0, first ? 1 : 0);
  }
  return h;
}

}  // namespace

HeldMoments held_moments(PipelineOrder order, int64_t pp, int64_t chunks, int64_t microbatches,
                         int64_t rank) {
  const double p = double(pp), m = double(microbatches), v = double(chunks), r = double(rank);
  const bool last = rank == pp - 1;
  if (order == PipelineOrder::zb_h1) return split_held(p, m, r, 1);
  if (order == PipelineOrder::zb_h2) return split_held(p, m, r, 2);
  if (is_v(order)) {
    HeldMoments h = v_chunks(order, p, m, rank == 0);
    for (HeldMoment& at : h.at) at.before /= 2, at.waiting /= 2;
    return h;
  }
  HeldMoments h;
  if (order == PipelineOrder::gpipe)
    add(h, m, 0, last ? m : 0);
  else  // of v > 1: v p + p - 1 chunks on the first, two fewer on each further one
    add(h, std::min(m, v > 1 ? ((v - 1) * p + 2 * (p - 1 - r) + 1) / v : p - r), 0, last ? 1 : 0);
  return h;
}

}  // namespace trireme
