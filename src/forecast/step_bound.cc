#include "forecast/step_bound.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <tuple>

#include "forecast/pipeline_paths.h"
#include "forecast/stage_paths.h"
#include "model/stages.h"

namespace trireme {

using namespace step_paths;

struct StepBound::Impl {
  ModelSpec model;
  int64_t seq = 0;
  std::string cut;

  // Stages and whole ranks.
  struct Class {
    Layers layers;
    int64_t device = 0;  // a number in BoundCase::devices
    bool operator==(const Class&) const = default;
  };
  std::vector<Class> classes;
  // The stages of a division: each stage's class, and those of ranks, each once.
  struct Cut {
    std::vector<int> of_stage, ranks;
    // By kind of WorldWork::kinds: a rank's layers, and those of the stages before its first one, with the
    // messages between these.
    using Kinds = std::array<double, size_t(kWorkLayers)>;
    struct RankLayers {
      Kinds own{}, before{};
      // Several kinds of devices: the rank's, and `before` by its stages' devices.
      int64_t device = 0;
      std::vector<std::pair<int64_t, Kinds>> before_on;
      double messages = 0;
      bool has_all_of(const RankLayers& o) const {
        for (size_t k = 0; k < own.size(); k++)
          if (own[k] < o.own[k] || before[k] < o.before[k]) return false;
        return messages >= o.messages;
      }
    };
    std::vector<RankLayers> by_rank;  // without those that another one has all of
    bool split = false;               // weight gradients are separate passes
  };
  // Schedule, pp, chunks, layers of stages, devices; and microbatches.
  using CutKey = std::tuple<std::string_view, int64_t, int64_t, const NumberList*, const NumberList*>;
  std::map<CutKey, Cut> cuts;
  std::map<std::pair<int64_t, CutKey>, std::unique_ptr<PipelinePaths>> pipelines;
  static CutKey key_of(const BoundCase& c) { return {c.schedule, c.pp, c.chunks, c.stage_layers, c.devices}; }
  using Stages = std::vector<std::unique_ptr<StagePaths>>;  // by class
  std::map<Structure, Stages> stages;
  std::vector<double> prices;

  int class_of(const Layers& l, int64_t device) {
    const Class c{l, device};
    const auto known = std::find(classes.begin(), classes.end(), c);
    if (known != classes.end()) return int(known - classes.begin());
    classes.push_back(c);
    return int(classes.size()) - 1;
  }
  const Cut& cut_of(const BoundCase& c) {
    const auto [it, fresh] = cuts.try_emplace(key_of(c));
    Cut& out = it->second;
    if (!fresh) return out;
    const int n = int(c.pp * c.chunks);
    const std::vector<StageRange> ranges = split_layers(model, seq, cut, c.stage_layers, n);
    const auto device_of = [&](size_t rank) { return c.devices ? (*c.devices)[rank] : 0; };
    std::vector<Layers> ranks(size_t(c.pp));
    out.by_rank.resize(size_t(c.pp));
    Cut::RankLayers before;
    const Schedule schedule = make_schedule(c.schedule, int(c.pp), int(c.chunks), int(c.pp));
    const std::vector<int> holder = rank_of_stages(schedule);
    for (const std::vector<Action>& rank : schedule.ranks)
      for (const Action& a : rank) out.split |= a.kind == Act::W;
    for (int s = 0; s < n; s++) {
      const StageRange& range = ranges[size_t(s)];
      Layers layers;
      if (range.embedding) layers.push_back(kEmbeddingLayer);
      for (int64_t b = range.first; b < range.last; b++)
        layers.push_back(model.expert_block(b) ? kExpertLayer : kDenseLayer);
      if (range.head) layers.push_back(kHeadLayer);
      const auto r = size_t(holder[size_t(s)]);
      Layers& rank = ranks[r];
      Cut::RankLayers& counts = out.by_rank[r];
      if (s > 0 && holder[size_t(s) - 1] != int(r)) before.messages += 1;
      if (rank.empty()) {
        counts.before = before.before;
        counts.before_on = before.before_on;
        counts.messages = before.messages;
        counts.device = device_of(r);
      }
      for (const int k : layers) counts.own[size_t(k)] += 1, before.before[size_t(k)] += 1;
      if (c.devices) {
        auto& on = before.before_on.emplace_back(device_of(r), Cut::Kinds{}).second;
        for (const int k : layers) on[size_t(k)] += 1;
      }
      rank.insert(rank.end(), layers.begin(), layers.end());
      out.of_stage.push_back(class_of(layers, device_of(r)));
    }
    std::vector<Cut::RankLayers> most;
    if (c.devices) std::swap(most, out.by_rank);  // the slowest device is not known here
    for (const Cut::RankLayers& r : out.by_rank) {
      if (std::any_of(most.begin(), most.end(), [&](const auto& o) { return o.has_all_of(r); })) continue;
      std::erase_if(most, [&](const auto& o) { return r.has_all_of(o); });
      most.push_back(r);
    }
    out.by_rank = std::move(most);
    for (size_t r = 0; r < ranks.size(); r++)
      if (const int k = class_of(ranks[r], device_of(r));
          std::find(out.ranks.begin(), out.ranks.end(), k) == out.ranks.end())
        out.ranks.push_back(k);
    return out;
  }

