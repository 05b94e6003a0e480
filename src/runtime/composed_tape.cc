#include "runtime/composed_tape.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "comm/meta/meta_comm.h"
#include "runtime/composed_booking.h"
#include "runtime/meta_rank.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Everything that the pieces of an operation depend on, but for the microbatch. Passes by turns are one
// operation.
using OpKey = std::vector<int32_t>;

bool is_pass(OpKind k) {
  return k == OpKind::forward || k == OpKind::again || k == OpKind::input || k == OpKind::weight;
}

// Keys of a program's operations in their order.
class OpKeys {
 public:
  OpKeys(const Program& p, const RankShape& shape) : program_(p), shape_(shape), added_(shape.units.size()) {}
  // Of operation i of this action, and the number of operations that it stands for.
  std::pair<OpKey, size_t> next(size_t i, const ActionOps& action) {
    const auto n = 1 + size_t(program_.ops[i].by_turns);
    const int16_t other = (&action + action.interleaved)->action.mb;
    OpKey key = {action.interleaved == 0 ? 0 : program_.ops[i].mb == other ? 2 : 1};
    for (size_t k = i; k < i + n; k++) add(program_.ops[k], key);
    return {key, n};
  }

 private:
  // What has been added to a unit's gradient since its memory is there.
  enum Added : int32_t { by_its_layer = 1, by_another = 2, all = 4 };

  void add(const Op& op, OpKey& key) {
    for (const int32_t v : {int32_t(op.kind), int32_t(op.adds), int32_t(op.back), int32_t(op.stage),
                            int32_t(op.peer), op.layer, op.unit, op.last, op.by_turns})
      key.push_back(v);
    if (op.kind == OpKind::open) added_[size_t(op.unit)] = 0;
    if (op.kind == OpKind::sum) added_[size_t(op.unit)] = Added::all;
    if (op.kind != OpKind::weight) return;
    for (const uint32_t u : shape_.layers[size_t(op.layer)].units) {
      key.push_back(added_[u]);
      added_[u] |= shape_.units[u].layer == size_t(op.layer) ? Added::by_its_layer : Added::by_another;
    }
  }
  const Program& program_;
  const RankShape& shape_;
  std::vector<int32_t> added_;  // by unit
};

// By operation, the one that it waits for: Op::after, or the fetch of the input that it makes activations of.
std::vector<int32_t> awaited(const Program& p) {
  std::vector<int32_t> all;
  std::map<std::pair<int16_t, int32_t>, int32_t> fetches;
  for (const Op& op : p.ops) {
    if (op.kind == OpKind::fetch) fetches[{op.mb, op.layer}] = int32_t(all.size());
    const auto fetch = fetches.find({op.mb, op.layer});
    all.push_back(op.kind == OpKind::again && fetch != fetches.end() ? fetch->second : op.after);
  }
  return all;
}

// Numbers of actions that are issued together with action i.
std::pair<size_t, size_t> group_of(std::span<const Action> actions, size_t i) {
  size_t begin = i, end = i + 1;
  if (actions[i].overlap == 0) return {begin, end};
  while (begin > 0 && actions[begin - 1].overlap == actions[i].overlap) begin--;
  while (end < actions.size() && actions[end].overlap == actions[i].overlap) end++;
  return {begin, end};
}

// Numbers of the actions of these microbatches. What a stage does beside a pass goes with it.
std::vector<size_t> part_of(std::span<const Action> actions, const std::set<int16_t>& microbatches) {
  std::vector<size_t> part;
  for (size_t begin = 0, end; begin < actions.size(); begin = end) {
    end = group_of(actions, begin).second;
    std::set<int16_t> stages;
    bool passes = false;
    for (size_t i = begin; i < end; i++) {
      passes |= actions[i].mb >= 0;
      if (microbatches.count(actions[i].mb)) stages.insert(actions[i].stage);
    }
    for (size_t i = begin; i < end; i++) {
      const Action& a = actions[i];
      if (a.mb >= 0 ? microbatches.count(a.mb) > 0 : !passes || stages.count(a.stage)) part.push_back(i);
    }
  }
  return part;
}

