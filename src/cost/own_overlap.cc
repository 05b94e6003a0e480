#include "cost/own_overlap.h"

#include <algorithm>
#include <array>

namespace trireme {
namespace {

// Blocks that are followed one by one; further ones repeat the last.
constexpr int kFollowed = 3;

// One rank's compute and its link to the replicas, as GradSync and the runner have them.
class ReplicaClock {
 public:
  explicit ReplicaClock(const OwnStage& s) : s_(s) {
    if (s.has_embedding) units_[count_++] = &s.embedding;
    // Fewer than are followed: as they are, rounded.
    const int blocks = int(std::min<double>(kFollowed, std::max(1.0, s.blocks + 0.5)));
    for (int i = 0; i < blocks; i++) units_[count_++] = &s.block;
    if (s.has_head) units_[count_++] = &s.head;
    left_ = s.blocks - blocks;
  }

  // Microbatches one behind the other. reduces: the last of them alone sums its gradients (ZeRO 0 and 1), or
  // each. Ends of compute behind each, and of all sums.
  struct Ends {
    std::array<double, 3> at{};
    double last_pass = 0;  // the end of the last backward pass
    double all = 0;
  };
  Ends run(int microbatches) {
    Ends e;
    const int phases = s_.forwards_first ? 2 : 1;
    for (int phase = 0; phase < phases; phase++)
      for (int m = 0; m < microbatches; m++) list_uses(phase == 0, phase + 1 == phases);
    last_use_ = used_, used_ = 0;
    for (int m = 0; s_.forwards_first && m < microbatches; m++) forward();
    const double begin = now_;
    for (int m = 0; m < microbatches; m++) {
      if (!s_.forwards_first) forward();
      const bool sums = s_.zero >= 2 || m + 1 == microbatches;
      for (int i = count_; i-- > 0;) backward(i, sums);
      for (int i = count_; s_.split && i-- > 0;) {
        if (sums) open();
        now_ += units_[size_t(i)]->weight;
        if (sums) reduce(i);
      }
      // Of all forward passes each has its part.
      const double before = s_.forwards_first ? begin / microbatches * (microbatches - 1 - m) : 0;
      e.at[size_t(m)] = now_ - before;
    }
    e.last_pass = now_;
    e.all = std::max(now_, link_);
    return e;
  }
  // Blocks that are not followed.
  double left() const { return left_; }

 private:
  struct Use {
    int id;
    bool release;
  };
  // Weights that are gathered; they arrive at `at`.
  struct Weights {
    bool gathered = false, arrived = false;
    double at = 0;
  };
  // turns: the use before, of the same unit, is right before this one. Else other passes are between the two,
  // and weights that were released count as a second unit, which may be gathered meanwhile.
  void add_use(int unit, bool release, bool turns) {
    const bool again = used_ > 0 && uses_[size_t(used_ - 1)].id % int(kUnits) == unit;
    const bool other = again && !turns && uses_[size_t(used_ - 1)].release;
    int id = used_ > 0 && again ? uses_[size_t(used_ - 1)].id : unit;
    if (other) id = id < int(kUnits) ? id + int(kUnits) : unit;
    uses_[size_t(used_++)] = {id, release};
  }
  void list_uses(bool forward, bool backward) {
    const bool keeps_last = forward && backward && s_.turns_back && !s_.reshard_last;
    for (int i = 0; forward && i < count_; i++)
      add_use(i, s_.reshard_after_forward && !(keeps_last && i + 1 == count_), s_.turns_on);
    for (int i = count_; backward && i-- > 0;) add_use(i, true, s_.turns_back);
  }
  void forward() {
    for (int i = 0; i < count_; i++) use(units_[size_t(i)]->forward);
  }
  bool gathers() const { return s_.zero == 3; }
  void gather(int id) {
    Weights& w = weights_[size_t(id)];
    if (w.gathered) return;
    link_ = std::max(link_, now_) + units_[size_t(id % int(kUnits))]->gather;
    w = {.gathered = true, .arrived = false, .at = link_};
  }
  // As program/gather_plan.cc.
  void ahead() {
    constexpr int kUnitsOfLayer = 2;
    const auto in_use = [&](int id) {
      return weights_[size_t(id)].gathered &&
             (weights_[size_t(id)].arrived || (used_ > 0 && uses_[size_t(used_ - 1)].id == id));
    };
    int first = used_;
    while (first < last_use_ && first < used_ + kUnitsOfLayer && in_use(uses_[size_t(first)].id)) first++;
    for (int i = first; i < last_use_ && i < first + s_.prefetch; i++) gather(uses_[size_t(i)].id);
  }
  // A pass that uses the unit's weights: they are waited for, those of the next uses are in flight.
  void use(double seconds) {
    if (!gathers()) {
      now_ += seconds;
      return;
    }
    const Use u = uses_[size_t(used_++)];
    Weights& w = weights_[size_t(u.id)];
    gather(u.id);
    ahead();
    if (!w.arrived) now_ = std::max(now_, w.at);
    w.arrived = true;
    now_ += seconds;
    if (u.release) w = {};
    ahead();
  }
  // Two whole sums of gradients at most: the oldest has to be there.
  void wait_pending() {
    while (pending_ - retired_ >= 2) now_ = std::max(now_, sums_[size_t(retired_++)]);
  }
  void open() {
    if (s_.zero >= 2) wait_pending();
  }
  void reduce(int unit) {
    if (s_.cast || s_.zero >= 2) wait_pending();
    link_ = std::max(link_, now_) + units_[size_t(unit)]->reduce;
    sums_[size_t(pending_++)] = link_;
  }
  void backward(int i, bool sums) {
    const OwnUnit& u = *units_[size_t(i)];
    if (!s_.split && sums) open();
    use(u.input + (s_.split ? 0 : u.weight));
    if (!s_.split && sums) reduce(i);
  }

