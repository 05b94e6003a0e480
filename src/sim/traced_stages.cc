#include "sim/traced_stages.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/timed.h"

namespace trireme {
namespace {

// What a file may say; more is nobody's run, and its sums would overflow.
constexpr int kMostStages = 1024, kMostMicrobatches = 1 << 16;
constexpr double kMostEach = 1e12;  // nanoseconds (a quarter of an hour) or bytes of an action

// "F" of "F 3", as a file names the action of a microbatch.
std::string_view kind_of_action(const Span& s) {
  return s.name.substr(0, s.name.find(' '));
}

struct RankTrace {
  std::vector<Span> actions;     // in the order they began
  std::vector<double> messages;  // of those it sent: nanoseconds that data moved
  int stage = 0;
  bool neighbours = false;  // that it has some, and so which stage it is
};

// "pp forward to 2": a way between neighbours, of which this rank is one end.
struct Way {
  bool forward = false, sends = false;
  int peer = 0;
  // With one stage a rank the next rank has the next stage.
  int own() const { return forward == sends ? peer - 1 : peer + 1; }
};
bool read_way(std::string_view lane, Way& way) {
  for (bool forward : {true, false})
    for (bool sends : {true, false}) {
      const std::string head =
          std::string("pp ") + (forward ? "forward" : "backward") + (sends ? " to " : " from ");
      if (!lane.starts_with(head)) continue;
      way.forward = forward, way.sends = sends;
      lane.remove_prefix(head.size());
      return std::from_chars(lane.data(), lane.data() + lane.size(), way.peer).ec == std::errc();
    }
  return false;
}

std::map<int, RankTrace> traces_by_rank(std::span<const Span> spans) {
  std::map<int, RankTrace> all;
  for (const Span& s : spans) {
    Way way;
    if (s.kind == SpanKind::action) all[s.rank].actions.push_back(s);
    if (s.kind != SpanKind::comm || !read_way(s.lane, way)) continue;
    if (way.peer < 0 || way.peer >= kMostStages || way.own() < 0)
      bad_request("the trace of rank {} names a lane \"{}\"; right are neighbours from 0 to {}", s.rank,
                  s.lane, kMostStages - 1);
    RankTrace& r = all[s.rank];
    if (r.neighbours && r.stage != way.own())
      bad_request("the trace of rank {} has messages of stages {} and {}; right is one stage a rank", s.rank,
                  r.stage, way.own());
    r.stage = way.own(), r.neighbours = true;
    if (way.sends) r.messages.push_back(double(s.end_ns - std::max(s.begin_ns, s.met_ns)));
  }
  for (auto& [rank, r] : all)
    std::stable_sort(r.actions.begin(), r.actions.end(),
                     [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  return all;
}

// Of one rank's actions of a kind: how long they took, and by how much the next one finds more activations.
struct Taken {
  std::vector<double> ns, bytes;
};
Taken taken(const RankTrace& r, std::string_view kind) {
  constexpr auto kActivations = size_t(Bucket::activations);
  Taken t;
  for (size_t i = 0; i < r.actions.size(); i++) {
    const Span& s = r.actions[i];
    if (kind_of_action(s) != kind) continue;
    t.ns.push_back(double(s.end_ns - s.begin_ns));
    if (i + 1 < r.actions.size() && r.actions[i + 1].step == s.step)
      t.bytes.push_back(double(r.actions[i + 1].memory[kActivations] - s.memory[kActivations]));
  }
  return t;
}

int microbatches_of(int rank, const RankTrace& r) {
  std::set<std::pair<int64_t, int32_t>> seen;  // step, microbatch
  int most = -1;
  for (const Span& s : r.actions) {
    if (kind_of_action(s) == "B")
      bad_request(
          "the trace of rank {} has whole backward passes (B); right is the trace of a run whose schedule "
          "has "
          "them in two, such as layout.schedule = \"zb-h1\"",
          rank);
    if (kind_of_action(s) != "F") continue;
    if (s.microbatch < 0 || s.microbatch >= kMostMicrobatches)
      bad_request("the trace of rank {} has microbatch {}; right are those from 0 to {}", rank, s.microbatch,
                  kMostMicrobatches - 1);
    if (!seen.insert({s.step, s.microbatch}).second)
      bad_request(
          "the trace of rank {} has microbatch {} twice in step {}: several stages a rank, where right is "
          "one "
          "(layout.chunks = 1), or a step that was taken back, where right is another one "
          "(train.trace_steps)",
          rank, s.microbatch, s.step);
    most = std::max(most, int(s.microbatch));
  }
  return most + 1;
}

int64_t rounded(double x) {
  if (!(x <= kMostEach))
    bad_request("the trace has actions of {:.3g} nanoseconds or bytes; right are up to {:.3g}", x, kMostEach);
  return int64_t(std::llround(std::max(0.0, x)));
}

void add_rank(TracedStages& all, const RankTrace& r) {
  const Taken f = taken(r, "F"), i = taken(r, "I"), w = taken(r, "W"), again = taken(r, "R");
  StageTimes& t = all.times[size_t(r.stage)];
  t.forward = std::max(t.forward, rounded(median(f.ns)));
  t.input = std::max(t.input, rounded(median(i.ns) + median(again.ns)));
  t.weight = std::max(t.weight, rounded(median(w.ns)));
  t.send = std::max(t.send, rounded(median(r.messages)));
  const int64_t kept = rounded(median(f.bytes)), left = kept - rounded(-median(i.bytes));
  HeldLimit& h = all.held[size_t(r.stage)];
  h.before_input = std::max(h.before_input, std::max<int64_t>(kept, 1));
  h.before_weight = std::max(h.before_weight, std::clamp<int64_t>(left, 0, h.before_input));
}

}  // namespace

TracedStages traced_stages(std::span<const Span> spans) {
  const std::map<int, RankTrace> ranks = traces_by_rank(spans);
  TracedStages all;
  int stages = 0;
  for (const auto& [rank, r] : ranks) {
    all.microbatches = std::max(all.microbatches, microbatches_of(rank, r));
    stages = std::max(stages, r.stage + 1);
  }
  if (all.microbatches == 0)
    bad_request("the trace has no forward pass (F); right is the trace of a run's steps (train.trace_steps)");
  all.times.assign(size_t(stages), {.forward = 0, .input = 0, .weight = 0});
  all.held.assign(size_t(stages), {.most = 0, .before_input = 0, .before_weight = 0});
  for (const auto& [rank, r] : ranks) add_rank(all, r);
  for (size_t s = 0; s < all.times.size(); s++)
    if (all.times[s].forward + all.times[s].input + all.times[s].weight == 0)
      bad_request("the trace has no action of stage {} of {}", s, stages);
  return all;
}

}  // namespace trireme
