#include "forecast/memory_moments.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "model/stages.h"
#include "program/lower.h"
#include "schedule/holders.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace memory_moments {

// Layers of a stage, by kind. The program has only a few of neighbouring layers of one kind. One of them
// stands for `copies`, which hold as much each, but run one after another.
struct ShownLayer {
  WorkLayer kind = kDenseLayer;
  int64_t copies = 1;
  bool operator==(const ShownLayer&) const = default;
};
using ShownStage = std::vector<ShownLayer>;

// The first layer and the last two have no copies, because what ZeRO holds at them depends on their
// neighbours. Backward passes begin with the last.
void show(ShownStage& all, WorkLayer kind, int64_t n) {
  constexpr int64_t kMost = 4;
  for (int64_t i = 0; i < std::min(n, kMost); i++)
    all.push_back({kind, i == 1 && n > kMost ? n - kMost + 1 : 1});
}

ShownStage shown_stage(const ModelSpec& m, const StageRange& stage) {
  ShownStage all;
  if (stage.embedding) show(all, kEmbeddingLayer, 1);
  for (int64_t b = stage.first, end; b < stage.last; b = end) {
    const bool experts = m.expert_block(b);
    for (end = b + 1; end < stage.last && m.expert_block(end) == experts;) end++;
    show(all, experts ? kExpertLayer : kDenseLayer, end - b);
  }
  if (stage.head) show(all, kHeadLayer, 1);
  return all;
}

// Counts of RankMoments::held, then numbers of units, then zeros: loops over whole vectors are compiled well.
constexpr size_t kLanes = 8;
constexpr size_t kHeldCounts = (kFirstUnit + kMostUnits * kHeldUnits + kLanes - 1) / kLanes * kLanes;
using HeldCounts = std::array<int32_t, kHeldCounts>;

// A recomputed layer holds at least as much as before. So it is counted as forwarded too while moments are
// compared.
HeldCounts compared(HeldCounts held) {
  for (size_t k = 0; k < kHeldLayers; k += kHeldStates) held[k + kForwarded] += held[k + kMadeAgain];
  return held;
}
bool holds(const HeldCounts& a, const HeldCounts& b) {
  int fewer = 0;
  for (size_t i = 0; i < kHeldCounts; i++) fewer |= a[i] < b[i];
  return fewer == 0;
}

// The peaks of each pass, without those that others cover.
class PeakList {
 public:
  // kind = kWorkLayers: during no pass.
  void add(WorkLayer kind, LayerPass pass, const HeldCounts& now) {
    const HeldCounts held = compared(now);
    const int32_t sum = std::accumulate(held.begin(), held.end(), 0);
    std::vector<Peak>& known = by_pass_[kind == kWorkLayers ? kNone : size_t(kind) * kLayerPasses + pass];
    // The latest is the likeliest to hold as much.
    if (std::any_of(known.rbegin(), known.rend(),
                    [&](const Peak& k) { return k.sum >= sum && holds(k.held, held); }))
      return;
    std::erase_if(known, [&](const Peak& k) { return sum >= k.sum && holds(held, k.held); });
    known.push_back({sum, held});
  }
  void list(RankMoments& out) const {
    std::vector<HeldCounts> all_units;  // without the rest
    const auto add = [&](WorkLayer kind, LayerPass pass, HeldCounts held) {
      for (size_t k = 0; k < kHeldLayers; k += kHeldStates) held[k + kForwarded] -= held[k + kMadeAgain];
      HeldCounts units = held;
      std::fill_n(units.begin(), kFirstUnit, 0);
      const auto at = size_t(std::find(all_units.begin(), all_units.end(), units) - all_units.begin());
      if (at == all_units.size()) {
        all_units.push_back(units);
        UnitCounts& counts = out.units.emplace_back();
        for (size_t i = kFirstUnit; i < kHeldCounts; i++)
          if (units[i] != 0) counts.emplace_back(uint32_t(i - kFirstUnit), units[i]);
      }
      out.moments.push_back({kind, pass, uint32_t(at)});
      for (uint32_t i = 0; i < kFirstUnit; i++) {
        if (held[i] == 0) continue;
        auto column =
            std::find_if(out.held.begin(), out.held.end(), [&](const auto& c) { return c.first == i; });
        if (column == out.held.end()) column = out.held.insert(column, {i, {}});
        column->second.resize(out.moments.size());
        column->second.back() = held[i];
      }
    };
    const auto covered = [&](const HeldCounts& m) {
      for (size_t p = 0; p < kNone; p++)
        for (const Peak& k : by_pass_[p])
          if (holds(k.held, m)) return true;
      return false;
    };
    for (size_t p = 0; p <= kNone; p++)
      for (const auto& [sum, m] : by_pass_[p])
        if (p < kNone)
          add(WorkLayer(p / kLayerPasses), LayerPass(p % kLayerPasses), m);
        else if (!covered(m))
          add(kWorkLayers, kPassForward, m);
    for (auto& [state, counts] : out.held) counts.resize(out.moments.size());
    for (const HeldCounts& a : all_units) {
      out.has_all.emplace_back();
      for (const HeldCounts& b : all_units) out.has_all.back().push_back(holds(a, b));
    }
  }

