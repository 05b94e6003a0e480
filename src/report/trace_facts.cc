#include "report/trace_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/progress.h"
#include "report/clocks.h"
#include "report/step_comb.h"
#include "report/trace_scan.h"
#include "trace/summary.h"

namespace trireme {
namespace {

constexpr size_t kLongest = 20;                      // pauses of a rank that are kept
constexpr size_t kSamples = 400;                     // memory samples per rank, about
constexpr int64_t kMostMakespan = int64_t(1) << 61;  // ns, of all ranks together

struct OpKey {
  std::string_view name, layer;
  bool operator==(const OpKey&) const = default;
};
struct OpHash {
  size_t operator()(const OpKey& k) const {
    return std::hash<std::string_view>()(k.name) * 31 + std::hash<std::string_view>()(k.layer);
  }
};

// Memory over time in few samples: neighbours are merged, the larger total stays.
class MemoryThinner {
 public:
  static int64_t total(const BucketBytes& b) {
    int64_t sum = 0;
    for (int64_t x : b) sum += x;
    return sum;
  }
  static void add(std::vector<MemorySample>& all, MemorySample s) {
    if (!all.empty() && all.back().bytes == s.bytes) return;
    all.push_back(s);
    if (all.size() < 2 * kSamples) return;
    std::vector<MemorySample> half;
    for (size_t i = 0; i + 1 < all.size(); i += 2)
      half.push_back(total(all[i].bytes) >= total(all[i + 1].bytes) ? all[i] : all[i + 1]);
    all = std::move(half);
  }
};

class FactReader : public TraceSink {
 public:
  FactReader(const RunRecord& record, TraceFacts& facts) : facts_(facts) {
    if (record.run) mesh_ = mesh_of(record.run->layout);
    for (const StepLine& s : record.steps)
      if (known(s.stall_s)) stalls_[s.step] = int64_t(s.stall_s * 1e9);
  }

  void span(const Span& s) override {
    if (s.step != step_) flush();
    step_ = s.step;
    if (size_t(s.rank) >= spans_.size()) spans_.resize(size_t(s.rank) + 1);
    if (spans_[size_t(s.rank)].empty()) present_.push_back(size_t(s.rank));
    spans_[size_t(s.rank)].push_back(s);
  }

  // The next trace has its own clock. Texts of this one end.
  void end() override {
    flush();
    close_block();
    step_ = last_step_ = -2;
    keep_ops();
  }

  // Leaves out what is not in the facts yet: its texts end with the trace that could not be read.
  void drop() {
    spans_.clear();
    present_.clear();
    ops_.clear();
    open_steps_.clear();
    open_ = false;
    for (RankState& state : states_) state.open.clear();
    for (TracedRank& rank : facts_.ranks) rank.steps.resize(facts_.steps.size());
    step_ = last_step_ = -2;
  }

 private:
  struct RankState {
    int64_t step_end = 0;       // end of its last step, aligned
    std::vector<Stretch> open;  // stretches of the block, aligned times
  };

  void flush() {
    std::vector<RankCalls> calls;
    std::vector<size_t> present;
    std::sort(present_.begin(), present_.end());
    for (size_t r : present_) {
      const bool steps = std::any_of(spans_[r].begin(), spans_[r].end(),
                                     [](const Span& s) { return s.kind == SpanKind::step; });
      if (steps) present.push_back(r);
    }
    // Times of a hostile trace add up to more than a number holds.
    const int64_t room = kMostMakespan / int64_t(facts_.ranks.size() + present.size() + 1);
    if (!present.empty() && facts_.comb.makespan < room) {
      for (size_t r : present) {
        calls.push_back({.rank = int(r), .calls = {}});
        for (const Span& s : spans_[r])
          if (s.kind == SpanKind::comm) calls.back().calls.push_back(s);
      }
      const std::vector<int64_t> offsets = clock_offsets(mesh_, calls);
      for (size_t i = 0; i < calls.size(); i++)
        for (Span& s : calls[i].calls) {
          s.begin_ns -= offsets[i];
          s.end_ns -= offsets[i];
          s.met_ns -= offsets[i];
        }
      take_step(present, calls, offsets);
    }
    for (size_t r : present_) spans_[r].clear();
    present_.clear();
  }