using Counts = std::array<int64_t, 32>;  // pieces by stream

// The pieces of one operation, as the part has them.
struct Recorded {
  size_t begin = 0, end = 0;  // in the tape of the part
  size_t op = 0;              // in its program
  const ActionOps* action = nullptr;
  std::string_view before, behind;     // the layers that had run
  size_t first_cut = 0, last_cut = 0;  // cuts of the part: at its begin, at its end
};

class Composer {
 public:
  Composer(const RunSpec& run, const Schedule& schedule, int threads, int rank, const ClusterSpec& cluster)
      : device_(meta_device(run, threads)),
        factory_(make_meta_comm(rank, int(run.world()), options_of(run, cluster))),
        recorder_(*device_, *factory_),
        comms_(recorder_.factory(), mesh_of(run.layout)),
        runner_(run, RunMode::train, recorder_.device(), kEndlessArena, &comms_),
        actions_(schedule.ranks.at(size_t(runner_.sharing().pp.rank))),
        send_ends_(send_ends(schedule).at(size_t(runner_.sharing().pp.rank))),
        whole_(runner_.programs().of(actions_)),
        tokens_(run.tokens_per_step()) {}

  std::optional<Tape> tape(const std::function<void(StageRunner&)>& look) {
    if (!choose_part() || !record_part() || !compose()) return std::nullopt;
    if (look) look(runner_);
    return std::move(out_);
  }

 private:
  static constexpr size_t kLeastSaved = 3;  // at most one microbatch in this many is recorded

  const RankShape& shape() { return runner_.programs().shape(); }

  // The microbatches whose operations are of all kinds.
  bool choose_part() {
    std::set<int16_t> all, microbatches;
    for (const Action& a : actions_)
      if (a.mb >= 0) all.insert(a.mb);
    // Sums of the last backward passes are in flight at the end of the step.
    constexpr size_t kLast = 3;
    for (size_t i = actions_.size(); i-- > 0 && microbatches.size() < kLast;)
      if (actions_[i].kind == Act::B || actions_[i].kind == Act::W) microbatches.insert(actions_[i].mb);
    std::vector<std::pair<OpKey, size_t>> wanted;  // and the action
    std::set<OpKey> kinds;
    for_kinds(whole_, [&](size_t, size_t, OpKey key, size_t action) {
      if (kinds.insert(key).second) wanted.push_back({std::move(key), action});
      return true;
    });
    constexpr int kRounds = 8;
    for (int round = 0; round < kRounds && microbatches.size() * kLeastSaved <= all.size(); round++) {
      std::set<OpKey> known;
      lower_part(part_of(actions_, microbatches));
      for_kinds(*part_,
                [&](size_t, size_t, OpKey key, size_t) { return known.insert(std::move(key)), true; });
      bool all_known = true;
      const size_t before = microbatches.size();
      for (const auto& [key, action] : wanted) {
        if (known.count(key)) continue;
        all_known = false;
        const auto [begin, end] = group_of(actions_, action);
        for (size_t i = begin; i < end; i++)
          if (actions_[i].mb >= 0) microbatches.insert(actions_[i].mb);
      }
      if (microbatches.size() == before) return all_known;
    }
    return false;
  }

