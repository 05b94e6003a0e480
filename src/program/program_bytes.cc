#include "program/program_bytes.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"

namespace trireme {
namespace {

using EventKind = LayerTape::Event::Kind;

struct Block {
  int64_t at = -1;  // -1: there is none
  BlockSize size;
  explicit operator bool() const { return at >= 0; }
};

// The rank's ledger and, if `places`, its range.
class RankMemory {
 public:
  RankMemory(const RankTapes& t, bool places, PlacedCalls* listed)
      : ledger_(t.booked), fit_(t.placed), places_(places), listed_(listed) {
    ledger_.restart_peaks();
  }
  bool places() const { return places_; }
  const Ledger& ledger() const { return ledger_; }
  int64_t high_water() const { return fit_.high_water(); }

  void book(const Bookings& all) { ledger_.book(all); }
  Block make(BlockSize size) {
    ledger_.book(size.bucket, size.bytes);
    Block b{.at = 0, .size = size};
    if (!places_) return b;
    const int64_t padded = padded_block(size.bytes);
    b.at = fit_.place(padded);
    require(b.at >= 0, "an endless range has room");
    if (listed_) listed_->sizes.push_back(padded);
    return b;
  }
  void free(Block& b) {
    if (!b) return;
    ledger_.release(b.size.bucket, b.size.bytes);
    if (places_) {
      const int64_t padded = padded_block(b.size.bytes);
      fit_.give_back(b.at, padded);
      if (listed_) listed_->sizes.push_back(-padded);
    }
    b = {};
  }

 private:
  Ledger ledger_;
  BestFit fit_;
  bool places_;
  PlacedCalls* listed_;
};

// One microbatch. A slot is a place for the input of a layer, and each stage has one more for the output of
// its last layer.
struct Microbatch {
  std::vector<Block> batch, inputs, gradients;
  std::vector<char> away;                 // by slot: the input is in the offload store
  std::vector<std::vector<Block>> saved;  // by layer

  bool holds() const {
    const auto some = [](const auto& all) {
      return std::any_of(all.begin(), all.end(), [](bool b) { return b; });
    };
    const auto blocks = [](const std::vector<Block>& all) {
      return std::any_of(all.begin(), all.end(), [](const Block& b) { return bool(b); });
    };
    return blocks(batch) || blocks(inputs) || blocks(gradients) || some(away) ||
           std::any_of(saved.begin(), saved.end(), blocks);
  }
};

// A layer of a microbatch.
struct LayerPlace {
  Microbatch& m;
  const StageShape& stage;
  size_t layer = 0, slot = 0;
  size_t end_slot() const { return slot + stage.last - layer; }
};

class Composition {
 public:
  Composition(const Program& p, const RankTapes& t, bool places, const SteadyOps& steady, PlacedCalls* listed)
      : program_(p),
        tapes_(t),
        steady_(steady),
        memory_(t, places, listed),
        listed_(listed),
        weights_(t.shape.units.size()),
        grads_(t.shape.units.size()),
        memo_(t.shape.layers.size()) {
    for (const size_t n : t.parameters) started_.emplace_back(n, '0');
  }

  ProgramBytes run() {
    alone(tapes_.begin);
    const std::span<const Op> ops = program_.span(0, program_.norm);
    for (size_t i = 0; i < ops.size(); i++) {
      i += repeated(i);
      if (i == ops.size()) break;
      list_op();
      if (ops[i].by_turns == 0) {
        operation(ops[i]);
        continue;
      }
      const auto others = size_t(ops[i].by_turns);
      by_turns(ops[i], ops.subspan(i + 1, others));
      for (size_t n = 0; n < others; n++) list_op();
      i += others;
    }
    list_op();
    alone(tapes_.end);
    const Ledger& l = memory_.ledger();
    for (size_t k = 0; k < kBuckets; k++)
      require(l.now(Bucket(k)) == tapes_.booked.now(Bucket(k)), "a step leaves blocks behind");
    return {.peak = l.peaks(),
            .at_peak = l.at_peak(),
            .peak_total = l.peak_total(),
            .arena_bytes = memory_.places() ? std::max(memory_.high_water(), tapes_.evaluations) : 0};
  }

 private:
  // A pass that has begun.
  struct Running {
    const LayerTape* tape = nullptr;
    std::vector<Block> blocks;
    size_t next = 0;  // event
  };

  void list_op() {
    if (!listed_) return;
    listed_->first.push_back(listed_->sizes.size());
    listed_->booked.push_back(memory_.ledger().total());
  }