  const OwnStage& s_;
  static constexpr size_t kUnits = kFollowed + 2, kUses = 3 * 2 * kUnits;
  std::array<const OwnUnit*, kUnits> units_{};
  int count_ = 0;
  double left_ = 0;
  double now_ = 0, link_ = 0;
  std::array<Use, kUses> uses_{};
  int used_ = 0, last_use_ = 0;
  std::array<Weights, 2 * kUnits> weights_{};
  std::array<double, 3 * kUnits> sums_{};
  int pending_ = 0, retired_ = 0;
};

double excess(double link, double compute) {
  return std::max(0.0, link - compute);
}

// What a block more waits for in the steady state, its sums under way.
double block_waits(const OwnStage& s) {
  const OwnUnit& b = s.block;
  const double gather = s.zero == 3 ? b.gather : 0, reduce = b.reduce;
  const double again = s.reshard_after_forward ? gather : 0;
  double waits = excess(gather, b.forward);
  if (s.split)
    waits += excess(again, b.input) + excess(reduce, b.weight);
  else
    waits += excess(again + reduce, b.input + b.weight);
  return waits;
}

double passes_of(const OwnStage& s, double blocks) {
  return blocks * s.block.passes() + (s.has_embedding ? s.embedding.passes() : 0) +
         (s.has_head ? s.head.passes() : 0);
}

// Sums that queue without bound behind a backward pass, block by block: the last one's end less the pass's.
double queue_waits(const OwnStage& s) {
  const OwnUnit& b = s.block;
  const double pass = s.split ? b.weight : b.input + b.weight, n = std::max(1.0, s.blocks);
  double now = 0, link = 0;
  if (s.has_head) now += s.split ? s.head.weight : s.head.input + s.head.weight, link = now + s.head.reduce;
  // Of equal blocks either the first or the last makes the others wait.
  link = std::max({link + n * b.reduce, now + pass + n * b.reduce, now + n * pass + b.reduce});
  now += n * pass;
  if (s.has_embedding) {
    now += s.split ? s.embedding.weight : s.embedding.input + s.embedding.weight;
    link = std::max(link, now) + s.embedding.reduce;
  }
  return excess(link, now);
}

}  // namespace

double ring_forward_waits(int64_t n, double core, double hop) {
  return n <= 1 ? 0 : double(n - 1) * excess(hop, core / double(n));
}

double ring_backward_waits(int64_t n, double core, double hop, double sum_hop) {
  if (n <= 1) return 0;
  const double round = core / double(n);
  return excess(hop, round) + double(n - 2) * excess(hop + sum_hop, round) + excess(sum_hop, round) + sum_hop;
}

double own_block_waits(const OwnStage& s) {
  return block_waits(s);
}

OwnWaits own_waits(const OwnStage& s, int64_t microbatches) {
  OwnWaits w;
  if (s.zero < 2 && !s.cast) {
    w.ends = queue_waits(s);
    return w;
  }
  if (s.zero < 2) {
    // Of the last microbatch alone.
    ReplicaClock clock(s);
    const ReplicaClock::Ends e = clock.run(1);
    const double blocks = clock.left(), more = blocks * block_waits(s);
    const double own = passes_of(s, s.blocks - blocks);
    w.last = e.last_pass - own + more;
    w.ends = e.all - own + more;
    return w;
  }
  ReplicaClock clock(s);
  const auto followed = int(std::min<int64_t>(3, microbatches));
  const ReplicaClock::Ends e = clock.run(followed);
  const double blocks = clock.left(), more = blocks * block_waits(s);
  const double own = passes_of(s, s.blocks - blocks);
  const auto last = size_t(followed - 1);
  w.turn = followed > 1 ? e.at[last] - e.at[last - 1] - own + more : e.at[0] - own + more;
  // Of those that were followed, less what the steady state has.
  w.ends = e.all - double(followed) * (own + w.turn - more);
  return w;
}

double own_update(const OwnStage& s) {
  double now = 0, link = 0;
  const auto one = [&](const OwnUnit& u, double n, bool gathers) {
    const double gather = gathers ? u.gather : 0;
    link = std::max({link + n * gather, now + u.update + n * gather, now + n * u.update + gather});
    now += n * u.update;
  };
  const bool gathers = s.zero == 1 || s.zero == 2;
  if (s.has_embedding) one(s.embedding, 1, gathers);
  one(s.block, std::max(1.0, s.blocks), gathers);
  if (s.has_head) one(s.head, 1, gathers);
  return gathers ? std::max(link, now) : now;
}

}  // namespace trireme