  // Before a rank's first pass, a microbatch goes forward through the stages before; after its last input
  // gradient, one comes back through them. Weight gradients of their own may come later.
  double least(const BoundCase& c) {
    const Cut& cut = cut_of(c);
    double most = 0;
    for (const Cut::RankLayers& rank : cut.by_rank) {
      double forward = 0, input = 0, weight = 0, on = 0, back = 0;
      const WorldWork& work = work_on(c, rank.device);
      for (size_t k = 0; k < std::min(rank.own.size(), work.kinds.size()); k++) {
        const LayerWork& w = work.kinds[k];
        const auto f = double(w.forward.total()), i = double(w.again.total() + w.input.total()),
                   g = double(w.weight.total());
        forward += rank.own[k] * f;
        input += rank.own[k] * i;
        weight += rank.own[k] * g;
        if (c.devices) continue;
        on += rank.before[k] * f;
        back += rank.before[k] * (i + (cut.split ? 0 : g));
      }
      for (const auto& [device, layers] : rank.before_on)
        for (size_t k = 0; k < layers.size(); k++) {
          const LayerWork& w = c.works[size_t(device)]->kinds[k];
          on += layers[k] * double(w.forward.total());
          back += layers[k] * double(w.again.total() + w.input.total() + (cut.split ? 0 : w.weight.total()));
        }
      const double message = rank.messages * double(c.work->message), m = double(c.microbatches);
      const double arrived = on + message + m * (forward + input), returned = back + message;
      most = std::max(most,
                      cut.split ? arrived + std::max(m * weight, returned) : arrived + m * weight + returned);
    }
    return most;
  }

  static const WorldWork& work_on(const BoundCase& c, int64_t device) {
    return c.devices ? *c.works[size_t(device)] : *c.work;
  }

  // Paths and prices on devices of one kind.
  struct Side {
    BoundCase c;
    Structure structure;
    Stages* known = nullptr;  // by class
    PricesAt at;
  };
  std::vector<Side> sides;  // the current case's, by number of BoundCase::devices
  // exact: as of().
  void set_sides(const BoundCase& c, bool exact) {
    sides.resize(c.devices ? c.works.size() : 1);
    for (size_t d = 0; d < sides.size(); d++) {
      if (c.devices && !c.works[d]) continue;
      Side& side = sides[d];
      side.c = c;
      side.c.work = &work_on(c, int64_t(d));
      side.structure = structure_of(side.c);
      side.known = &stages[side.structure];
      if (side.known->size() < classes.size()) side.known->resize(classes.size());
      set_prices(side.at, side.c, exact);
    }
  }
  StagePaths& paths(int k) {
    const Side& side = sides[size_t(classes[size_t(k)].device)];
    std::unique_ptr<StagePaths>& p = (*side.known)[size_t(k)];
    if (!p) p = std::make_unique<StagePaths>(classes[size_t(k)].layers, side.structure, side.c);
    return *p;
  }
  const PricesAt& at_of(int k) const { return sides[size_t(classes[size_t(k)].device)].at; }

  // Collectives among replicas are one after another.
  double lane(const BoundCase& c) {
    if (c.work->zero < 2) return 0;
    const Cut& cut = cut_of(c);
    double most = 0;
    for (const int k : cut.ranks) most = std::max(most, paths(k).lane(cut.split, at_of(k).prices));
    return most * double(c.microbatches);
  }