  void operation(const Op& op) {
    switch (op.kind) {
      case OpKind::forward:
      case OpKind::drop:
      case OpKind::again:
      case OpKind::input:
      case OpKind::weight:
        begin(op, false, running_);
        if (memory_.places())
          advance(running_, false);
        else
          sum(running_);
        return end(op, running_);
      case OpKind::load:
        for (const BlockSize& b : tapes_.batch) microbatch(op.mb).batch.push_back(memory_.make(b));
        return;
      case OpKind::unload:
        for (Block& b : microbatch(op.mb).batch) memory_.free(b);
        return microbatch(op.mb).batch.clear();
      case OpKind::left:
        return memory_.free(leaving_);
      case OpKind::fetch:
        return fetch(place_of(op));
      case OpKind::clear: {
        const LayerPlace at = place_of(op);
        memory_.free(at.m.gradients[at.slot + 1]);
        return memory_.free(at.m.inputs[at.slot]);
      }
      case OpKind::post:
      case OpKind::send:
      case OpKind::free:
        return message(op);
      case OpKind::gather:
      case OpKind::release:
      case OpKind::open:
      case OpKind::sum:
      case OpKind::reduce:
      case OpKind::retire:
        return unit(op);
      default:  // waits alone
        return;
    }
  }

  // ---- repetitions ----

  // The rank's memory before operation `at`, microbatches and operations counted from there on.
  std::vector<int64_t> state(size_t at, int microbatch) {
    std::vector<int64_t> s;
    s.reserve(then_.size() + 64);
    const auto add = [&](const Block& b) {
      s.push_back(b.at);
      s.push_back(b.size.bytes);
    };
    const auto add_all = [&](const auto& blocks) {
      s.push_back(int64_t(blocks.size()));
      for (const Block& b : blocks) add(b);
    };
    std::erase_if(microbatches_, [](const auto& m) { return !m.second.holds(); });
    for (const auto& [mb, m] : microbatches_) {
      s.push_back(mb - microbatch);
      add_all(m.batch);
      add_all(m.inputs);
      add_all(m.gradients);
      for (const char away : m.away) s.push_back(away);
      for (const std::vector<Block>& saved : m.saved) add_all(saved);
    }
    for (const auto& [op, block] : sent_) {
      s.push_back(op - int64_t(at));
      add(block);
    }
    add_all(reducing_);
    add_all(weights_);
    add_all(grads_);
    add(leaving_);
    for (const std::string& started : started_) s.insert(s.end(), started.begin(), started.end());
    return s;
  }
  // How many of the operations from `at` on need not be composed, because they lead back to the state before
  // `at`. It is compared with the state before a number of rounds that doubles (Brent).
  size_t repeated(size_t at) {
    const Repeats r = steady_.ops;
    if (r.step == 0 || listed_ || tapes_.by_microbatch) return 0;
    if (at < r.begin || at >= r.end || (at - r.begin) % r.step != 0) return 0;
    const size_t round = (at - r.begin) / r.step;
    std::vector<int64_t> now = state(at, int(round) * steady_.period);
    const size_t since = round - compared_;
    if (now != then_) {
      if (round >= 2 * compared_) {
        then_ = std::move(now);
        compared_ = round;
      }
      return 0;
    }
    const size_t rounds = (r.end - at) / r.step / since * since;
    if (rounds > 0) skip(rounds);
    steady_ = {};
    return rounds * r.step;
  }
  void skip(size_t rounds) {
    std::map<int16_t, Microbatch> microbatches;
    for (auto& [mb, m] : microbatches_)
      microbatches[int16_t(mb + int(rounds) * steady_.period)] = std::move(m);
    microbatches_ = std::move(microbatches);
    std::map<int32_t, Block> sent;
    for (const auto& [op, block] : sent_) sent[op + int32_t(rounds * steady_.ops.step)] = block;
    sent_ = std::move(sent);
  }

  // ---- passes ----