  // Messages are read as far into the part as into the whole step.
  void lower_part(const std::vector<size_t>& numbers) {
    part_actions_.clear();
    std::vector<int> ends;
    for (const size_t i : numbers) {
      part_actions_.push_back(actions_[i]);
      const auto end = std::lower_bound(numbers.begin(), numbers.end(), size_t(std::max(0, send_ends_[i])));
      const bool read = send_ends_[i] >= 0 && end != numbers.end();
      ends.push_back(read ? int(end - numbers.begin()) : -1);
    }
    part_ = &runner_.programs().of_part(part_actions_, ends);
  }
  // Calls f(number, how many it stands for, kind, number of the action) for each operation before the sums,
  // until it returns false. Returns whether all did not.
  template <class F>
  bool for_kinds(const Program& p, const F& f) {
    OpKeys keys(p, shape());
    size_t action = 0;
    for (size_t i = 0, n; i < size_t(p.sums); i += n) {
      action = action_at(p, action, i);
      OpKey key;
      std::tie(key, n) = keys.next(i, p.actions[action]);
      if (!f(i, n, std::move(key), action)) return false;
    }
    return true;
  }
  // The action of operation i. Memory freed after the last action belongs to the last action.
  static size_t action_at(const Program& p, size_t action, size_t i) {
    while (int32_t(i) >= p.actions[action].end && action + 1 < p.actions.size() &&
           p.actions[action + 1].action.kind != Act::Step)
      action++;
    return action;
  }

  bool record_part() {
    recorder_.start(runner_, part_actions_);
    runner_.step(part_actions_, 1, tokens_, [](int64_t, int64_t, const HostBatch&) {});
    few_ = recorder_.stop();
    cuts_ = recorder_.cuts();
    bytes_ = recorder_.held();
    if (few_.streams.size() > std::tuple_size_v<Counts>) return false;
    before_.resize(few_.pieces.size() + 1);
    for (size_t i = 0; i < few_.pieces.size(); i++) {
      before_[i + 1] = before_[i];
      before_[i + 1][size_t(few_.pieces[i].stream)]++;
    }
    const Op* const first = part_->ops.data();
    std::vector<size_t> begins(part_->ops.size(), few_.pieces.size());
    std::vector<size_t> cut_of(part_->ops.size());
    for (size_t n = 0; n < cuts_.size(); n++) {
      const StepRecorder::Cut& c = cuts_[n];
      if (c.op && (c.op < first || c.op >= first + part_->ops.size())) return false;
      if (!c.op) continue;
      begins[size_t(c.op - first)] = c.piece;
      cut_of[size_t(c.op - first)] = n;
    }
    after_part_ = awaited(*part_);
    after_whole_ = awaited(whole_);
    head_ = cuts_.front().piece;
    tail_ = begins[size_t(part_->norm)];
    ends_of_part_.resize(part_->ops.size());
    end_cut_ = cut_of[size_t(part_->norm)];
    size_t reached = head_;
    const bool read = for_kinds(*part_, [&](size_t i, size_t n, OpKey key, size_t action) {
      const size_t behind = i + n < size_t(part_->sums) ? i + n : size_t(part_->norm);
      const size_t end = begins[behind];
      if (begins[i] != reached || end < reached) return false;  // pieces outside operations
      for (size_t k = i; k < i + n; k++) ends_of_part_[k] = before_[end];
      kinds_.try_emplace(std::move(key),
                         Recorded{reached, end, i, &part_->actions[action], cuts_[cut_of[i]].layer,
                                  cuts_[cut_of[behind]].layer, cut_of[i], cut_of[behind]});
      reached = end;
      return true;
    });
    return read && reached == tail_;
  }

  bool compose() {
    out_ = few_;
    out_.pieces = {};
    out_.pieces.reserve(few_.pieces.size() * whole_.ops.size() / part_->ops.size());
    ends_.resize(whole_.ops.size());
    for (size_t i = 0; i < head_; i++)
      if (!put(i, nullptr, {})) return false;
    hold(cuts_.front().held);
    const bool put_all = for_kinds(whole_, [&](size_t i, size_t n, const OpKey& key, size_t action) {
      const auto it = kinds_.find(key);
      return it != kinds_.end() && put(it->second, {i, n, &whole_.actions[action], issued_});
    });
    return put_all && compose_end();
  }

