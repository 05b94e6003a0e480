#include "forecast/pipeline_paths.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"

namespace trireme::step_paths {
namespace {

// Microbatches of the schedule that is run. Further ones repeat its middle.
int64_t exact(std::string_view name, int64_t pp, int64_t m) {
  constexpr int64_t kTurns = 6;
  const int64_t most = kTurns * pp;
  return name == "gpipe" || m <= most + pp ? m : most + m % pp;
}

// used: the last action that used weights; at_once: nothing was in between.
ActionSpan span_of(const Action& a, const Action* used, bool at_once) {
  const bool same = used && used->stage == a.stage;
  const bool back = same && used->kind == Act::F;
  switch (a.kind) {
    case Act::F:
      return !same || used->kind == Act::F ? kF : at_once ? kTurnedF : kDelayedF;
    case Act::B:
      return back && at_once ? kTurnedB : kB;
    case Act::I:
      return !back ? kI : at_once ? kTurnedI : kDelayedI;
    default:
      return kW;
  }
}

constexpr int32_t kNone = -2;  // no node

}  // namespace

PipelinePaths::PipelinePaths(std::string_view name, int64_t pp, int64_t chunks, int64_t microbatches,
                             const std::vector<int>& classes) {
  const int64_t run = exact(name, pp, microbatches);
  Schedule s = make_schedule(name, int(pp), int(chunks), int(run));
  if (run < microbatches) {
    part_ = steady_part(s);
    if (part_ && (microbatches - run) % part_->period == 0)
      fewer_ = microbatches - run;
    else
      s = make_schedule(name, int(pp), int(chunks), int(microbatches));
  }
  s = add_step(add_transfers(std::move(s)));
  stages_ = s.stages;
  microbatches_ = s.microbatches;
  const auto number = [&](int to, int mb, bool back) { return (int32_t(mb) * stages_ + to) * 2 + back; };
  ranks_.resize(s.ranks.size());
  const std::vector<int> holder = rank_of_stages(s);
  for (size_t r = 0; r < s.ranks.size(); r++) {
    std::map<int, size_t> last;  // by stage: its last weight gradient
    const Action *before = nullptr, *used = nullptr;
    size_t passes = 0;
    for (const Action& a : s.ranks[r]) {
      if (!has_microbatch(a.kind)) continue;
      Step step{.kind = a.kind, .stage = a.stage, .mb = a.mb};
      if (fewer_ > 0) step.steady = passes >= part_->ranks[r].begin && passes < part_->ranks[r].end;
      if (a.kind == Act::RecvF || a.kind == Act::RecvB) {
        step.message = number(a.stage, a.mb, a.kind == Act::RecvB);
      } else if (a.kind == Act::SendF || a.kind == Act::SendB) {
        const bool back = a.kind == Act::SendB;
        step.message = number(a.stage + (back ? -1 : 1), a.mb, back);
        step.to = holder[size_t(a.stage + (back ? -1 : 1))];
      } else {
        split_ |= a.kind == Act::W;
        step.span = span_of(a, used, used == before);
        passes++;
        if (a.kind == Act::B || a.kind == Act::W) last[a.stage] = ranks_[r].size();
        before = &a;
        if (a.kind != Act::W) used = &a;
      }
      ranks_[r].push_back(step);
    }
    for (const auto& [stage, at] : last) {
      ActionSpan& span = ranks_[r][at].span;
      span = span == kB ? kSummedB : span == kTurnedB ? kTurnedSummedB : kSummedW;
    }
    find_next(ranks_[r]);
    for (Step& step : ranks_[r])
      if (step.to < 0 && step.message < 0)
        step.price = price_of({classes[size_t(step.stage)], step.span, step.next});
    find_fetches(ranks_[r]);
  }
  for (std::vector<Step>& rank : ranks_)
    for (Step& step : rank)
      if (step.to >= 0) step.price = message();
}

uint32_t PipelinePaths::price_of(const Added& a) {
  const auto known = std::find(added_.begin(), added_.end(), a);
  if (known == added_.end()) added_.push_back(a);
  return uint32_t(size_t(std::find(added_.begin(), added_.end(), a) - added_.begin()) * kWays);
}

// Weights of a turned or repeated action are gathered during the same stage's previous action.
void PipelinePaths::find_next(std::vector<Step>& rank) {
  Step* before = nullptr;    // the last pass that used weights
  std::vector<Step*> since;  // weight gradients after it
  for (Step& step : rank) {
    if (step.to >= 0 || step.message >= 0) continue;
    if (step.kind == Act::W) {
      since.push_back(&step);
      continue;
    }
    if (step.span == kTurnedF || step.span == kDelayedF || step.span == kTurnedB ||
        step.span == kTurnedSummedB || step.span == kTurnedI) {
      step.fetched = true;
      before->next = kNextTurned;
      for (Step* w : since) w->next = kNextTurned;
    } else if (before && before->stage == step.stage && before->kind == step.kind) {
      before->next = kNextRepeated;
    }
    before = &step;
    since.clear();
  }
}

// While an action runs, the first weights of the next one are gathered. Turned passes are find_next()'s.
void PipelinePaths::find_fetches(std::vector<Step>& rank) {
  Step* before = nullptr;
  std::vector<Step*> since;  // weight gradients after `before`: they use no weights, or gather ahead too
  for (Step& step : rank) {
    if (step.to >= 0 || step.message >= 0) continue;
    if (step.kind == Act::W) {
      since.push_back(&step);
      continue;
    }
    const bool again = before && before->stage == step.stage;
    if (!again || before->kind == step.kind) {
      step.fetched = true;
      step.first = !before;
      if (before) before->fetch = step.price + uint32_t(again ? kFetchAgain : kFetch);
      if (!again)
        for (Step* w : since) w->fetch = step.price + uint32_t(kFetch);
    }
    before = &step, since.clear();
  }
}

PipelinePaths::Path PipelinePaths::longest(const std::vector<double>& prices, size_t kind, bool look) {
  if (look || paths_.all.empty()) {
    int& in_vain = looked_[kind].in_vain;
    in_vain = search(prices) ? 0 : in_vain + 1;
  }
  Path most;
  for (const Counts& c : paths_.all)
    if (const double s = c.sum(prices); !most.counts || s > most.total) most = {s, &c};
  return most;
}

// The clocks of a rank, with the nodes that set them; -1: the step's begin.
struct PipelinePaths::Clocks {
  struct Clock {
    int32_t node = -1;
    double at = 0;
  };
  Clock compute, before, lane, sum, sum_before, on, back;
  std::optional<Clock> fetched;  // none: unknown
};

bool PipelinePaths::search(const std::vector<double>& prices) {
  // The ways that there are, by Added and ClockTo.
  struct LiveWay {
    size_t from = 0;
    uint32_t price = 0;
    double ns = 0;
  };
  std::vector<LiveWay> ways;
  std::vector<uint32_t> begins = {0};
  for (size_t a = 0; a < added_.size(); a++)
    for (size_t to = 0; to < kTos; to++) {
      for (size_t f = 0; f < kFromAhead; f++)
        if (const size_t price = a * kWays + way_of(ClockFrom(f), ClockTo(to)); prices[price] >= 0)
          ways.push_back({f, uint32_t(price), prices[price]});
      begins.push_back(uint32_t(ways.size()));
    }
  std::vector<Node> nodes;
  size_t steps = 0;
  for (const std::vector<Step>& rank : ranks_) steps += rank.size();
  nodes.reserve(2 * steps);
  using Clock = Clocks::Clock;
  std::vector<Clock> there(size_t(microbatches_) * size_t(stages_) * 2, Clock{.node = kNone});
  std::vector<size_t> at(ranks_.size());
  std::vector<Clocks> clocks(ranks_.size());
  std::vector<size_t> awake;
  for (size_t r = ranks_.size(); r-- > 0;) awake.push_back(r);
  while (!awake.empty()) {
    const size_t r = awake.back();
    awake.pop_back();
    Clocks& c = clocks[r];
    for (; at[r] < ranks_[r].size(); at[r]++) {
      const Step& step = ranks_[r][at[r]];
      const auto add = [&](const Clock& before, uint32_t price) {
        const double end = before.at + prices[price];
        nodes.push_back({end, before.node, price, int32_t(r), int32_t(at[r])});
        return Clock{int32_t(nodes.size()) - 1, end};
      };
      if (step.to >= 0) {
        Clock& stream = step.kind == Act::SendB ? c.back : c.on;
        stream = add(stream.at > c.compute.at ? stream : c.compute, step.price);
        there[size_t(step.message)] = stream, awake.push_back(size_t(step.to));
      } else if (step.message >= 0) {
        const Clock& m = there[size_t(step.message)];
        if (m.node == kNone) break;
        if (m.at > c.compute.at) c.compute = m;
      } else {
        const double* way = &prices[step.price];
        if (step.first && way[kFetch] > 0) c.fetched = add({}, step.price + uint32_t(kFetch));
        const bool fetched = step.fetched && c.fetched;
        const std::array<Clock, kFromAhead> from = {c.compute, c.lane,       c.before,
                                                    c.sum,     c.sum_before, fetched ? *c.fetched : Clock()};
        const size_t first_way = step.price / kWays * kTos;
        const auto later = [&](ClockTo to) {
          const LiveWay* best = nullptr;
          double end = 0;
          for (uint32_t i = begins[first_way + to]; i < begins[first_way + to + 1]; i++) {
            const LiveWay& w = ways[i];
            if (w.from == kFromFetched && !fetched) break;  // it is the last one
            if (const double other = from[w.from].at + w.ns; !best || other > end) {
              best = &w;
              end = other;
            }
          }
          return best ? add(from[best->from], best->price) : Clock{.node = kNone};
        };
        Clock compute = later(kToCompute), lane = later(kToLane), sum = later(kToSum),
              sum_before = later(kToSumBefore);
        const bool ahead_only = step.fetch > 0 && prices[step.fetch] > 0;
        if (step.next == kNextTurned || (step.next == kNextRepeated && !ahead_only)) {
          const Clock arrived = later(kToAhead);
          if (arrived.node != kNone)
            c.fetched = arrived;
          else if (step.kind != Act::W)
            c.fetched.reset();
        } else if (ahead_only) {
          const Clock ahead = later(kToAhead);
          if (ahead.node != kNone) {
            c.fetched = add(ahead, step.fetch);
            // Collectives that were issued later come after it.
            const auto behind = [&](Clock& clock, ClockTo to) {
              const size_t at = way_of(kFromAhead, to);
              if (way[at] >= 0 && c.fetched->at + way[at] > clock.at)
                clock = add(*c.fetched, step.price + uint32_t(at));
            };
            behind(compute, kToCompute);
            behind(lane, kToLane);
            behind(sum, kToSum);
            behind(sum_before, kToSumBefore);
          } else if (step.kind != Act::W)
            c.fetched.reset();
        } else if (step.kind != Act::W) {
          c.fetched.reset();
        }
        // In the order of issue.
        c.lane = c.fetched && c.fetched->at > lane.at ? *c.fetched : lane;
        c.before = c.compute = compute;
        if (sum.node != kNone) {
          c.sum_before = sum_before.node != kNone ? sum_before : c.sum;
          c.sum = sum;
        }
      }
    }
  }
  Clock last;
  for (size_t r = 0; r < ranks_.size(); r++) {
    require(at[r] == ranks_[r].size(), "a schedule stalls without a cause");
    for (const Clock& c : {clocks[r].compute, clocks[r].lane})
      if (last.node < 0 || c.at > last.at) last = c;
  }
  std::vector<int32_t> path;
  for (int32_t n = last.node; n >= 0; n = nodes[size_t(n)].before) path.push_back(n);
  std::vector<float> counts(message() + 1, 0);
  for (const int32_t n : path) counts[nodes[size_t(n)].price] += 1;
  if (fewer_ > 0) add_repeats(nodes, path, counts);
  return paths_.add(Counts(counts));
}

// Between two actions of the path that differ only in their microbatch lies a cycle, which further
// microbatches repeat. The longest cycles are taken first.
void PipelinePaths::add_repeats(const std::vector<Node>& nodes, const std::vector<int32_t>& path,
                                std::vector<float>& counts) const {
  struct Cycle {
    double each = 0;  // nanoseconds of a microbatch
    int64_t microbatches = 0;
    size_t from = 0, to = 0;  // in `path`
  };
  std::vector<Cycle> best;  // by microbatches
  const auto step_of = [&](const Node& n) -> const Step& { return ranks_[size_t(n.rank)][size_t(n.step)]; };
  // Some begins of cycles, and cycles that are not long.
  constexpr size_t kBegins = 24;
  const int64_t longest = std::max<int64_t>(part_->period, 2 * int64_t(ranks_.size()));
  size_t steady = 0;
  for (const int32_t n : path) steady += step_of(nodes[size_t(n)]).steady;
  const size_t stride = std::max<size_t>(1, steady / kBegins);
  size_t met = 0;
  for (size_t i = 0; i < path.size(); i++) {
    const Node& a = nodes[size_t(path[i])];
    const Step& x = step_of(a);
    if (!x.steady || met++ % stride != 0) continue;
    for (size_t j = i; j-- > 0;) {
      const Node& b = nodes[size_t(path[j])];
      const Step& y = step_of(b);
      if (!y.steady || y.mb - x.mb > longest + int64_t(ranks_.size())) break;
      if (a.rank != b.rank || a.price != b.price) continue;
      const int64_t apart = y.mb - x.mb;
      if (x.kind != y.kind || x.stage != y.stage || apart <= 0 || apart > fewer_ ||
          apart % part_->period != 0)
        continue;
      if (apart > longest) break;
      const double each = (b.end - a.end) / double(apart);
      const auto known =
          std::find_if(best.begin(), best.end(), [&](const Cycle& c) { return c.microbatches == apart; });
      if (known == best.end())
        best.push_back({each, apart, j, i});
      else if (each > known->each)
        *known = {each, apart, j, i};
    }
  }
  std::sort(best.begin(), best.end(), [](const Cycle& a, const Cycle& b) { return a.each > b.each; });
  int64_t left = fewer_;
  for (const Cycle& c : best) {
    const int64_t times = left / c.microbatches;
    for (size_t k = c.from; k < c.to; k++) counts[nodes[size_t(path[k])].price] += float(times);
    left -= times * c.microbatches;
  }
}

}  // namespace trireme::step_paths