 private:
  static constexpr size_t kNone = size_t(kWorkLayers) * kLayerPasses;
  struct Peak {
    int32_t sum = 0;
    HeldCounts held;
  };
  std::array<std::vector<Peak>, kNone + 1> by_pass_;
};

// Counts what a rank holds before each operation of its program.
class HeldByProgram {
 public:
  // units: by unit of the shape, its number in RecordedLayers::units.
  HeldByProgram(const RankShape& shape, const std::vector<ShownLayer>& layers,
                const std::vector<uint32_t>& units, bool casts)
      : shape_(shape), layers_(layers), units_(units), casts_(casts) {}

  // left_out: GPipe's microbatches that the program does not have. Its stage has gone forward with them, and
  // has them until operation `until`; what it sent of them is read when the first backward pass begins.
  void run(const Program& p, int64_t left_out, size_t until, PeakList& peaks) {
    const auto n = int32_t(left_out);
    const bool receives = !shape_.stages.front().embedding;
    const auto hold = [&](int32_t microbatches) {
      now_[kBatches] += microbatches;
      for (const ShownLayer& l : layers_) now_[state(l.kind, kForwarded)] += microbatches * int32_t(l.copies);
      if (receives) now_[kBoundaries] += microbatches;
    };
    hold(n);
    bool read = false;
    for (size_t i = 0; i < size_t(p.norm); i++) {
      if (i == until) {
        add_grown(peaks);
        hold(-n);
        if (read) now_[kBoundaries] += n;
      }
      if (p.ops[i].kind == OpKind::free && !p.ops[i].back && !read) {
        read = true;
        add_grown(peaks);
        now_[kBoundaries] -= n;
      }
      step(p.ops[i], peaks);
    }
    add_grown(peaks);
  }

 private:
  static size_t state(WorkLayer kind, HeldState s) { return size_t(kind) * kHeldStates + s; }
  int32_t& unit(size_t u, HeldUnit h) { return now_[kFirstUnit + units_[u] * kHeldUnits + h]; }