  size_t row_of(size_t rank) {
    const auto it = std::find_if(facts_.ranks.begin(), facts_.ranks.end(),
                                 [&](const TracedRank& r) { return size_t(r.rank) == rank; });
    if (it != facts_.ranks.end()) return size_t(it - facts_.ranks.begin());
    facts_.ranks.push_back({.rank = int(rank), .steps = {}, .pauses = {}, .memory = {}});
    facts_.comb.rows.push_back({.name = fmt::format("rank {}", rank), .stretches = {}});
    states_.emplace_back();
    return facts_.ranks.size() - 1;
  }

  void take_step(const std::vector<size_t>& present, const std::vector<RankCalls>& calls,
                 const std::vector<int64_t>& offsets) {
    const bool follows = last_step_ >= 0 && step_ == last_step_ + 1;
    if (!follows) close_block();
    TracedStep t{.step = step_};
    int64_t lengths = 0;
    std::vector<StepUse> uses;
    for (size_t i = 0; i < present.size(); i++) {
      for (Span& s : spans_[present[i]]) {
        s.begin_ns -= offsets[i];
        s.end_ns -= offsets[i];
        s.met_ns -= offsets[i];
        count(s);
      }
      uses.push_back(use_of_step(spans_[present[i]], present.size() == 1));
      const StepUse& u = uses.back();
      t.begin = i == 0 ? u.begin : std::min(t.begin, u.begin);
      t.end = i == 0 ? u.end : std::max(t.end, u.end);
      lengths += u.end - u.begin;
    }
    t.length = lengths / int64_t(present.size());
    if (!open_) {
      block_begin_ = t.begin;
      block_end_ = t.end;
    }
    open_ = true;
    block_end_ = std::max(block_end_, t.end);
    for (size_t i = 0; i < present.size(); i++) {
      const size_t row = row_of(present[i]);
      facts_.ranks[row].clock_offset = offsets[i];
      take_rank(row, uses[i], calls, i);
    }
    open_steps_.push_back(t);
    last_step_ = step_;
  }

  void take_rank(size_t row, const StepUse& u, const std::vector<RankCalls>& calls, size_t index) {
    RankState& state = states_[row];
    TracedRank& rank = facts_.ranks[row];
    if (state.open.empty()) state.step_end = block_begin_;
    rank.steps.resize(facts_.steps.size() + open_steps_.size() + 1);
    between(row, u.begin);
    for (const Stretch& s : u.stretches) push(row, s);
    state.step_end = std::max(state.step_end, u.end);
    for (const Pause& p : u.pauses) keep_pause(rank, p, calls, index);
    for (const Span& s : spans_[size_t(rank.rank)]) {
      if (s.kind == SpanKind::comm) continue;
      for (size_t b = 0; b < kBuckets; b++) rank.peak[b] = std::max(rank.peak[b], s.memory[b]);
      MemoryThinner::add(rank.memory, {position(s.begin_ns), s.memory});
    }
  }

  int64_t position(int64_t ns) const { return facts_.comb.makespan + ns - block_begin_; }

  // From the end of the rank's last step to the begin of the next: first what its save took.
  void between(size_t row, int64_t end) {
    RankState& state = states_[row];
    int64_t at = state.step_end;
    if (end <= at) return;
    const auto stall = stalls_.find(step_);
    if (stall != stalls_.end() && !state.open.empty()) {
      const int64_t saved = std::min(end, at + stall->second);
      if (saved > at) push(row, {Use::save, at, saved});
      at = std::max(at, saved);
    }
    if (end > at) push(row, {Use::between, at, end});
  }

  // A stretch that begins before the last one ended loses its begin.
  void push(size_t row, Stretch s) {
    RankState& state = states_[row];
    const int64_t at = state.open.empty() ? block_begin_ : state.open.back().end;
    s.begin = std::max(s.begin, at);
    if (s.end <= s.begin) return;
    facts_.ranks[row].steps.back()[size_t(s.use)] += s.end - s.begin;
    if (!state.open.empty() && state.open.back().use == s.use && state.open.back().end == s.begin)
      state.open.back().end = s.end;
    else
      state.open.push_back(s);
  }