  // The step's end has the same operations in both programs.
  bool compose_end() {
    const auto same = [](Op a, Op b) {
      a.after = b.after = -1;
      return a == b;
    };
    const std::span<const Op> few = part_->span(part_->sums, int32_t(part_->ops.size()));
    const std::span<const Op> all = whole_.span(whole_.sums, int32_t(whole_.ops.size()));
    if (!std::equal(few.begin(), few.end(), all.begin(), all.end(), same)) return false;
    Recorded end{.begin = tail_, .end = few_.pieces.size(), .op = 0, .action = nullptr};
    Place at{.op = 0, .n = 0, .action = nullptr, .base = issued_};
    more_ = out_held_ - cuts_[end_cut_].held.now;
    size_t cut = end_cut_;
    for (size_t p = tail_; p < few_.pieces.size(); p++) {
      for (; cut < cuts_.size() && cuts_[cut].piece <= p; cut++) {
        if (cut > end_cut_) hold(cuts_[cut].held);
        if (!cuts_[cut].op) continue;
        end.op = size_t(cuts_[cut].op - part_->ops.data());
        at.op = end.op + size_t(whole_.sums - part_->sums);
        at.n = 1;
      }
      if (!put(p, &end, at)) return false;
    }
    return true;
  }

  // Where recorded pieces are put: at operations [op, op + n) of the whole program.
  struct Place {
    size_t op = 0, n = 0;  // n = 0: none
    const ActionOps* action = nullptr;
    Counts base{};  // issued before them
  };

  const Action& other_of(const ActionOps& a) const { return (&a + a.interleaved)->action; }

  bool put(const Recorded& r, const Place& at) {
    take_turn(at.op, *at.action);
    more_ = out_held_ - cuts_[r.first_cut].held.now;
    size_t cut = r.first_cut + 1;
    for (size_t p = r.begin; p < r.end; p++) {
      for (; cut <= r.last_cut && cuts_[cut].piece <= p; cut++) hold(cuts_[cut].held);
      if (!put(p, &r, at)) return false;
    }
    for (; cut <= r.last_cut; cut++) hold(cuts_[cut].held);
    for (size_t k = at.op; k < at.op + at.n; k++) ends_[k] = issued_;
    if (is_pass(whole_.ops[at.op].kind) || r.behind != r.before) ran_ = r.behind;
    return true;
  }
  bool put(size_t piece, const Recorded* r, const Place& at) {
    Piece p = few_.pieces[piece];
    if (at.action) name_action(p, *r, at);
    if (at.action && p.launched && !of_own_layer(p, at)) p.layer = ran_;
    if (p.launched)
      launched_ = p.layer;
    else
      p.layer = launched_;
    number(p);
    if (p.kind == PieceKind::wait && !mark(p, piece, r, at)) return false;
    hold(bytes_[piece]);
    if (p.stream == 0) on_compute_ = out_.pieces.size();
    p.held = p.most = out_held_;
    push(p);
    return true;
  }
  // Bytes as the part held them, with what the whole step holds more.
  void hold(const StepRecorder::BytesHeld& h) {
    out_held_ = h.now + more_;
    if (out_.pieces.empty()) return;
    int64_t& most = out_.pieces[on_compute_].most;
    most = std::max(most, h.most + more_);
  }
  // Two interleaved actions take turns; a piece has the name of the one that issues it.
  void name_action(Piece& p, const Recorded& r, const Place& at) {
    if (at.op >= size_t(whole_.frees)) {
      p.action = name_of(Act::Step);
      p.microbatch = -1;
      return;
    }
    if (at.n > 1) turn_ = p.microbatch == r.action->action.mb ? &at.action->action : &other_of(*at.action);
    p.action = name_of(turn_->kind);
    p.microbatch = turn_->mb;
  }
  void take_turn(size_t i, const ActionOps& a) {
    const Op& op = whole_.ops[i];
    const Action& other = other_of(a);
    if (&other == &a.action || (op.mb >= 0 && op.mb != other.mb))
      turn_ = &a.action;
    else if (op.mb >= 0 || int32_t(i) == a.begin)
      turn_ = &other;
  }
  // A launch before its pass names a layer goes by the name of the one that ran before.
  bool of_own_layer(const Piece& p, const Place& at) {
    for (size_t k = at.op; k < at.op + at.n; k++) {
      if (!is_pass(whole_.ops[k].kind)) continue;
      const std::string& name = shape().layers[size_t(whole_.ops[k].layer)].name;
      if (p.layer.starts_with(name) && (p.layer.size() == name.size() || p.layer[name.size()] == '.'))
        return true;
    }
    return false;
  }
  void push(const Piece& p) {
    issued_[size_t(p.stream)]++;
    out_.pieces.push_back(p);
  }
  // Messages are numbered by peer and way; those of the backward lane are odd.
  void number(Piece& p) {
    if (p.kind != PieceKind::send && p.kind != PieceKind::recv) return;
    const int64_t lane = p.mark & 1;
    p.mark = 2 * messages_[{p.peer, p.kind == PieceKind::send, lane}]++ + lane;
  }

