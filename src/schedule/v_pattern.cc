#include "schedule/v_pattern.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

// Kinds of passes of a rank, in the order of a microbatch; weight gradients behind them: as one row (of both
// chunks, in the order of their input gradients) while passes are moved, as two in the end.
enum Pass { kForwardDown, kForwardUp, kInputUp, kInputDown, kWeights };
constexpr int kInputs = kInputUp;  // from here on, gradients of inputs

using Row = std::vector<int>;     // by microbatch, the slot
using Rank = std::vector<Row>;    // by kind
using Slots = std::vector<Rank>;  // by rank
struct Ref {
  int slot = 0, rank = 0, kind = 0, mb = 0;
};

int last_input(const Rank& r) {
  return std::max({r[0].back(), r[1].back(), r[2].back(), r[3].back()});
}

// All passes by slot, then rank, then kind.
std::vector<Ref> in_order(const Slots& all) {
  const auto each = [&](auto&& visit) {
    for (int r = 0; r < int(all.size()); r++)
      for (int k = 0; k < int(all[size_t(r)].size()); k++)
        for (int mb = 0; mb < int(all[size_t(r)][size_t(k)].size()); mb++)
          visit(Ref{all[size_t(r)][size_t(k)][size_t(mb)], r, k, mb});
  };
  // A counting sort: slots are few, and passes are visited by rank and kind.
  int slots = 0;
  each([&](const Ref& p) { slots = std::max(slots, p.slot + 1); });
  std::vector<size_t> begin(size_t(slots) + 1);
  each([&](const Ref& p) { begin[size_t(p.slot) + 1]++; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Ref> list(begin.back());
  each([&](const Ref& p) { list[begin[size_t(p.slot)]++] = p; });
  return list;
}

// Adds weight gradients: one in each slot that the other passes leave free, from the first that is ready on;
// the chunk on its way up goes first. As one row, or as one for either chunk.
void fill_weights(Rank& rank, bool by_chunk) {
  const int end = last_input(rank) + 1;
  std::vector<int8_t> kind(size_t(end), -1);
  for (int k = 0; k < 4; k++)
    for (int slot : rank[size_t(k)]) kind[size_t(slot)] = int8_t(k);
  rank.resize(by_chunk ? 6 : 5);
  int ready[2] = {0, 0};
  const auto take = [&](int slot) {
    for (int c = 0; c < 2; c++)
      if (ready[c] > 0) return rank[size_t(kWeights + c)].push_back(slot), ready[c]--, true;
    return false;
  };
  for (int slot = 0; slot < end; slot++) {
    const int k = kind[size_t(slot)];
    if (k < 0)
      take(slot);
    else if (k >= kInputs)
      ready[by_chunk ? k - kInputs : 0]++;
  }
  for (int slot = end; take(slot); slot++) {
  }
}

// The k-th smallest (from 0) of two ascending rows.
int kth_of(const Row& a, const Row& b, int k) {
  int low = std::max(0, k + 1 - int(b.size())), high = std::min(k + 1, int(a.size()));
  while (low < high) {  // how many come from a
    const int n = (low + high) / 2;
    if (a[size_t(n)] < b[size_t(k - n)])
      low = n + 1;
    else
      high = n;
  }
  const int from_b = k + 1 - low;
  return std::max(low > 0 ? a[size_t(low) - 1] : -1, from_b > 0 ? b[size_t(from_b) - 1] : -1);
}

// What a rank holds, slot by slot: a forward adds a chunk's activations, its weight gradient lets them go.
// While weight gradients have no slots yet, each free slot is thought to take one that is ready.
class Held {
 public:
  Held(const Rank& rank, bool weights_placed) : placed_(weights_placed) {
    int end = last_input(rank) + 1;
    if (placed_) end = std::max(end, rank[kWeights].back() + 1);
    does_.assign(size_t(end), kNothing);
    for (size_t k = 0; k < rank.size(); k++)
      for (int slot : rank[k]) does_[size_t(slot)] = k < kInputs ? kForward : k < kWeights ? kInput : kWeight;
    after_.resize(size_t(end));
    State s;
    for (int t = 0; t < end; t++) peak_ = std::max(peak_, (after_[size_t(t)] = s = next(s, t)).held);
  }
  int peak() const { return peak_; }
  bool free(int slot) const { return does_[size_t(slot)] == kNothing; }

  // Moves what is in slot `from` to the free slot `to` before it, unless more than `most` would be held.
  bool move(int from, int to, int most) {
    std::swap(does_[size_t(from)], does_[size_t(to)]);
    State s = to > 0 ? after_[size_t(to) - 1] : State{};
    bool fits = true;
    int t = to;
    for (; fits && t < int(does_.size()); t++) {
      s = next(s, t);
      fits = s.held <= most;
      if (t > from && s == after_[size_t(t)]) break;
    }
    if (!fits) return std::swap(does_[size_t(from)], does_[size_t(to)]), false;
    s = to > 0 ? after_[size_t(to) - 1] : State{};
    for (int u = to; u < std::min(t + 1, int(does_.size())); u++) after_[size_t(u)] = s = next(s, u);
    return true;
  }

 private:
  enum Does : int8_t { kNothing, kForward, kInput, kWeight };
  struct State {
    int held = 0, ready = 0;
    bool operator==(const State&) const = default;
  };
  State next(State s, int t) const {
    switch (does_[size_t(t)]) {
      case kForward:
        s.held++;
        break;
      case kInput:
        s.ready++;
        break;
      case kWeight:
        s.held--;
        break;
      case kNothing:
        if (!placed_ && s.ready > 0) s.held--, s.ready--;
        break;
    }
    return s;
  }

  bool placed_;
  int peak_ = 0;
  std::vector<Does> does_;
  std::vector<State> after_;
};

// When a pass could be at the earliest: behind what it needs and behind the microbatch before.
int earliest(const Slots& all, const Ref& p) {
  const auto at = [&](int rank, int kind) { return all[size_t(rank)][size_t(kind)][size_t(p.mb)]; };
  int after = -1;
  const bool down = p.kind == kForwardDown || p.kind == kInputUp;  // comes from the rank before
  const bool up = p.kind == kForwardUp || p.kind == kInputDown;    // from the rank behind
  if (down && p.rank > 0) after = std::max(after, at(p.rank - 1, p.kind));
  if (up && p.rank + 1 < int(all.size())) after = std::max(after, at(p.rank + 1, p.kind));
  const Rank& own = all[size_t(p.rank)];
  if (p.kind > 0 && p.kind < kWeights) after = std::max(after, at(p.rank, p.kind - 1));
  if (p.kind == kWeights) after = std::max(after, kth_of(own[kInputUp], own[kInputDown], p.mb));
  if (p.mb > 0) after = std::max(after, own[size_t(p.kind)][size_t(p.mb) - 1]);
  return after + 1;
}

// Starts every pass as early as its rank and what it needs allow, in the order they are in; each takes a
// slot.
void close_gaps(Slots& all) {
  Slots moved = all;
  std::vector<int> free(all.size(), 0);
  for (const Ref& p : in_order(all)) {
    int slot = free[size_t(p.rank)];
    if (p.kind < kWeights) slot = std::max(slot, earliest(moved, p));
    moved[size_t(p.rank)][size_t(p.kind)][size_t(p.mb)] = slot;
    free[size_t(p.rank)] = slot + 1;
  }
  all = std::move(moved);
}

// Moves passes to earlier slots: those of the end, behind the last forward of the first chunk on rank 0; with
// weight gradients placed also those of the warm-up, before the first backward of rank 0 is through.
void tighten(Slots& all, bool weights_placed) {
  if (weights_placed)
    for (Rank& r : all) fill_weights(r, false);
  std::vector<Held> held;
  int most = 0;
  for (const Rank& r : all) most = std::max(most, held.emplace_back(r, weights_placed).peak());
  const int last = int(all[0][kForwardDown].size()) - 1;
  enum { kWarmUp, kSteady, kEnd } phase = kWarmUp;
  for (const Ref& p : in_order(all)) {
    if (phase == kWarmUp && p.kind == kInputDown && p.rank == 0) phase = kSteady;
    if (phase == kSteady) {
      if (p.kind == kForwardDown && p.mb == last) phase = kEnd;
      continue;
    }
    if (phase == kWarmUp && !weights_placed) continue;
    Held& h = held[size_t(p.rank)];
    for (int to = earliest(all, p); to < p.slot; to++)
      if (h.free(to) && h.move(p.slot, to, most)) {
        all[size_t(p.rank)][size_t(p.kind)][size_t(p.mb)] = to;
        break;
      }
  }
  if (!weights_placed)
    for (Rank& r : all) fill_weights(r, false);
  close_gaps(all);
  for (Rank& r : all) r.resize(4);
}

}  // namespace

Schedule repeat_block(const BuildingBlock& block, int microbatches) {
  constexpr int kPeriod = 6;
  const int pp = int(block.size());
  Slots all(block.size(), Rank(4));
  for (size_t r = 0; r < block.size(); r++)
    for (size_t k = 0; k < 4; k++)
      for (int mb = 0; mb < microbatches; mb++) all[r][k].push_back(block[r][k] + kPeriod * mb);
  tighten(all, true);
  tighten(all, false);
  for (Rank& r : all) fill_weights(r, true);

  Schedule s{.stages = 2 * pp,
             .microbatches = microbatches,
             .ranks = std::vector<std::vector<Action>>(block.size())};
  constexpr Act kActs[] = {Act::F, Act::F, Act::I, Act::I, Act::W, Act::W};
  for (const Ref& p : in_order(all)) {
    const bool down = p.kind == kForwardDown || p.kind == kInputDown || p.kind == kWeights + 1;
    const int stage = down ? p.rank : 2 * pp - 1 - p.rank;
    s.ranks[size_t(p.rank)].push_back({kActs[p.kind], int16_t(stage), int16_t(p.mb)});
  }
  return s;
}

}  // namespace trireme