  Microbatch& microbatch(int16_t mb) {
    Microbatch& m = microbatches_[mb];
    if (m.saved.empty()) {
      const size_t slots = tapes_.shape.layers.size() + tapes_.shape.stages.size();
      m.inputs.resize(slots);
      m.gradients.resize(slots);
      m.away.resize(slots);
      m.saved.resize(tapes_.shape.layers.size());
    }
    return m;
  }
  // An operation on a stage without a layer has the stage's first layer.
  LayerPlace place_of(const Op& op) {
    const std::vector<StageShape>& all = tapes_.shape.stages;
    size_t c = 0;
    while (all.at(c).stage != op.stage) c++;
    const size_t layer = op.layer >= 0 ? size_t(op.layer) : all[c].first;
    return {microbatch(op.mb), all[c], layer, layer + c};
  }
  Block& home(const LayerPlace& at, Home h, int32_t number) {
    switch (h) {
      case Home::saved:
        return at.m.saved[at.layer].at(size_t(number));
      case Home::input:
        return at.m.inputs[at.slot];
      case Home::output:
        return at.m.inputs[at.slot + 1];
      case Home::output_grad:
        return at.m.gradients[at.slot + 1];
      case Home::input_grad:
        return at.m.gradients[at.slot];
      case Home::leaving:
        break;
    }
    return leaving_;
  }

  const LayerTape& tape_of(const Op& op, bool by_turns) {
    PassKey key{.kind = op.kind, .by_turns = by_turns, .started = {}, .mb = -1};
    if (op.kind == OpKind::weight)
      for (const uint32_t u : tapes_.shape.layers[size_t(op.layer)].units) key.started += started_[u];
    if (tapes_.by_microbatch) key.mb = op.mb;
    Known& known = memo_[size_t(op.layer)][size_t(op.kind)][by_turns];
    if (!known.tape || !(known.key == key)) known = {key, &tapes_.pass(size_t(op.layer), key)};
    return *known.tape;
  }

  void begin(const Op& op, bool by_turns, Running& r) {
    const LayerPlace at = place_of(op);
    // The stage before, or after, is on this rank too.
    if (op.kind == OpKind::forward && at.layer == at.stage.first && !at.stage.embedding)
      if (Block& input = at.m.inputs[at.slot]; !input) std::swap(input, at.m.inputs[at.slot - 1]);
    if (op.kind == OpKind::input && at.layer + 1 == at.stage.last && !at.stage.head)
      if (Block& grad = at.m.gradients[at.slot + 1]; !grad) std::swap(grad, at.m.gradients[at.slot + 2]);
    if (op.kind == OpKind::forward) at.m.saved[at.layer].clear();
    if (op.kind == OpKind::again) {
      fetch(at);
      at.m.away[at.slot] = 0;
    }
    r.tape = &tape_of(op, by_turns);
    r.next = 0;
    r.blocks.assign(r.tape->takes.size() + r.tape->makes.size(), {});
    for (size_t i = 0; i < r.tape->takes.size(); i++) {
      const LayerTape::Taken& t = r.tape->takes[i];
      r.blocks[i] = std::exchange(home(at, t.home, t.at), {});
      require(r.blocks[i] && r.blocks[i].size == t.size,
              "a pass takes over another block than its tape says");
    }
  }
  // Up to a pause, if `pauses`. Returns true at the end.
  bool advance(Running& r, bool pauses) {
    while (r.next < r.tape->events.size()) {
      const LayerTape::Event& e = r.tape->events[r.next++];
      if (e.kind == EventKind::make)
        r.blocks[size_t(e.block)] = memory_.make(r.tape->size_of(e.block));
      else if (e.kind == EventKind::free)
        memory_.free(r.blocks[size_t(e.block)]);
      else if (pauses)
        return false;
    }
    return true;
  }
  void sum(Running& r) {
    memory_.book(r.tape->sum);
    for (const LayerTape::Left& l : r.tape->leaves)
      r.blocks[size_t(l.block)] = {.at = 0, .size = r.tape->size_of(l.block)};
  }
  void end(const Op& op, Running& r) {
    const LayerPlace at = place_of(op);
    for (const LayerTape::Left& l : r.tape->leaves) {
      Block& block = r.blocks[size_t(l.block)];
      if (l.home == Home::saved) {
        at.m.saved[at.layer].push_back(block);
        continue;
      }
      if (l.home == Home::leaving) {
        memory_.free(leaving_);
        at.m.away[at.slot] = 1;
      }
      home(at, l.home, 0) = block;
    }
    if (op.kind != OpKind::weight) return;
    size_t begin = 0;
    for (const uint32_t u : tapes_.shape.layers[at.layer].units) {
      started_[u] = r.tape->started.substr(begin, started_[u].size());
      begin += started_[u].size();
    }
  }
  void alone(const LayerTape& t) {
    Running r{.tape = &t, .blocks = std::vector<Block>(t.makes.size()), .next = 0};
    advance(r, false);
  }

