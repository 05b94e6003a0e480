#include "sim/step_clock.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "sim/comb.h"
#include "sim/op_pieces.h"

namespace trireme {

// The streams of one rank. OpPieces moves them.
struct StepClock::Rank {
  // An end of something, and what it waited for besides the rank's thread; on < 0: nothing.
  struct Event {
    int64_t end = 0;
    int32_t rank = 0, on = -1;
  };
  Rank(const World& w, int pp, const Holders& holders, std::vector<Message>& all)
      : rank(pp),
        shape(shape_of(w, pp)),
        program(lower({.actions = w.schedule.ranks[size_t(pp)], .holders = &holders}, shape, policy_of(w))),
        messages(all),
        pieces(w, pp, shape, program, *this) {
    at.reserve(program.ops.size() + 1);
  }

  void action(std::string_view, int) {}
  void op(int64_t time, std::string_view name, int32_t) {
    const bool work = name != "Step" && time > 0;
    if (work && !begun) begun = true, span.begin = now;
    now += time;
    if (work) span.end = now, span.idle = idle;
    events.push_back({now});
  }
  void call(int stream, GroupKind, std::string_view, int32_t, int64_t time) {
    if (stream == kCompute) return events.push_back({now});  // the norm: all ranks have arrived
    issue(stream, time);
  }
  void wait(int stream, int64_t mark) {
    int32_t on = -1;
    if (mark > 0) {
      on = ends[size_t(stream)][size_t(mark) - 1];
      now = std::max(now, events[size_t(on)].end);
    }
    events.push_back({now, rank, on});
  }
  int64_t issued(int stream) const { return int64_t(ends[size_t(stream)].size()); }
  void send(const Op& op, int stream, int64_t number, int64_t time) {
    const int32_t event = issue(stream, time);
    Message& m = messages[size_t(number)];
    require(m.there < 0, "a message is sent once");
    m = {events.back().end, rank, event};
    sent_to = op.peer;
  }
  void receive(const Op&, int64_t number) {
    const Message& m = messages[size_t(number)];
    if (begun) idle += std::max<int64_t>(0, m.there - now);
    now = std::max(now, m.there);
    events.push_back({now, m.rank, m.event});
  }
  // Whether the next operation is a message that is not there.
  bool blocked() const {
    return pieces.op().kind == OpKind::receive && messages[size_t(pieces.number(pieces.op()))].there < 0;
  }
  bool at_norm() const { return pieces.at() == size_t(program.norm); }
  void next() {
    mark();
    const size_t before = pieces.at();
    pieces.next();
    // Passes by turns are one place.
    for (size_t i = before + 1; i < pieces.at(); i++) mark();
  }
  void mark() { at.push_back({int32_t(events.size()), now, idle}); }
  int64_t last_end() const {
    int64_t end = now;
    for (const std::vector<int32_t>& all : ends)
      if (!all.empty()) end = std::max(end, events[size_t(all.back())].end);
    return end;
  }

  int32_t rank;
  RankShape shape;
  Program program;
  std::vector<Message>& messages;
  int64_t now = 0, idle = 0;
  bool begun = false;
  OwnSpan span;
  std::vector<Event> events;
  std::array<std::vector<int32_t>, kStreams> ends;  // by stream: events
  int sent_to = -1;
  struct Place {
    int32_t event = 0;  // the first
    int64_t now = 0, idle = 0;
  };
  std::vector<Place> at;  // by operation
  OpPieces<Rank> pieces;

 private:
  int32_t issue(int stream, int64_t time) {
    std::vector<int32_t>& lane = ends[size_t(stream)];
    const int32_t before = lane.empty() ? -1 : lane.back();
    const int64_t free = before < 0 ? 0 : events[size_t(before)].end;
    lane.push_back(int32_t(events.size()));
    events.push_back({std::max(free, now) + time, rank, before});
    return lane.back();
  }

 public:
  // ---- repeats ----