  // Ends the run of steps that follow one another: all rows then end together, and get their place in the
  // comb.
  void close_block() {
    if (!open_) return;
    const size_t steps = facts_.steps.size() + open_steps_.size();
    for (size_t row = 0; row < facts_.ranks.size(); row++) {
      RankState& state = states_[row];
      facts_.ranks[row].steps.resize(steps);
      const int64_t at = state.open.empty() ? block_begin_ : state.open.back().end;
      if (block_end_ > at) push(row, {Use::between, at, block_end_});
      std::vector<Stretch>& out = facts_.comb.rows[row].stretches;
      const int64_t done = out.empty() ? 0 : out.back().end;
      if (facts_.comb.makespan > done) out.push_back({Use::between, done, facts_.comb.makespan});
      for (const Stretch& s : state.open) out.push_back({s.use, position(s.begin), position(s.end)});
      state.open.clear();
    }
    for (TracedStep& t : open_steps_) {
      t.begin = position(t.begin);
      t.end = position(t.end);
      facts_.steps.push_back(t);
    }
    facts_.comb.makespan += block_end_ - block_begin_;
    open_steps_.clear();
    open_ = false;
  }

  void count(const Span& s) {
    if (s.kind == SpanKind::op) {
      TracedOp& op = ops_[{s.name, s.layer}];
      op.calls++;
      op.seconds += s.seconds();
      op.cost += s.cost;
    }
    if (s.kind != SpanKind::comm) return;
    auto it = std::find_if(facts_.groups.begin(), facts_.groups.end(),
                           [&](const TracedGroup& g) { return g.name == s.group; });
    if (it == facts_.groups.end()) it = facts_.groups.insert(it, TracedGroup{.name = std::string(s.group)});
    it->calls++;
    it->wire_bytes += s.wire_bytes;
    const bool sends = receiver_of(s.lane) >= 0;
    const int64_t met = sends ? s.begin_ns : std::clamp(s.met_ns, s.begin_ns, s.end_ns);
    it->waited_s += double(met - s.begin_ns) * 1e-9;
    it->moved_s += double(s.end_ns - met) * 1e-9;
  }

  void keep_ops() {
    std::map<std::pair<std::string, std::string>, TracedOp> all;
    for (TracedOp& o : facts_.ops) all[{o.name, o.layer}] = o;
    for (const auto& [key, op] : ops_) {
      TracedOp& o = all[{std::string(key.name), kind_of_layer(key.layer)}];
      o.calls += op.calls;
      o.seconds += op.seconds;
      o.cost += op.cost;
    }
    facts_.ops.clear();
    for (auto& [key, op] : all) {
      op.name = key.first;
      op.layer = key.second;
      facts_.ops.push_back(op);
    }
    std::stable_sort(facts_.ops.begin(), facts_.ops.end(),
                     [](const TracedOp& a, const TracedOp& b) { return a.seconds > b.seconds; });
    ops_.clear();
  }

  void keep_pause(TracedRank& rank, const Pause& p, const std::vector<RankCalls>& calls, size_t index) {
    const int64_t length = p.end - p.begin;
    std::vector<LongPause>& all = rank.pauses;
    if (all.size() >= kLongest && all.back().end - all.back().begin >= length) return;
    LongPause one{position(p.begin), position(p.end), p.use, what_of(p, calls, index), p.microbatch};
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const LongPause& other) { return other.end - other.begin < length; });
    all.insert(at, std::move(one));
    if (all.size() > kLongest) all.pop_back();
  }

