#include "forecast/rank_bytes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "forecast/layer_bytes.h"
#include "forecast/layout_case.h"
#include "forecast/memory_moments.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace rank_bytes {

// Bytes of a layer, by its last pass; then of a batch and a message.
using HeldBytes = std::array<double, kFirstUnit>;
HeldBytes bytes_of(const RecordedLayers& r) {
  HeldBytes all{};
  for (size_t k = 0; k < size_t(kWorkLayers); k++) {
    const auto& p = r.kinds[k].passes;
    double* const at = &all[k * kHeldStates];
    at[kForwarded] = p[kPassForward].net + p[kPassDrop].net;
    at[kMadeAgain] = at[kForwarded] + p[kPassAgain].net;
    at[kWaiting] = at[kMadeAgain] + p[kPassInput].net;
    at[kWeighted] = at[kWaiting] + p[kPassWeight].net;
  }
  all[kBatches] = r.batch;
  all[kBoundaries] = r.boundary;
  return all;
}

// Ranks with the same layers, for layouts that differ by their sharding alone.
struct RankKind {
  const RankMoments* moments = nullptr;
  struct Most {
    size_t units = 0, moment = 0;
    double held = -1;
  };
  std::vector<Most> most;  // by some of RankMoments::units
};

RankKind kind_of(const RankMoments& m, const RecordedLayers& r, const HeldBytes& bytes) {
  RankKind out{.moments = &m, .most = {}};
  std::vector<RankKind::Most> all(m.units.size());
  std::vector<double> held;
  for (const MemoryMoment& at : m.moments)
    held.push_back(at.kind < kWorkLayers ? r.kinds[size_t(at.kind)].passes[at.pass].high : 0);
  for (const auto& [state, counts] : m.held)
    for (size_t i = 0; i < held.size(); i++) held[i] += double(counts[i]) * bytes[state];
  for (size_t i = 0; i < held.size(); i++) {
    RankKind::Most& most = all[m.moments[i].units];
    if (held[i] > most.held) most = {m.moments[i].units, i, held[i]};
  }
  // A moment is left out if another one has more of everything.
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.held > b.held; });
  for (const RankKind::Most& one : all)
    if (std::none_of(out.most.begin(), out.most.end(),
                     [&](const RankKind::Most& other) { return m.has_all[other.units][one.units] != 0; }))
      out.most.push_back(one);
  return out;
}

MemoryMoments::Pipeline pipeline_of(const SearchLayout& l, const NumberList* devices) {
  return {.schedule = l.schedule,
          .pp = l.pp,
          .chunks = l.chunks,
          .microbatches = l.microbatches(),
          .stage_layers = l.stage_layers,
          .devices = devices};
}

LayoutSpec sharded_as(const SearchLayout& l, int zero, int64_t shards) {
  LayoutSpec layout;
  layout.tp = l.tp;
  layout.dp = l.dp;
  layout.cp = l.cp;
  layout.ep = l.ep;
  layout.zero = zero;
  layout.shard_group = shards;
  return layout;
}

}  // namespace rank_bytes

using namespace rank_bytes;

struct RankBytes::Impl {
  Impl(RunSpec r, std::string_view cut) : run(std::move(r)), moments(run.model, run.data.seq_len, cut) {}

  RunSpec run;
  MemoryMoments moments;
  // tp, ends of the pipeline apart, several ranks of cp, ep.
  using RowsKey = std::tuple<int64_t, bool, bool, int64_t>;
  std::map<RowsKey, LayersByRows> by_rows;
  // And sequences of a rank, several microbatches, recompute.
  std::map<std::tuple<RowsKey, double, bool, Again>, RecordedLayers> layers;
  // Some layers with these units: neither cp nor recompute changes states.
  using StatesKey = std::tuple<int64_t, bool, int64_t, bool>;
  static StatesKey states_key(const RowsKey& k, const SearchLayout& l) {
    return {std::get<0>(k), std::get<1>(k), std::get<3>(k), l.microbatches() > 1};
  }
  std::map<StatesKey, const RecordedLayers*> like;
  // The current layouts, equal except for their sharding; and those whose optimizer state waits elsewhere.
  struct Kind {
    SearchLayout layout;
    const NumberList* devices = nullptr;  // RankRoom's
    const RecordedLayers* recorded = nullptr;
    HeldBytes bytes{};
    // The kind of block that keeps less, and that needs less while it runs forward.
    double forwarded = 0, running = 0;
    std::vector<MemoryMoments::Least> least;
    std::map<UnitPolicy, const std::vector<RankKind>*> ranks;
  };
  std::array<Kind, 2> kinds;
  std::map<std::pair<const RecordedLayers*, const std::vector<RankMoments>*>, std::vector<RankKind>> ranks;