  double sharded(const BoundCase& c) {
    const Cut& cut = cut_of(c);
    set_sides(c, false);
    double end = 0;
    for (const int k : cut.ranks) end = std::max(end, paths(k).end(at_of(k)));
    return std::max(least(c), lane(c)) + end;
  }

  void set_prices(PricesAt& at, const BoundCase& c, bool exact) const {
    at.prices = prices_of(*c.work);
    at.number = 1;
    at.profile = 1;
    at.exact = exact;
    const Prices& all = at.prices;
    for (const double p : all) {
      at.number = (at.number ^ std::bit_cast<uint64_t>(p)) * 0x9e3779b97f4a7c15u;
      at.number ^= at.number >> 29;
    }
    for (const WorkLayer k : {kDenseLayer, kExpertLayer, kHeadLayer}) {
      if (k == kExpertLayer && !model.moe()) continue;
      const double* p = &all[size_t(k) * kPriceKinds];
      const double one = all[kForward] + all[size_t(kExpertLayer) * kPriceKinds + kForward];
      mix(at.profile, p[kReduce] + p[kReduceExperts], one);
      mix(at.profile, p[kGather] + p[kGatherExperts], one);
      mix(at.profile, p[kInput] + p[kAgain] + p[kWeight], one);
    }
  }

  BoundParts of(const BoundCase& c, bool exact) {
    const Cut& cut = cut_of(c);
    set_sides(c, exact);
    std::unique_ptr<PipelinePaths>& pipeline = pipelines[{c.microbatches, key_of(c)}];
    if (!pipeline)
      pipeline = std::make_unique<PipelinePaths>(c.schedule, c.pp, c.chunks, c.microbatches, cut.of_stage);
    prices.assign(pipeline->message() + 1, kNoWay);
    const std::vector<PipelinePaths::Added>& added = pipeline->added();
    for (size_t i = 0; i < added.size(); i++) {
      const int k = added[i].stage_class;
      for (const StagePaths::Live& l : paths(k).of(added[i].span, added[i].next, at_of(k)))
        prices[i * kWays + l.way] = l.ns;
    }
    prices.back() = double(c.work->message);
    bool look = exact;
    const size_t kind = PipelinePaths::kind_of(c.work->zero, c.exchanges);
    if (!exact && !pipeline->settled(kind)) {
      Profile lengths = 1;
      for (const double p : prices) mix(lengths, p, prices[0]);
      look = pipeline->fresh(kind, lengths);
    }
    const PipelinePaths::Path path = pipeline->longest(prices, kind, look);
    BoundParts out;
    for (const int k : cut.ranks) {
      StagePaths& rank = paths(k);
      const PricesAt& at = at_of(k);
      const double own = rank.passes(at.prices) * double(c.microbatches);
      if (own > out.busiest) {
        out.busiest = own;
        out.head = rank.head(at.prices) * double(c.microbatches);
        out.device = classes[size_t(k)].device;
      }
      out.update = std::max(out.update, rank.end(at));
    }
    out.messages = path.counts->of(pipeline->message()) * double(c.work->message);
    // The same path without collectives among replicas.
    double passes = 0;
    for (size_t i = 0; i < added.size(); i++)
      if (const double n = path.counts->of(i * kWays + way_of(kFromCompute, kToCompute)); n > 0)
        passes +=
            n * paths(added[i].stage_class).passes_of(added[i].span, at_of(added[i].stage_class).prices);
    double length = std::max({path.total, out.busiest, least(c), lane(c)});
    if (c.pp == 1 && c.work->zero >= 2)
      length = std::max(length, paths(cut.ranks[0]).whole(c.microbatches, at_of(cut.ranks[0])));
    out.bubble = std::clamp(passes - out.busiest, 0.0, length - out.busiest);
    out.messages = std::min(out.messages, length - out.busiest - out.bubble);
    out.replicas = length - out.messages - out.busiest - out.bubble;
    out.total = length + out.update;
    return out;
  }
};

StepBound::StepBound(const ModelSpec& model, int64_t seq, std::string_view cut)
    : impl_(std::make_unique<Impl>(Impl{.model = model, .seq = seq, .cut = std::string(cut)})) {}
StepBound::~StepBound() = default;
BoundParts StepBound::of(const BoundCase& c, bool exact) {
  return impl_->of(c, exact);
}
double StepBound::least(const BoundCase& c) {
  return impl_->least(c);
}
double StepBound::sharded(const BoundCase& c) {
  return impl_->sharded(c);
}

}  // namespace trireme