  // Which rank of its group entered the call last; -1: not known.
  int last_to_come(const Span& call, const std::vector<RankCalls>& calls, size_t index) const {
    const std::vector<int> group = ranks_of_group(mesh_, calls[index].rank, call.group);
    int64_t k = 0, latest = 0;
    for (const Span& s : calls[index].calls) {
      if (s.group == call.group && s.begin_ns == call.begin_ns) break;
      k += s.group == call.group;
    }
    int last = -1;
    for (const RankCalls& other : calls) {
      if (std::find(group.begin(), group.end(), other.rank) == group.end()) continue;
      int64_t n = 0;
      const auto same = std::find_if(other.calls.begin(), other.calls.end(),
                                     [&](const Span& s) { return s.group == call.group && n++ == k; });
      if (same == other.calls.end()) continue;
      if (last < 0 || same->begin_ns > latest) {
        last = other.rank;
        latest = same->begin_ns;
      }
    }
    return last;
  }

  std::string what_of(const Pause& p, const std::vector<RankCalls>& calls, size_t index) const {
    const std::string in = p.action.empty() ? "" : fmt::format(" in {}", p.action);
    if (!p.transfer) {
      switch (p.use) {
        case Use::data:
          return "waits for input tokens" + in;
        case Use::agree:
          return "all ranks agree on the gradient's norm";
        case Use::launch:
          return "host time between ops" + in;
        case Use::bubble:
          return "waits for a message of another stage" + in;
        case Use::pp:
          return "hands over a message" + in;
        default:
          return "no span says why" + in;
      }
    }
    const Span& t = *p.transfer;
    const std::string call =
        t.name == "p2p"
            ? fmt::format("message of {} ({})", human_bytes(t.wire_bytes), t.lane.empty() ? t.group : t.lane)
            : fmt::format("{} of {} over {}", t.name, human_bytes(t.wire_bytes), t.group);
    if (p.use == Use::bubble) return fmt::format("waits for a stage to send: {}{}", call, in);
    if (p.use != Use::peers) return fmt::format("{} in flight{}", call, in);
    const int last = last_to_come(t, calls, index);
    return last >= 0 && last != calls[index].rank ? fmt::format("waits for rank {}: {}{}", last, call, in)
                                                  : fmt::format("waits for its peers: {}{}", call, in);
  }

  TraceFacts& facts_;
  Mesh mesh_;
  std::map<int64_t, int64_t> stalls_;     // ns, by the step after the save
  std::vector<std::vector<Span>> spans_;  // spans of the step that is read, by rank
  std::vector<size_t> present_;           // ranks that have any
  int64_t step_ = -2, last_step_ = -2;
  std::vector<RankState> states_;
  std::vector<TracedStep> open_steps_;
  bool open_ = false;
  int64_t block_begin_ = 0, block_end_ = 0;
  std::unordered_map<OpKey, TracedOp, OpHash> ops_;
};

}  // namespace

double TraceFacts::per_step(Use u) const {
  int64_t sum = 0;
  for (const TracedRank& r : ranks)
    for (const UseTimes& t : r.steps) sum += t[size_t(u)];
  return rank_steps() > 0 ? double(sum) * 1e-9 / rank_steps() : 0;
}

double TraceFacts::step_s() const {
  double sum = 0;
  for (const TracedStep& s : steps) sum += double(s.length) * 1e-9;
  return steps.empty() ? 0 : sum / double(steps.size());
}

UseTimes TraceFacts::totals() const {
  UseTimes all{};
  for (const CombRow& row : comb.rows) {
    const UseTimes one = trireme::use_of(row.stretches);
    for (size_t u = 0; u < kUses; u++) all[u] += one[u];
  }
  return all;
}

TraceFacts read_traces(const RunRecord& record) {
  TraceFacts facts;
  FactReader reader(record, facts);
  for (const fs::path& file : record.traces) {
    try {
      const TraceScan scan = scan_trace(file, reader);
      facts.spans += scan.spans;
      facts.damaged += scan.damaged;
      for (const auto& [key, value] : scan.about) facts.about[key] = value;
    } catch (const Error& e) {
      reader.drop();
      facts.why_not = e.what();
    }
  }
  if (facts.any())
    facts.why_not.clear();
  else if (facts.why_not.empty())
    facts.why_not = record.traces.empty() ? "no step was traced; train with --trace-steps 10-12"
                                          : "the trace has no whole step; train with --trace-steps 10-12";
  return facts;
}

}  // namespace trireme