  const std::vector<RankKind>& ranks_of(const Kind& kind, const UnitPolicy& by) {
    const SearchLayout& l = kind.layout;
    const std::vector<RankMoments>& all =
        moments.of(pipeline_of(l, kind.devices), *kind.recorded, by, l.ep > 1);
    const auto [it, fresh] = ranks.try_emplace({kind.recorded, &all});
    if (fresh)
      for (const RankMoments& m : all) it->second.push_back(kind_of(m, *kind.recorded, kind.bytes));
    return it->second;
  }

  RowsKey key_of(const SearchLayout& l) const {
    const bool v = default_chunks(l.schedule) > 1 && l.schedule != "interleaved";
    const bool split = run.model.tied && l.pp > 1 && !v;
    return {l.tp, split, l.cp > 1, l.ep};
  }

  // Two ranks of cp stand for more: blocks of keys and values travel in the same buffers.
  static int64_t recorded_cp(const SearchLayout& l) { return std::min<int64_t>(l.cp, 2); }
  static double sequences_of(const SearchLayout& l) {
    return double(l.micro) * double(recorded_cp(l)) / double(l.cp);
  }

  // precision.grads may depend on the number of microbatches.
  std::array<double, 2> grads{};
  double grad_bytes(const SearchLayout& l) {
    double& known = grads[l.microbatches() > 1];
    if (known == 0) {
      const RunSpec resolved = resolve(with_layout(run, l), {.native_bf16 = true});
      known = double(size_of(dtype_from_name(resolved.precision.grads)));
    }
    return known;
  }

  const RecordedLayers& layers_of(const SearchLayout& l) {
    const RowsKey key = key_of(l);
    const double sequences = sequences_of(l);
    const auto [it, fresh] = layers.try_emplace({key, sequences, l.microbatches() > 1, l.again});
    if (!fresh) return it->second;
    auto rows = by_rows.find(key);
    if (rows == by_rows.end()) {
      SearchLayout one = l;
      one.offload = false;  // state that waits takes no memory while layers run
      one.cp = recorded_cp(l);
      one.micro = 1;
      one.global = l.dp;
      const RunSpec resolved = resolve(with_layout(run, one), {.native_bf16 = true});
      rows = by_rows.try_emplace(key, resolved, std::get<1>(key)).first;
    }
    it->second = rows->second.at(sequences, l.again);
    it->second.grad = grad_bytes(l);
    like[states_key(key, l)] = &it->second;
    return it->second;
  }

  Kind& kind_of_layout(const SearchLayout& l, const RankRoom& room) {
    Kind& k = kinds[l.offload];
    if (k.recorded && k.layout.holds_as(l) && k.devices == room.devices) return k;
    k = {.layout = l,
         .devices = room.devices,
         .recorded = &layers_of(l),
         .bytes = {},
         .forwarded = INFINITY,
         .running = INFINITY,
         .least = {},
         .ranks = {}};
    k.bytes = bytes_of(*k.recorded);
    for (const WorkLayer b : {kDenseLayer, kExpertLayer}) {
      const LayerBytes& block = k.recorded->kinds[size_t(b)];
      if (block.own.empty()) continue;
      k.forwarded = std::min(k.forwarded, k.bytes[size_t(b) * kHeldStates + kForwarded]);
      k.running = std::min(k.running, block.passes[kPassForward].high);
    }
    k.least = moments.least(pipeline_of(l, room.devices));
    return k;
  }