  void pass(const Op& op, LayerPass pass, PeakList& peaks) {
    const auto layer = size_t(op.layer);
    if (open_.layer >= 0 && (open_.layer != op.layer || open_.mb != op.mb)) {
      add_grown(peaks);
      settle();
    }
    grown_ = false;
    peaks.add(layers_[layer].kind, pass, now_);
    switch (pass) {
      case kPassForward:
        return move(op, {}, kForwarded);
      case kPassAgain:
        return move(op, kForwarded, kMadeAgain);
      case kPassInput:
        return move(op, shape_.layers[layer].recomputes ? kMadeAgain : kForwarded, kWaiting);
      case kPassWeight:
        return move(op, kWaiting, kWeighted);
      default:
        return;
    }
  }
  // The copies of a layer follow when another layer runs.
  void move(const Op& op, std::optional<HeldState> from, std::optional<HeldState> to) {
    const ShownLayer& l = layers_[size_t(op.layer)];
    if (from) now_[state(l.kind, *from)] -= 1;
    if (to) now_[state(l.kind, *to)] += 1;
    if (l.copies == 1) return;
    if (open_.layer != op.layer || open_.mb != op.mb) open_ = {op.layer, op.mb, from, to};
    open_.to = to;
  }
  void settle() {
    if (open_.layer < 0) return;
    const ShownLayer& l = layers_[size_t(open_.layer)];
    if (open_.from) now_[state(l.kind, *open_.from)] -= int32_t(l.copies - 1);
    if (open_.to) now_[state(l.kind, *open_.to)] += int32_t(l.copies - 1);
    open_ = {};
  }

  void step(const Op& op, PeakList& peaks) {
    switch (op.kind) {
      case OpKind::forward:
        return pass(op, kPassForward, peaks);
      case OpKind::again:
        return pass(op, kPassAgain, peaks);
      case OpKind::input:
        return pass(op, kPassInput, peaks);
      case OpKind::weight:
        return pass(op, kPassWeight, peaks);
      case OpKind::clear:
        add_grown(peaks);
        return move(op, kWeighted, {});
      case OpKind::load:
        now_[kBatches]++;
        break;
      case OpKind::unload:
        add_grown(peaks);
        now_[kBatches]--;
        return;
      case OpKind::post:
        now_[kBoundaries]++;
        break;
      case OpKind::free:
        add_grown(peaks);
        now_[kBoundaries]--;
        return;
      case OpKind::gather:
        unit(size_t(op.unit), kGatheredUnit)++;
        break;
      case OpKind::release:
        add_grown(peaks);
        unit(size_t(op.unit), kGatheredUnit)--;
        return;
      case OpKind::open:
        unit(size_t(op.unit), kWholeGrad)++;
        break;
      case OpKind::reduce:
        reduce(op, peaks);
        return;
      case OpKind::retire:
        add_grown(peaks);
        for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++)
          if (casts_)
            unit(size_t(u), kOnWire)--;
          else if (shape_.units[size_t(u)].slots)
            unit(size_t(u), kWholeGrad)--;
        return;
      default:
        return;
    }
    grown_ = true;
  }
  // Outside of passes only those moments matter after which something is freed.
  void add_grown(PeakList& peaks) {
    if (std::exchange(grown_, false)) peaks.add(kWorkLayers, kPassForward, now_);
  }
  // A cast is made before the whole gradient goes.
  void reduce(const Op& op, PeakList& peaks) {
    if (!casts_) return;
    const auto units = [&](HeldUnit h, int32_t n, bool slots) {
      for (int32_t u = op.unit; u < std::max(op.last, op.unit + 1); u++)
        if (!slots || shape_.units[size_t(u)].slots) unit(size_t(u), h) += n;
    };
    units(kOnWire, 1, false);
    grown_ = true;
    add_grown(peaks);
    units(kWholeGrad, -1, true);
  }

  struct Open {
    int32_t layer = -1;
    int16_t mb = -1;
    std::optional<HeldState> from, to;
  };
  const RankShape& shape_;
  const std::vector<ShownLayer>& layers_;
  const std::vector<uint32_t>& units_;
  bool casts_;
  HeldCounts now_{};
  bool grown_ = false;  // since the last moment that was added
  Open open_;
};