  // Sets the mark: a wait is for a piece of the same operation, for the operation that Op::after names, or
  // for all.
  bool mark(Piece& p, size_t piece, const Recorded* r, const Place& at) {
    const auto s = size_t(p.on);
    if (p.mark == 0) return true;
    const int64_t now = before_[piece][s];
    if (r) {
      const int64_t base = before_[r->begin][s];
      if (p.mark > base) {
        p.mark = at.base[s] + p.mark - base;
        return true;
      }
      for (size_t k = 0; k < at.n; k++) {
        const int32_t few = after_part_[r->op + k], whole = after_whole_[at.op + k];
        if (few < 0 || few >= part_->sums || whole < 0 || ends_of_part_[size_t(few)][s] != p.mark) continue;
        p.mark = ends_[size_t(whole)][s];
        return true;
      }
    }
    if (p.mark != now) return false;
    p.mark = issued_[s];
    return true;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<CommFactory> factory_;
  StepRecorder recorder_;
  CommSet comms_;
  StageRunner runner_;
  const std::vector<Action>& actions_;
  std::vector<int> send_ends_;
  const Program& whole_;
  int64_t tokens_;
  std::vector<Action> part_actions_;
  const Program* part_ = nullptr;
  std::vector<StepRecorder::Cut> cuts_;
  Tape few_, out_;
  size_t head_ = 0, tail_ = 0;        // pieces of the part: first of the actions, first of the step's end
  std::vector<Counts> before_;        // by piece of the part: pieces issued before it
  std::vector<Counts> ends_of_part_;  // by operation of the part: pieces issued up to its end
  std::map<OpKey, Recorded> kinds_;
  std::vector<int32_t> after_part_, after_whole_;
  std::vector<Counts> ends_;  // by operation of the whole program
  Counts issued_{};
  std::vector<StepRecorder::BytesHeld> bytes_;  // by piece of the part
  size_t end_cut_ = 0;                          // the cut of the part where the step's end begins
  int64_t more_ = 0, out_held_ = 0;
  size_t on_compute_ = 0;  // the last piece of the whole that is on compute
  const Action* turn_ = nullptr;
  std::string_view ran_, launched_;  // the last layer that ran, and that of the last launch
  std::map<std::tuple<int32_t, bool, int64_t>, int64_t> messages_;
};

}  // namespace

std::optional<Tape> composed_training(const RunSpec& run, const Schedule& schedule, int threads, int rank,
                                      const ClusterSpec& cluster,
                                      const std::function<void(StageRunner&)>& look) {
  // Microbatches with known routing differ in their rows.
  if (!composes(run) || run.known_routing.rows) return std::nullopt;
  return Composer(run, schedule, threads, rank, cluster).tape(look);
}

}  // namespace trireme
