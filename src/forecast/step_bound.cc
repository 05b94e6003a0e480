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

  std::vector<Layers> classes;  // stages and whole ranks
  // The stages of a division: each stage's class, and those of ranks, each once.
  struct Cut {
    std::vector<int> of_stage, ranks;
    // By kind of WorldWork::kinds: a rank's layers, and those of the stages before its first one, with the
    // messages between these.
    using Kinds = std::array<double, size_t(kWorkLayers)>;
    struct RankLayers {
      Kinds own{}, before{};
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
  std::map<std::tuple<std::string_view, int64_t, int64_t>, Cut> cuts;  // schedule, pp, chunks
  std::map<std::tuple<std::string_view, int64_t, int64_t, int64_t>, std::unique_ptr<PipelinePaths>> pipelines;
  using Stages = std::vector<std::unique_ptr<StagePaths>>;  // by class
  std::map<Structure, Stages> stages;
  std::vector<double> prices;

  int class_of(const Layers& l) {
    const auto known = std::find(classes.begin(), classes.end(), l);
    if (known != classes.end()) return int(known - classes.begin());
    classes.push_back(l);
    return int(classes.size()) - 1;
  }
  const Cut& cut_of(const BoundCase& c) {
    const auto [it, fresh] = cuts.try_emplace({c.schedule, c.pp, c.chunks});
    Cut& out = it->second;
    if (!fresh) return out;
    const int n = int(c.pp * c.chunks);
    const std::vector<StageRange> ranges =
        cut == "even" ? split_evenly(model, n) : split_layers(model, seq, n);
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
        counts.messages = before.messages;
      }
      for (const int k : layers) counts.own[size_t(k)] += 1, before.before[size_t(k)] += 1;
      rank.insert(rank.end(), layers.begin(), layers.end());
      out.of_stage.push_back(class_of(layers));
    }
    std::vector<Cut::RankLayers> most;
    for (const Cut::RankLayers& r : out.by_rank) {
      if (std::any_of(most.begin(), most.end(), [&](const auto& o) { return o.has_all_of(r); })) continue;
      std::erase_if(most, [&](const auto& o) { return r.has_all_of(o); });
      most.push_back(r);
    }
    out.by_rank = std::move(most);
    for (const Layers& l : ranks)
      if (const int k = class_of(l); std::find(out.ranks.begin(), out.ranks.end(), k) == out.ranks.end())
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
      for (size_t k = 0; k < std::min(rank.own.size(), c.work->kinds.size()); k++) {
        const LayerWork& w = c.work->kinds[k];
        const auto f = double(w.forward.total()), i = double(w.again.total() + w.input.total()),
                   g = double(w.weight.total());
        forward += rank.own[k] * f;
        input += rank.own[k] * i;
        weight += rank.own[k] * g;
        on += rank.before[k] * f;
        back += rank.before[k] * (i + (cut.split ? 0 : g));
      }
      const double message = rank.messages * double(c.work->message), m = double(c.microbatches);
      const double arrived = on + message + m * (forward + input), returned = back + message;
      most = std::max(most,
                      cut.split ? arrived + std::max(m * weight, returned) : arrived + m * weight + returned);
    }
    return most;
  }

  // By class.
  auto paths_of(const BoundCase& c) {
    const Structure structure = structure_of(c);
    Stages& known = stages[structure];
    known.resize(classes.size());
    return [this, &known, structure, &c](int k) -> StagePaths& {
      std::unique_ptr<StagePaths>& p = known[size_t(k)];
      if (!p) p = std::make_unique<StagePaths>(classes[size_t(k)], structure, c);
      return *p;
    };
  }

  // Collectives among replicas are one after another.
  double lane(const BoundCase& c) {
    if (c.work->zero < 2) return 0;
    const Cut& cut = cut_of(c);
    const auto paths = paths_of(c);
    const Prices all = prices_of(*c.work);
    double most = 0;
    for (const int k : cut.ranks) most = std::max(most, paths(k).lane(cut.split, all));
    return most * double(c.microbatches);
  }

  double sharded(const BoundCase& c) {
    const Cut& cut = cut_of(c);
    const auto paths = paths_of(c);
    const PricesAt at = prices_at(c, false);
    double end = 0;
    for (const int k : cut.ranks) end = std::max(end, paths(k).end(at));
    return std::max(least(c), lane(c)) + end;
  }

  PricesAt prices_at(const BoundCase& c, bool exact) const {
    PricesAt at{.prices = prices_of(*c.work), .number = 1, .profile = 1, .exact = exact};
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
    return at;
  }

  BoundParts of(const BoundCase& c, bool exact) {
    const Cut& cut = cut_of(c);
    const auto paths = paths_of(c);
    std::unique_ptr<PipelinePaths>& pipeline = pipelines[{c.schedule, c.pp, c.chunks, c.microbatches}];
    if (!pipeline)
      pipeline = std::make_unique<PipelinePaths>(c.schedule, c.pp, c.chunks, c.microbatches, cut.of_stage);
    const PricesAt at = prices_at(c, exact);
    prices.assign(pipeline->message() + 1, kNoWay);
    const std::vector<PipelinePaths::Added>& added = pipeline->added();
    for (size_t i = 0; i < added.size(); i++) {
      for (const StagePaths::Live& l : paths(added[i].stage_class).of(added[i].span, added[i].next, at))
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
      const double own = rank.passes(at.prices) * double(c.microbatches);
      if (own > out.busiest) {
        out.busiest = own;
        out.head = rank.head(at.prices) * double(c.microbatches);
      }
      out.update = std::max(out.update, rank.end(at));
    }
    out.messages = path.counts->of(pipeline->message()) * double(c.work->message);
    // The same path without collectives among replicas.
    double passes = 0;
    for (size_t i = 0; i < added.size(); i++)
      if (const double n = path.counts->of(i * kWays + way_of(kFromCompute, kToCompute)); n > 0)
        passes += n * paths(added[i].stage_class).passes_of(added[i].span, at.prices);
    double length = std::max({path.total, out.busiest, least(c), lane(c)});
    if (c.pp == 1 && c.work->zero >= 2)
      length = std::max(length, paths(cut.ranks[0]).whole(c.microbatches, at));
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