// Microbatches until the ranks' memory repeats, and to end.
int64_t fewest_microbatches(std::string_view schedule, int64_t pp, int64_t m) {
  constexpr int64_t kFew = 3;
  if (schedule == "gpipe") return std::min(m, kFew);
  if (schedule == "interleaved") return std::min(m, 2 * pp);  // goes in groups of as many as there are ranks
  const int64_t turns = schedule == "1f1b" ? 1 : schedule == "zb-h1" ? 2 : 3;
  return std::min(m, turns * pp + kFew);
}

}  // namespace memory_moments

using namespace memory_moments;

struct MemoryMoments::Impl {
  ModelSpec model;
  int64_t seq = 0;
  std::string cut;

  // The actions of the ranks that are examined.
  struct Timetable {
    int64_t microbatches = 0;
    std::optional<Holders> holders;
    struct Rank {
      int number = 0;
      size_t group = 0;  // number of its list of layers
    };
    std::vector<Rank> ranks;
    std::vector<Least> least;                     // by group
    std::vector<std::vector<ShownStage>> stages;  // by group and chunk
    Schedule compute;
    // `compute` with all passes and messages, once a program is made.
    Schedule schedule;
    std::vector<std::vector<int>> send_ends;
  };
  std::map<Pipeline, Timetable> timetables;
  using Key = std::tuple<Pipeline, bool, UnitPolicy, std::string>;
  std::map<Key, std::vector<RankMoments>> known;
  // By pp, chunks, layers of each stage.
  std::map<std::tuple<int64_t, int64_t, const NumberList*>, std::vector<StageRange>> ranges;

  const std::vector<StageRange>& ranges_of(const Pipeline& p) {
    const auto [it, fresh] = ranges.try_emplace({p.pp, p.chunks, p.stage_layers});
    if (fresh) it->second = split_layers(model, seq, cut, p.stage_layers, int(p.pp * p.chunks));
    return it->second;
  }

  Timetable& timetable(const Pipeline& p) {
    Timetable& t = timetables[p];
    if (t.holders) return t;
    t.compute = make_schedule(p.schedule, int(p.pp), int(p.chunks), int(p.microbatches));
    t.holders.emplace(t.compute);
    const std::vector<StageRange>& all = ranges_of(p);
    std::vector<size_t> group;
    for (int r = 0; r < int(p.pp); r++) {
      std::vector<ShownStage> stages;
      std::array<int64_t, size_t(kWorkLayers)> layers{};
      for (const int s : t.holders->stages_of(r)) {
        stages.push_back(shown_stage(model, all[size_t(s)]));
        for (const ShownLayer& l : stages.back()) layers[size_t(l.kind)] += l.copies;
      }
      const int64_t device = p.devices ? p.devices->at(size_t(r)) : 0;
      size_t g = 0;
      while (g < t.stages.size() && (t.stages[g] != stages || t.least[g].device != device)) g++;
      if (g == t.stages.size()) t.stages.push_back(stages), t.least.push_back({layers, device, 0});
      group.push_back(g);
    }
    choose_ranks(t, all, group);
    return t;
  }
  static void complete(Timetable& t) {
    if (!t.schedule.ranks.empty()) return;
    t.schedule = with_passes(std::move(t.compute), {.recomputes = true});
    t.send_ends = send_ends(t.schedule);
  }
  // Among ranks with the same layers, chooses those that hold the most. A layer that waits for its weight
  // gradient may hold any share of what it holds before its input gradient.
  static void choose_ranks(Timetable& t, const std::vector<StageRange>& stages,
                           const std::vector<size_t>& group) {
    constexpr double kShares[] = {0, 0.06, 0.25, 0.8, 0.95, 1.05, 1.25, 4, 16, 1000};
    struct Most {
      double held = -1;
      int rank = 0;
    };
    std::vector<std::array<Most, std::size(kShares)>> most(t.stages.size());
    for (int r = 0; r < int(t.compute.ranks.size()); r++) {
      double before = 0, waiting = 0;
      int64_t blocks = 0;
      for (const Action& a : t.compute.ranks[size_t(r)]) {
        const StageRange& stage = stages[size_t(a.stage)];
        const auto layers = double(stage.layers());
        if (a.kind == Act::F) before += layers;
        if (a.kind == Act::F) blocks += stage.last - stage.first;
        if (a.kind == Act::B || a.kind == Act::I) blocks -= stage.last - stage.first;
        int64_t& most_blocks = t.least[group[size_t(r)]].blocks;
        most_blocks = std::max(most_blocks, blocks);
        if (a.kind == Act::I) {
          before -= layers;
          waiting += layers;
        }
        for (size_t k = 0; k < std::size(kShares); k++) {
          const double held = before + kShares[k] * waiting;
          Most& m = most[group[size_t(r)]][k];
          if (held > m.held) m = {held, r};
        }
        if (a.kind == Act::B) before -= layers;
        if (a.kind == Act::W) waiting -= layers;
      }
    }
    for (size_t g = 0; g < most.size(); g++)
      for (const Most& m : most[g])
        if (std::none_of(t.ranks.begin(), t.ranks.end(), [&](const auto& k) { return k.number == m.rank; }))
          t.ranks.push_back({m.rank, g});
  }