  // As TwoPasses: each runs to its next pause; when one has ended the other one runs to its end.
  void by_turns(const Op& first, std::span<const Op> second) {
    Running one, other;
    bool first_runs = true, begun = false;
    begin(first, true, one);
    for (bool turn = true; first_runs || !second.empty(); turn = !turn) {
      if (turn && first_runs) {
        first_runs = !advance(one, true);
        if (!first_runs) end(first, one);
        continue;
      }
      while (!second.empty()) {
        if (!begun) begin(second.front(), true, other);
        begun = true;
        if (!advance(other, true)) break;
        end(second.front(), other);
        second = second.subspan(1);
        begun = false;
      }
    }
  }

  void fetch(const LayerPlace& at) {
    Block& input = at.m.inputs[at.slot];
    if (at.m.away[at.slot] && !input) input = memory_.make(tapes_.fetched);
  }

  // ---- messages ----

  void message(const Op& op) {
    if (op.kind == OpKind::free) {
      memory_.free(sent_[op.after]);
      sent_.erase(op.after);
      return;
    }
    const LayerPlace at = place_of(op);
    if (op.kind == OpKind::post) {
      (op.back ? at.m.gradients[at.end_slot()] : at.m.inputs[at.slot]) = memory_.make(tapes_.message);
      return;
    }
    Block& block = op.back ? at.m.gradients[at.slot] : at.m.inputs[at.end_slot()];
    sent_[int32_t(&op - program_.ops.data())] = std::exchange(block, {});
  }

  // ---- weights and gradients of units ----

  void unit(const Op& op) {
    const auto u = size_t(op.unit);
    switch (op.kind) {
      case OpKind::gather:
        weights_[u] = memory_.make(tapes_.weights[u]);
        return;
      case OpKind::release:
        return memory_.free(weights_[u]);
      case OpKind::open:
        grads_[u] = memory_.make(tapes_.grads[u]);
        started_[u].assign(started_[u].size(), '0');
        return;
      case OpKind::sum:
        started_[u].assign(started_[u].size(), '1');
        return;
      case OpKind::reduce: {
        Block whole = std::exchange(grads_[u], {});
        if (tapes_.policy.casts) {
          const std::vector<UnitShape>& units = tapes_.shape.units;
          const int64_t bytes = units[size_t(op.last) - 1].end - units[u].begin;
          const Block cast = memory_.make({.bucket = Bucket::comm, .bytes = bytes});
          memory_.free(whole);
          whole = cast;
        }
        reducing_.push_back(whole);
        return;
      }
      default:
        memory_.free(reducing_.front());
        reducing_.pop_front();
    }
  }

  struct Known {
    PassKey key;
    const LayerTape* tape = nullptr;
  };
  const Program& program_;
  const RankTapes& tapes_;
  SteadyOps steady_;
  RankMemory memory_;
  PlacedCalls* listed_;
  std::vector<Block> weights_, grads_;                            // by unit: gathered; whole gradients
  std::vector<std::string> started_;                              // by unit: LayerTape::started
  std::vector<std::array<std::array<Known, 2>, kOpKinds>> memo_;  // by layer
  std::map<int16_t, Microbatch> microbatches_;
  std::map<int32_t, Block> sent_;  // by operation
  std::deque<Block> reducing_;     // oldest first
  Block leaving_;
  Running running_;
  std::vector<int64_t> then_;  // the state to compare with, before round `compared_` of the steady part
  size_t compared_ = 0;
};

}  // namespace

SteadyOps steady_ops(const Program& p, const Repeats& part, int period) {
  if (part.step == 0 || part.end > p.actions.size()) return {};
  const size_t middle = part.begin + part.times() / 2 * part.step;
  if (middle + part.step >= p.actions.size()) return {};
  const auto at = size_t(p.actions[middle].begin), step = size_t(p.actions[middle + part.step].begin) - at;
  if (step == 0) return {};
  const auto same = [&](size_t i) {
    Op op = p.ops[i];
    if (op.mb >= 0) op.mb = int16_t(op.mb + period);
    if (op.after >= 0) op.after += int32_t(step);
    return op == p.ops[i + step];
  };
  return {repeats_around(at, step, size_t(p.frees), same), period};
}

ProgramBytes booked_bytes(const Program& p, const RankTapes& t, const SteadyOps& steady) {
  return Composition(p, t, false, steady, nullptr).run();
}

ProgramBytes placed_bytes(const Program& p, const RankTapes& t, const SteadyOps& steady,
                          PlacedCalls* listed) {
  return Composition(p, t, true, steady, listed).run();
}

}  // namespace trireme