  // A sharding: bytes of whole units, and bytes of each layer between steps.
  struct Shares {
    int zero = 0;
    int64_t shards = 0;
    bool offload = false;
    UnitSharers dense, experts;
    std::array<double, kMostUnits * kHeldUnits> units{};
    std::array<double, size_t(kWorkLayers)> kept{};
    double gathered = 0;  // bytes while a block runs: the kind that needs less
  };
  // Layouts with equal units.
  using Divided = std::tuple<int64_t, int64_t, int64_t, double, std::string_view>;
  Divided divided;
  std::vector<Shares> shares;

  const Shares& shares_of(const SearchLayout& l, const RecordedLayers& r) {
    if (const Divided now{l.tp, l.ep, l.dp * l.cp, r.grad, r.structure}; now != divided) {
      divided = now;
      shares.clear();
    }
    for (const Shares& s : shares)
      if (s.zero == l.zero && s.shards == l.shards && s.offload == l.offload) return s;
    Shares& s = shares.emplace_back();
    s.zero = l.zero;
    s.shards = l.shards;
    s.offload = l.offload;
    const LayoutSpec layout = sharded_as(l, l.zero, l.shards);
    s.dense = sharers_of(layout, false);
    s.experts = sharers_of(layout, true);
    std::array<double, kMostUnits> kept{};
    for (uint32_t u = 0; u < r.units.size(); u++) {
      const UnitSharers& by = r.units[u].experts ? s.experts : s.dense;
      double* const at = &s.units[u * kHeldUnits];
      at[kGatheredUnit] = by.zero == 3 ? r.gathered(u, by.shards) : 0;
      at[kWholeGrad] = r.whole_grad(u, by.shards);
      // Without ZeRO small units travel together.
      at[kOnWire] = std::max(r.wired(u, by.shards), by.zero == 0 ? double(r.policy.bucket_bytes) : 0);
      kept[u] = r.kept(u, by, s.dense.shards, !l.offload);
    }
    s.gathered = INFINITY;
    for (size_t k = 0; k < s.kept.size(); k++) {
      s.kept[k] = r.kinds[k].buffers;
      double gathered = 0;
      for (const uint32_t u : r.kinds[k].own) {
        s.kept[k] += kept[u];
        if ((r.units[u].experts ? s.experts : s.dense).all > 1)
          gathered += s.units[u * kHeldUnits + kGatheredUnit];
      }
      if ((k == kDenseLayer || k == kExpertLayer) && !r.kinds[k].own.empty())
        s.gathered = std::min(s.gathered, gathered);
    }
    return s;
  }
  static double states_of(const std::array<int64_t, size_t(kWorkLayers)>& layers, const RecordedLayers& r,
                          const Shares& s) {
    double states = r.rest;
    for (size_t k = 0; k < layers.size(); k++) states += double(layers[k]) * s.kept[k];
    return states;
  }
  static UnitPolicy policy_of(const SearchLayout& l, const RecordedLayers& r, const Shares& s) {
    UnitPolicy policy{.every_pass = s.dense.zero >= 2,
                      .casts = l.gpus > 1 && r.wire != r.grad,
                      .replicas = s.dense.all > 1,
                      .expert_replicas = s.experts.all > 1};
    if (s.dense.zero < 2 && !policy.casts) policy.replicas = policy.expert_replicas = false;
    return policy;
  }

  // The current layouts, if they have no tapes of their own yet.
  struct Like {
    SearchLayout layout{.micro = 0};
    const NumberList* devices = nullptr;       // RankRoom's
    const RecordedLayers* recorded = nullptr;  // tapes of layouts with the same units; null: none
    bool grows = false;                        // tapes of one sequence are recorded, and are not enough
    std::vector<MemoryMoments::Least> least;
  } rough;
  const Like& like_layout(const SearchLayout& l, const NumberList* devices) {
    if (rough.layout.holds_as(l) && rough.devices == devices) return rough;
    const RowsKey key = key_of(l);
    const auto rows = by_rows.find(key);
    const auto at = like.find(states_key(key, l));
    const bool other = rows == by_rows.end() && at != like.end();
    rough = {.layout = l,
             .devices = devices,
             .recorded = other ? at->second : nullptr,
             .grows = sequences_of(l) > 1 && (rows == by_rows.end() || !rows->second.knows_more()),
             .least = {}};
    if (other) rough.least = moments.least(pipeline_of(l, devices));
    return rough;
  }