  // Where the sends of a rank's actions end, in a list with further actions.
  static std::vector<int> ends_in(const std::vector<Action>& more, const std::vector<Action>& plain,
                                  const std::vector<int>& ends) {
    std::vector<int> place(plain.size() + 1, int(more.size()));
    size_t at = 0;
    for (size_t i = 0; i < more.size() && at < plain.size(); i++)
      if (more[i].kind == plain[at].kind && more[i].stage == plain[at].stage && more[i].mb == plain[at].mb)
        place[at++] = int(i);
    require(at == plain.size(), "passes leave the order of actions");
    std::vector<int> out(more.size(), int(more.size()));
    for (size_t i = 0; i < plain.size(); i++)
      if (place[i] < int(more.size())) out[size_t(place[i])] = place[size_t(ends[i])];
    return out;
  }

  struct Rank {
    RankShape shape;
    std::vector<ShownLayer> layers;
    std::vector<uint32_t> units;
  };
  static Rank rank_of(const Timetable& t, const Timetable::Rank& r, const RecordedLayers& of,
                      const UnitPolicy& by) {
    Rank out;
    std::map<uint32_t, uint32_t> tied;  // by number in `of`
    const std::vector<int>& stages = t.holders->stages_of(r.number);
    for (size_t c = 0; c < stages.size(); c++) {
      const size_t first = out.layers.size();
      const ShownStage& shown = t.stages[r.group][c];
      for (const ShownLayer& l : shown) {
        const LayerBytes& bytes = of.kinds[size_t(l.kind)];
        const bool block = l.kind == kDenseLayer || l.kind == kExpertLayer;
        LayerShape layer{.name = {}, .units = {}, .recomputes = block};
        for (const uint32_t u : bytes.own) {
          const UnitSize& size = of.units[u];
          const bool shared = size.experts ? by.expert_replicas : by.replicas;
          tied[u] = uint32_t(out.units.size());
          layer.units.push_back(uint32_t(out.units.size()));
          out.units.push_back(u);
          out.shape.units.push_back({.name = {},
                                     .layer = out.layers.size(),
                                     .experts = size.experts,
                                     .gathers = shared && by.every_pass,
                                     .slots = shared && by.every_pass && !size.frozen,
                                     .reduces = shared && !size.frozen,
                                     .frozen = size.frozen});
        }
        if (bytes.tied && tied.count(*bytes.tied)) {
          layer.units.push_back(tied[*bytes.tied]);
          out.shape.tied = true;
        }
        out.layers.push_back(l);
        out.shape.layers.push_back(layer);
      }
      out.shape.stages.push_back({.stage = stages[c],
                                  .first = first,
                                  .last = out.layers.size(),
                                  .embedding = !shown.empty() && shown.front().kind == kEmbeddingLayer,
                                  .head = !shown.empty() && shown.back().kind == kHeadLayer});
    }
    return out;
  }

