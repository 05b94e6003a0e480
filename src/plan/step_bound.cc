#include "plan/step_bound.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <tuple>

#include "model/stages.h"
#include "plan/pipeline_paths.h"
#include "plan/stage_paths.h"

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
    // By rank: layers, and those of the stages before its first one, by kind of WorldWork::kinds.
    using Kinds = std::array<double, size_t(kWorkLayers)>;
    std::vector<std::pair<Kinds, Kinds>> passes;
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
    out.passes.resize(size_t(c.pp));
    Cut::Kinds before{};
    const std::vector<int> holder =
        rank_of_stages(make_schedule(c.schedule, int(c.pp), int(c.chunks), int(c.pp)));
    for (int s = 0; s < n; s++) {
      const StageRange& range = ranges[size_t(s)];
      Layers layers;
      if (range.embedding) layers.push_back(kEmbeddingLayer);
      for (int64_t b = range.first; b < range.last; b++)
        layers.push_back(model.expert_block(b) ? kExpertLayer : kDenseLayer);
      if (range.head) layers.push_back(kHeadLayer);
      const auto r = size_t(holder[size_t(s)]);
      Layers& rank = ranks[r];
      if (rank.empty()) out.passes[r].second = before;
      for (const int k : layers) out.passes[r].first[size_t(k)] += 1, before[size_t(k)] += 1;
      rank.insert(rank.end(), layers.begin(), layers.end());
      out.of_stage.push_back(class_of(layers));
    }
    for (const Layers& l : ranks)
      if (const int k = class_of(l); std::find(out.ranks.begin(), out.ranks.end(), k) == out.ranks.end())
        out.ranks.push_back(k);
    return out;
  }

  double least(const BoundCase& c) {
    double most = 0;
    for (const auto& [own, before] : cut_of(c).passes) {
      double busy = 0, first = 0;
      for (size_t k = 0; k < std::min(own.size(), c.work->kinds.size()); k++) {
        const LayerWork& w = c.work->kinds[k];
        const auto forward = double(w.forward.total());
        busy += own[k] * (forward + double(w.again.total() + w.input.total() + w.weight.total()));
        first += before[k] * forward;
      }
      most = std::max(most, double(c.microbatches) * busy + first);
    }
    return most;
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
    const Structure structure = structure_of(c);
    Stages& known = stages[structure];
    known.resize(classes.size());
    const auto paths = [&](int k) -> StagePaths& {
      std::unique_ptr<StagePaths>& p = known[size_t(k)];
      if (!p) p = std::make_unique<StagePaths>(classes[size_t(k)], structure, c);
      return *p;
    };
    std::unique_ptr<PipelinePaths>& pipeline = pipelines[{c.schedule, c.pp, c.chunks, c.microbatches}];
    if (!pipeline)
      pipeline = std::make_unique<PipelinePaths>(c.schedule, c.pp, c.chunks, c.microbatches, cut.of_stage);
    const PricesAt at = prices_at(c, exact);
    prices.assign(pipeline->message() + 1, kNoWay);
    const std::vector<PipelinePaths::Added>& added = pipeline->added();
    for (size_t i = 0; i < added.size(); i++) {
      for (const StagePaths::Live& l : paths(added[i].stage_class).of(added[i].span, at))
        prices[i * kWays + l.way] = l.ns;
    }
    prices.back() = double(c.work->message);
    bool look = exact;
    if (!exact && !pipeline->settled()) {
      Profile lengths = 1;
      for (const double p : prices) mix(lengths, p, prices[0]);
      look = pipeline->fresh(lengths);
    }
    const PipelinePaths::Path path = pipeline->longest(prices, look);
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
    double length = std::max(path.total, out.busiest);
    if (c.pp == 1 && c.work->zero >= 2)
      length = std::max(length, paths(cut.ranks[0]).whole(c.microbatches, at));
    if (c.work->zero >= 2)
      for (const int k : cut.ranks)
        length = std::max(length, paths(k).lane(pipeline->split(), at.prices) * double(c.microbatches));
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

}  // namespace trireme