  StepMemory least(const SearchLayout& l, double base, double enough, const RankRoom& room) {
    if (const Kind& k = kinds[l.offload]; k.recorded && k.layout.holds_as(l) && k.devices == room.devices)
      return least_of(k, l, base, room);
    const Like& other = like_layout(l, room.devices);
    if (other.recorded) {
      const RecordedLayers& r = *other.recorded;
      const Shares& s = shares_of(l, r);
      double states = 0;
      double more = 0;
      for (const MemoryMoments::Least& rank : other.least) {
        const double of = states_of(rank.layers, r, s) - r.rest;
        const double device = room.of(rank.device);
        if (of - device > states - more) {
          states = of;
          more = device;
        }
      }
      if (states + base - more > enough)
        return {.states = states, .base = base, .total = states + base, .more = more};
    }
    if (other.grows && std::isfinite(enough)) {
      SearchLayout one = l;
      one.micro = std::max<int64_t>(1, l.cp / 2);
      one.global = l.dp * one.micro * l.microbatches();
      const StepMemory m = least_of(kind_of_layout(one, room), one, base, room);
      if (m.used() > enough) return m;
    }
    return least_of(kind_of_layout(l, room), l, base, room);
  }

  StepMemory least_of(const Kind& kind, const SearchLayout& l, double base, const RankRoom& room) {
    const RecordedLayers& r = *kind.recorded;
    const Shares& s = shares_of(l, r);
    StepMemory most;
    for (const MemoryMoments::Least& rank : kind.least) {
      const double states = states_of(rank.layers, r, s);
      double held = 0;
      // The last of these blocks runs forward.
      if (rank.blocks > 0) held = double(rank.blocks - 1) * kind.forwarded + kind.running + s.gathered;
      // Then the head does.
      if (l.chunks == 1 && rank.layers[kHeadLayer] > 0)
        held = std::max(held,
                        double(rank.blocks) * kind.forwarded + r.kinds[kHeadLayer].passes[kPassForward].high);
      const double total = states + held + base;
      const double more = room.of(rank.device);
      if (total - more > most.used() || most.total == 0)
        most = {.states = states, .activations = held, .base = base, .total = total, .more = more};
    }
    return most;
  }

  StepMemory of(const SearchLayout& l, double base, const RankRoom& room) {
    Kind& kind = kind_of_layout(l, room);
    const RecordedLayers& r = *kind.recorded;
    const Shares& s = shares_of(l, r);
    const std::vector<RankKind>*& ranks = kind.ranks[policy_of(l, r, s)];
    if (!ranks) ranks = &ranks_of(kind, policy_of(l, r, s));
    StepMemory most;
    const RankKind* fullest = nullptr;
    size_t moment = 0;
    for (const RankKind& k : *ranks) {
      const double states = states_of(k.moments->layers, r, s);
      const double more = room.of(k.moments->device);
      for (const RankKind::Most& m : k.most) {
        double passing = 0;
        for (const auto& [unit, n] : k.moments->units[m.units]) passing += double(n) * s.units[unit];
        const double total = states + m.held + passing;
        if (total - more <= most.used() && most.total > 0) continue;
        most = {.states = states, .activations = m.held, .gradients = passing, .total = total, .more = more};
        fullest = &k;
        moment = m.moment;
      }
      if (const double total = states + r.between; total - more > most.used()) {
        most = {.states = states, .activations = r.between, .total = total, .more = more};
        fullest = nullptr;
      }
    }
    if (fullest)
      for (const auto& [state, counts] : fullest->moments->held)
        if (state < kHeldLayers && state / kHeldStates == size_t(kHeadLayer))
          most.logits += double(counts[moment]) * kind.bytes[state];
    most.activations -= most.logits;
    most.base = base;
    most.total += base;
    return most;
  }
};

RankBytes::RankBytes(RunSpec run, std::string_view cut)
    : impl_(std::make_unique<Impl>(std::move(run), cut)) {}
RankBytes::~RankBytes() = default;
StepMemory RankBytes::of(const SearchLayout& l, double base, const RankRoom& room) {
  return impl_->of(l, base, room);
}
StepMemory RankBytes::least(const SearchLayout& l, double base, double enough, const RankRoom& room) {
  return impl_->least(l, base, enough, room);
}

}  // namespace trireme