  // Places [from, until) are compared.
  struct Part {
    size_t begin = 0, step = 0, from = 0, until = 0;
    bool any() const { return step > 0 && from > begin; }
    size_t most_steps() const { return (from - begin) / step; }
  };
  // Is operation i + step as operation i, of later microbatches?
  bool same(size_t i, size_t step, int period) const {
    const Op &a = program.ops[i], &b = program.ops[i + step];
    return a.kind == b.kind && a.adds == b.adds && a.back == b.back && a.stage == b.stage &&
           a.peer == b.peer && a.layer == b.layer && a.unit == b.unit && a.last == b.last &&
           a.by_turns == b.by_turns && (a.mb < 0 ? b.mb < 0 : b.mb == a.mb + period) &&
           (a.after < 0 ? b.after < 0 : b.after == a.after + int32_t(step));
  }
  // Around the forward pass of the microbatch in the middle.
  Part part_of(int period, size_t life) const {
    std::vector<size_t> forwards;  // those of the first layer that runs
    int32_t layer = -1;
    for (size_t i = 0; i < program.ops.size(); i++) {
      const Op& op = program.ops[i];
      if (op.kind != OpKind::forward || (layer >= 0 && op.layer != layer)) continue;
      layer = op.layer;
      forwards.resize(std::max(forwards.size(), size_t(op.mb) + 1));
      forwards[size_t(op.mb)] = i;
    }
    const size_t middle = forwards.size() / 2, next = middle + size_t(period);
    if (next >= forwards.size() || forwards[next] <= forwards[middle]) return {};
    const size_t step = forwards[next] - forwards[middle];
    const Repeats all = repeats_around(forwards[middle], step, program.ops.size(),
                                       [&](size_t i) { return same(i, step, period); });
    Part p{.begin = all.begin, .step = all.step};
    if (all.step == 0 || all.end < kAhead * step) return {};
    p.until = all.end - kAhead * step;
    p.from = p.until > (life + 1) * step ? p.until - (life + 1) * step : 0;
    return p;
  }
  // How much later than `back` operations before; nothing: not all of them.
  std::optional<int64_t> later(const Part& p, size_t back) const {
    const int64_t by = at[p.until].now - at[p.until - back].now;
    if (at[p.from].now - at[p.from - back].now != by) return {};
    const int32_t events_back = at[p.until].event - at[p.until - back].event;
    for (int32_t i = at[p.from].event; i < at[p.until].event; i++)
      if (events[size_t(i)].end - events[size_t(i - events_back)].end != by) return {};
    return by;
  }
};

StepClock::~StepClock() = default;

StepClock::StepClock(const World& w) {
  if (w.schedule.copies != 1)
    bad_request("a schedule with {} copies of each stage; a simulated world has one", w.schedule.copies);
  if (int(w.schedule.ranks.size()) != w.mesh.size(Axis::pp))
    bad_request("a schedule of {} ranks on pp = {}", w.schedule.ranks.size(), w.mesh.size(Axis::pp));
  require(!w.disturbed.any() && !w.share_links, "a clock needs an undisturbed step");
  require(int(w.work.stages.size()) == w.schedule.stages, "a world has the work of each stage");
  messages_.resize(size_t(w.schedule.microbatches) * size_t(w.schedule.stages) * 2);
  const Holders holders(w.schedule);
  int64_t most = 0;
  for (size_t r = 0; r < w.schedule.ranks.size(); r++) {
    ranks_.push_back(std::make_unique<Rank>(w, int(r), holders, messages_));
    most += int64_t(ranks_.back()->program.ops.size());
  }
  if (most > kMostReplayed)
    bad_request("{} events are too many to replay; right is at most {}: fewer microbatches", most,
                kMostReplayed);
  // Ranks that wait for nothing run as far as they can and wake the others.
  std::vector<size_t> awake;
  for (size_t r = ranks_.size(); r-- > 0;) awake.push_back(r);
  while (!awake.empty()) {
    Rank& r = *ranks_[awake.back()];
    awake.pop_back();
    while (!r.at_norm() && !r.blocked()) {
      r.sent_to = -1;
      r.next();
      if (r.sent_to < 0) continue;
      const Rank& to = *ranks_[size_t(r.sent_to)];
      if (!to.at_norm() && !to.blocked()) awake.push_back(size_t(r.sent_to));
    }
  }
  int64_t met = 0;
  for (const auto& r : ranks_) {
    if (!r->at_norm())
      run_failed("replay: the step stalls: pipeline rank {} waits at operation {} for what never comes",
                 r->rank, r->pieces.at());
    met = std::max(met, r->now);
  }
  for (const auto& r : ranks_) {
    r->now = met;
    while (!r->pieces.ended()) r->next();
    makespan_ = std::max(makespan_, r->last_end());
  }
}

double StepClock::bubble() const {
  double most = 0;
  for (const auto& r : ranks_) most = std::max(most, r->span.bubble());
  return most;
}

double StepClock::bubble_with(const Repeat& repeat, int64_t times) const {
  double most = 0;
  for (size_t r = 0; r < ranks_.size(); r++) {
    OwnSpan span = ranks_[r]->span;
    span.end += times * repeat.later, span.idle += times * repeat.idle[r];
    most = std::max(most, span.bubble());
  }
  return most;
}

int64_t StepClock::pieces() const {
  int64_t all = 0;
  for (const auto& r : ranks_) all += int64_t(r->events.size()) + 1;
  return all;
}

std::optional<StepClock::Repeat> StepClock::repeat(const SteadyPart& steady, size_t life) const {
  std::vector<Rank::Part> parts;
  for (const auto& r : ranks_) {
    parts.push_back(r->part_of(steady.period, life));
    if (!parts.back().any()) return {};
  }
  // No operation after these places waits for one before them, unless that one has ended when the rank comes
  // to them. So everything later follows from these places.
  const auto reaches = [&](size_t steps) {
    for (size_t r = 0; r < ranks_.size(); r++) {
      const Rank& rank = *ranks_[r];
      const Rank::Part& p = parts[r];
      const auto first = size_t(rank.at[p.until - steps * p.step].event);
      for (size_t i = first; i < rank.events.size(); i++) {
        const Rank::Event& e = rank.events[i];
        if (e.on < 0) continue;
        const Rank& other = *ranks_[size_t(e.rank)];
        if (e.on < other.at[parts[size_t(e.rank)].from].event &&
            other.events[size_t(e.on)].end > rank.at[p.from].now)
          return false;
      }
    }
    return true;
  };
  for (size_t steps = 1; steps <= parts[0].most_steps(); steps++) {
    std::optional<int64_t> by;
    bool all = true;
    for (size_t r = 0; r < ranks_.size() && all; r++) {
      if (steps > parts[r].most_steps()) return {};
      const std::optional<int64_t> own = ranks_[r]->later(parts[r], steps * parts[r].step);
      all = own && (!by || *own == *by);
      by = own;
    }
    if (!all) continue;
    if (!reaches(steps)) return {};
    Repeat found{.microbatches = int(steps) * steady.period, .later = *by, .idle = {}};
    for (size_t r = 0; r < ranks_.size(); r++) {
      const Rank::Part& p = parts[r];
      found.idle.push_back(ranks_[r]->at[p.until].idle - ranks_[r]->at[p.until - steps * p.step].idle);
    }
    return found;
  }
  return {};
}

}  // namespace trireme