  std::vector<RankMoments> make(const Pipeline& p, int64_t left_out, const RecordedLayers& of,
                                const UnitPolicy& by, bool exchanges) {
    Timetable& t = timetable(p);
    complete(t);
    ShardPolicy policy = of.policy;
    const int zero = by.every_pass ? 3 : 1;  // with ZeRO 1 each unit leaves by itself
    policy.zero = zero;
    policy.casts = by.casts;
    policy.experts_in_weight = exchanges;
    std::vector<PeakList> peaks(t.stages.size());
    for (const Timetable::Rank& r : t.ranks) {
      const auto n = size_t(r.number);
      Schedule one{.stages = t.schedule.stages, .microbatches = t.schedule.microbatches, .ranks = {}};
      one.ranks.push_back(t.schedule.ranks[n]);
      if (by.replicas || by.expert_replicas)
        one = add_zero(std::move(one), zero, of.reshard_after_forward, exchanges);
      const std::vector<int> ends = ends_in(one.ranks[0], t.schedule.ranks[n], t.send_ends[n]);
      const Rank rank = rank_of(t, r, of, by);
      LowerInput in{.actions = one.ranks[0], .holders = nullptr, .send_ends = ends, .settle_at = {}};
      if (p.pp > 1) in.holders = &*t.holders;
      const Program program = lower(in, rank.shape, policy);
      size_t until = 0;
      for (const ActionOps& a : program.actions)
        if (a.action.kind == Act::B) until = size_t(a.begin);
      HeldByProgram(rank.shape, rank.layers, rank.units, by.casts)
          .run(program, left_out, until, peaks[r.group]);
    }
    std::vector<RankMoments> out;
    for (size_t g = 0; g < peaks.size(); g++) {
      out.push_back({.device = t.least[g].device,
                     .layers = t.least[g].layers,
                     .units = {},
                     .has_all = {},
                     .moments = {},
                     .held = {}});
      peaks[g].list(out.back());
    }
    return out;
  }
};

MemoryMoments::MemoryMoments(const ModelSpec& model, int64_t seq, std::string_view cut)
    : impl_(std::make_unique<Impl>(Impl{.model = model,
                                        .seq = seq,
                                        .cut = std::string(cut),
                                        .timetables = {},
                                        .known = {},
                                        .ranges = {}})) {}
MemoryMoments::~MemoryMoments() = default;

std::vector<MemoryMoments::Least> MemoryMoments::least(const Pipeline& p) {
  Pipeline few = p;
  few.microbatches = fewest_microbatches(p.schedule, p.pp, p.microbatches);
  std::vector<Least> all = impl_->timetable(few).least;
  for (Least& l : all)
    if (p.schedule == "gpipe")
      l.blocks += (p.microbatches - few.microbatches) * (l.layers[kDenseLayer] + l.layers[kExpertLayer]);
  return all;
}

const std::vector<RankMoments>& MemoryMoments::of(const Pipeline& p, const RecordedLayers& layers,
                                                  const UnitPolicy& by, bool exchanges) {
  require(layers.units.size() <= kMostUnits, "a model with more kinds of units than its moments count");
  Pipeline few = p;
  few.microbatches = fewest_microbatches(p.schedule, p.pp, p.microbatches);
  // GPipe holds all of them.
  const int64_t left_out = p.schedule == "gpipe" ? p.microbatches - few.microbatches : 0;
  const auto [it, fresh] =
      impl_->known.try_emplace({left_out > 0 ? p : few, exchanges, by, layers.structure});
  if (fresh) it->second = impl_->make(few, left_out, layers, by, exchanges);
  return it->second;
}

}  // namespace trireme
