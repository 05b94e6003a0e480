#include "sim/steady_step.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "schedule/steady.h"
#include "sim/comb.h"

namespace trireme {
namespace {

// Steps that may look ahead at what ends the part: weights of the layers that come next.
constexpr size_t kAhead = 2;

// One rank's program, and the part of it that repeats.
class SteadyTape {
 public:
  SteadyTape(const RankTape& tape, const RankReplay& replay, int period, int64_t marks, size_t life)
      : tape_(tape), replay_(replay), period_(period), marks_(marks) {
    list_issued();
    find_part();
    from_ = until() > (life + 1) * part_.step ? until() - (life + 1) * part_.step : 0;
  }
  bool repeats() const { return part_.step > 0 && from_ > part_.begin; }
  size_t most_steps() const { return (from_ - part_.begin) / part_.step; }
  // How much later than so many steps before; none: not all of them.
  std::optional<int64_t> later(size_t steps) const {
    const size_t back = steps * part_.step;
    if (steps > most_steps()) return {};
    const int64_t by = time(until() - 1).end - time(until() - 1 - back).end;
    for (size_t i = until(); i-- > from_;) {
      const PieceTime &t = time(i), &before = time(i - back);
      if (t.begin - before.begin != by || t.met - before.met != by || t.end - before.end != by) return {};
    }
    return by;
  }

  int rank() const { return tape_.rank; }
  size_t from() const { return from_; }
  size_t until() const { return part_.end > kAhead * part_.step ? part_.end - kAhead * part_.step : 0; }
  const std::vector<Piece>& pieces() const { return tape_.tape->pieces; }
  // Nothing behind the part that was looked at waits for what was issued before it, but for what is long
  // done.
  bool reaches() const {
    const int64_t begun = begin_of_thread();
    for (size_t lane = 1; lane < issued_.size(); lane++) {
      const auto in = std::lower_bound(issued_[lane].begin(), issued_[lane].end(), from_);
      const bool used = in != issued_[lane].end() && *in < until();
      if (!used && in != issued_[lane].begin() && time(*std::prev(in)).end > begun) return false;
    }
    for (size_t i = until(); i < pieces().size(); i++) {
      const Piece& p = pieces()[i];
      if (p.kind != PieceKind::wait || p.on <= 0 || p.mark == 0) continue;
      const size_t target = issued_[size_t(p.on)][size_t(p.mark) - 1];
      if (target < from_ && time(target).end > begun) return false;
    }
    return true;
  }
  // Of the rank's thread: where the part that was looked at ends.
  int64_t thread_at() const {
    size_t i = until();
    while (i > 0 && pieces()[i - 1].stream != 0) i--;
    return i > 0 ? time(i - 1).end : 0;
  }
  std::vector<Stretch> stretches(int64_t makespan) const { return stretches_of(tape_, replay_, makespan); }

 private:
  const PieceTime& time(size_t i) const { return replay_.pieces[i]; }
  // When the thread comes to the part that is looked at.
  int64_t begin_of_thread() const {
    size_t i = from_;
    while (i < pieces().size() && pieces()[i].stream != 0) i++;
    return i < pieces().size() ? time(i).begin : 0;
  }
  void list_issued() {
    issued_.resize(tape_.tape->streams.size());
    for (size_t i = 0; i < pieces().size(); i++) issued_[size_t(pieces()[i].stream)].push_back(i);
  }
  // Is piece j as i, of later microbatches?
  bool same(size_t i, size_t j) const {
    const Piece &a = pieces()[i], &b = pieces()[j];
    const Price &x = tape_.prices[i], &y = tape_.prices[j];
    if (a.kind != b.kind || a.stream != b.stream || a.group != b.group || a.peer != b.peer || a.on != b.on ||
        a.payload != b.payload || x.before != y.before || x.time != y.time || a.name != b.name ||
        a.layer != b.layer || a.action != b.action)
      return false;
    if (a.microbatch < 0 ? b.microbatch >= 0 : b.microbatch != a.microbatch + period_) return false;
    if (a.kind == PieceKind::send || a.kind == PieceKind::recv) return b.mark == a.mark + marks_;
    if (a.kind != PieceKind::wait || a.on <= 0 || a.mark == 0) return a.mark == b.mark;
    // What it waits for is as many pieces before it.
    const std::vector<size_t>& lane = issued_[size_t(a.on)];
    return b.mark > 0 && i - lane[size_t(a.mark) - 1] == j - lane[size_t(b.mark) - 1];
  }
  // Around the forward of the microbatch in the middle.
  void find_part() {
    std::vector<size_t> forwards;  // of the first layer that runs
    std::string_view layer;
    for (size_t i = 0; i < pieces().size(); i++) {
      const Piece& p = pieces()[i];
      if (p.kind != PieceKind::op || p.name != "F" || p.microbatch < 0) continue;
      if (forwards.empty()) layer = p.layer;
      if (p.layer != layer) continue;
      forwards.resize(std::max(forwards.size(), size_t(p.microbatch) + 1));
      forwards[size_t(p.microbatch)] = i;
    }
    const size_t middle = forwards.size() / 2, next = middle + size_t(period_);
    if (next >= forwards.size() || forwards[next] <= forwards[middle]) return;
    const size_t step = forwards[next] - forwards[middle];
    part_ =
        repeats_around(forwards[middle], step, pieces().size(), [&](size_t i) { return same(i, i + step); });
  }

  const RankTape& tape_;
  const RankReplay& replay_;
  int period_;
  int64_t marks_;  // by which messages of later microbatches are numbered on
  std::vector<std::vector<size_t>> issued_;
  Repeats part_;
  size_t from_ = 0;
};

// Every message that comes behind the part that was looked at leaves its sender in that part or behind it.
bool messages_reach(const std::vector<SteadyTape>& tapes, const std::vector<RankTape>& given) {
  std::map<int, size_t> of_rank;
  for (size_t i = 0; i < tapes.size(); i++) of_rank[tapes[i].rank()] = i;
  std::vector<std::map<std::pair<int, int64_t>, size_t>> sends(tapes.size());  // by receiver and number
  const auto peer = [&](size_t i, const Piece& p) {
    return given[i].place ? given[i].place->peers.at(size_t(p.peer)) : p.peer;
  };
  for (size_t i = 0; i < tapes.size(); i++)
    for (size_t k = tapes[i].from(); k < tapes[i].pieces().size(); k++)
      if (const Piece& p = tapes[i].pieces()[k]; p.kind == PieceKind::send)
        sends[i][{peer(i, p), p.mark}] = k;
  for (size_t i = 0; i < tapes.size(); i++)
    for (size_t k = tapes[i].until(); k < tapes[i].pieces().size(); k++) {
      const Piece& p = tapes[i].pieces()[k];
      if (p.kind == PieceKind::recv && !sends[of_rank.at(peer(i, p))].count({tapes[i].rank(), p.mark}))
        return false;
    }
  return true;
}

int64_t idle_before(const std::vector<Stretch>& all, int64_t begin, int64_t end) {
  int64_t idle = 0;
  for (const Stretch& s : all)
    if (s.use == Use::bubble || s.use == Use::pp)
      idle += std::max<int64_t>(0, std::min(s.end, end) - std::max(s.begin, begin));
  return idle;
}

StepTotals totals_of(const World& w, const WorldReplay& all) {
  StepTotals t{
      .makespan = all.replay.makespan, .pieces = all.pieces, .microbatches = w.schedule.microbatches};
  for (size_t i = 0; i < all.tapes.size(); i++)
    t.bubble =
        std::max(t.bubble, own_span(stretches_of(all.tapes[i], all.replay.ranks[i], t.makespan)).bubble());
  return t;
}

// Of a step of which `fewer` microbatches were left out.
class ShortStep {
 public:
  ShortStep(const World& w, const SteadyPart& part, size_t life, const WorldReplay& all)
      : all_(all), period_(part.period) {
    for (size_t i = 0; i < all.tapes.size(); i++)
      tapes_.emplace_back(all.tapes[i], all.replay.ranks[i], period_,
                          int64_t(period_) * w.schedule.stages * 2, life);
  }
  // Microbatches behind which all is as it was, but later; 0: not found.
  int found() {
    for (const SteadyTape& t : tapes_)
      if (!t.repeats() || !t.reaches()) return 0;
    for (size_t steps = 1; steps <= tapes_[0].most_steps(); steps++) {
      const std::optional<int64_t> first = tapes_[0].later(steps);
      if (!first) continue;
      const bool all = std::all_of(tapes_.begin(), tapes_.end(),
                                   [&](const SteadyTape& t) { return t.later(steps) == first; });
      if (!all) continue;
      later_ = *first;
      return messages_reach(tapes_, all_.tapes) ? int(steps) * period_ : 0;
    }
    return 0;
  }
  // `times` those microbatches come besides.
  StepTotals with(int64_t times) const {
    StepTotals t{.makespan = all_.replay.makespan + times * later_, .pieces = all_.pieces};
    for (const SteadyTape& tape : tapes_) {
      const std::vector<Stretch> stretches = tape.stretches(all_.replay.makespan);
      OwnSpan span = own_span(stretches);
      const int64_t end = tape.thread_at();
      span.end += times * later_;
      span.idle += times * idle_before(stretches, end - later_, end);
      t.bubble = std::max(t.bubble, span.bubble());
    }
    return t;
  }

 private:
  const WorldReplay& all_;
  int period_;
  std::vector<SteadyTape> tapes_;
  int64_t later_ = 0;
};

}  // namespace

StepTotals step_totals(const World& w) {
  const auto whole = [&] { return totals_of(w, replay_world(w)); };
  if (w.disturbed.any() || w.share_links) return whole();
  const std::optional<SteadyPart> part = steady_part(w.schedule);
  if (!part) return whole();
  size_t life = 0;  // steps
  for (size_t r = 0; r < part->ranks.size(); r++)
    life = std::max(life, longest_life(w.schedule.ranks[r], part->ranks[r]) / part->ranks[r].step + 1);
  int round = part->period;
  for (size_t keep = 2 * life + kAhead + 4;;) {
    const int fewer = part->removable(keep) / round * round;
    if (fewer < w.schedule.microbatches / 4) return whole();
    World less = w;
    less.schedule = shortened(w.schedule, *part, fewer);
    const WorldReplay all = replay_world(less);
    ShortStep step(less, *part, life, all);
    const int found = step.found();
    if (found == 0) {
      keep *= 2;
    } else if (fewer % found == 0) {
      StepTotals t = step.with(fewer / found);
      t.microbatches = less.schedule.microbatches;
      return t;
    } else {
      round = std::lcm(round, found);
    }
  }
}

}  // namespace trireme
