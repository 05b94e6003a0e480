#include "forecast/layer_bytes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "comm/meta/meta_comm.h"
#include "model/stages.h"
#include "runtime/layer_recorder.h"
#include "runtime/meta_rank.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

constexpr OpKind kKinds[] = {OpKind::forward, OpKind::drop, OpKind::again, OpKind::input, OpKind::weight};
static_assert(std::size(kKinds) == kLayerPasses);

// The fewest blocks among which there are all kinds that the model has.
int64_t fewest_blocks(const ModelSpec& m) {
  const int64_t experts = m.expert_blocks();
  for (int64_t n = 1; n < m.layers; n++) {
    ModelSpec few = m;
    few.layers = n;
    const int64_t with = few.expert_blocks();
    if ((with > 0) == (experts > 0) && (with < n) == (experts < m.layers)) return n;
  }
  return m.layers;
}

// One microbatch in each stage, without anything that replicas divide.
RunSpec recorded_run(RunSpec run, bool split_ends) {
  LayoutSpec& l = run.layout;
  const int64_t stages = split_ends ? 2 : 1, microbatches = std::min<int64_t>(2, run.microbatches());
  run.model.layers = std::max(stages, fewest_blocks(run.model));
  l.dp = l.ep / std::gcd(l.ep, l.tp * l.cp);
  l.pp = stages;
  l.chunks = 1;
  l.schedule = "1f1b";
  l.cut = "even";
  l.stage_layers.clear();
  l.zero = 0;
  l.shard_group = 0;
  run.batch.ramp.clear();
  run.batch.global = run.batch.micro * l.dp * microbatches;
  run.own_schedule = {};
  run.optimizer.post_validation = "off";
  run.train.noise_scale = 0;
  return run;
}

WorkLayer kind_of(const ModelSpec& m, const StageRange& stage, size_t layer) {
  if (stage.embedding && layer == 0) return kEmbeddingLayer;
  if (stage.head && layer + 1 == stage.layers()) return kHeadLayer;
  return m.expert_block(stage.first + int64_t(layer) - stage.embedding) ? kExpertLayer : kDenseLayer;
}

PassBytes pass_of(const LayerTape& tape) {
  PassBytes out{.net = 0, .high = double(tape.sum.most_total), .totals = {}};
  for (const LayerTape::Event& e : tape.events) {
    if (e.kind == LayerTape::Event::Kind::pause) continue;
    const auto bytes = double(tape.size_of(e.block).bytes);
    out.net += e.kind == LayerTape::Event::Kind::make ? bytes : -bytes;
    out.totals.push_back(out.net);
  }
  return out;
}

class RecordedRank {
 public:
  RecordedRank(const RunSpec& run, int pp_rank)
      : device_(meta_device(run, 1)),
        factory_(make_meta_comm(first_of_stage(run, pp_rank), int(run.world()), options_of(run, {}))),
        comms_(*factory_, mesh_of(run.layout)),
        runner_(run, RunMode::train, *device_, kEndlessArena, &comms_),
        recorder_(runner_, tapes_, true) {}
  StageRunner& runner() { return runner_; }
  // Units, and bytes that no pass changes.
  LayerBytes layer(size_t number);
  // By way, or of the run's own way if there are none. block: it may be recomputed.
  std::vector<std::array<PassBytes, kLayerPasses>> passes(size_t number, bool block,
                                                          std::span<const Recompute> ways);
  RankTapes rank() { return recorder_.rank(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<CommFactory> factory_;
  CommSet comms_;
  StageRunner runner_;
  LayerTapes tapes_;
  LayerRecorder recorder_;
};

LayerBytes RecordedRank::layer(size_t number) {
  const LayerShape& shape = runner_.programs().shape().layers[number];
  LayerBytes out{.passes = {}, .own = {}, .tied = {}};
  const ParamSet& params = runner_.memory().params();
  for (const uint32_t u : shape.units)
    if (params.units[u].layer == number)
      out.own.push_back(u);
    else
      out.tied = u;
  for (const Param& b : params.buffers)
    if (b.decl.name.starts_with(shape.name + ".")) out.buffers += 4.0 * double(b.numel());
  return out;
}

// Whether a gradient is the first or a later one changes no byte, so tapes are those of later ones.
std::vector<std::array<PassBytes, kLayerPasses>> RecordedRank::passes(size_t number, bool block,
                                                                      std::span<const Recompute> ways) {
  const PassKey later = recorder_.later_pass(number);
  std::vector<LayerRecorder::Again> again;
  if (block && !ways.empty())
    again = recorder_.recomputed(number, ways);
  else
    recorder_.pass(number, later);
  std::array<PassBytes, kLayerPasses> own;
  for (const auto& [key, tape] : tapes_.at(recorder_.kind(number)))
    for (size_t p = 0; p < kLayerPasses; p++)
      if (key.kind == kKinds[p] && (key.kind != OpKind::weight || key.started == later.started))
        own[p] = pass_of(tape);
  std::vector<std::array<PassBytes, kLayerPasses>> out(std::max<size_t>(1, ways.size()), own);
  for (size_t w = 0; w < again.size(); w++) {
    if (!again[w].way.any()) continue;
    out[w][kPassDrop] = pass_of(again[w].drop);
    out[w][kPassAgain] = pass_of(again[w].again);
  }
  return out;
}

}  // namespace

double RecordedLayers::gathered(uint32_t unit, int shards) const {
  return weight * double(padded_unit(units[unit].numel, shards));
}
double RecordedLayers::whole_grad(uint32_t unit, int shards) const {
  return grad * double(padded_unit(units[unit].numel, shards));
}
double RecordedLayers::wired(uint32_t unit, int shards) const {
  return wire * double(padded_unit(units[unit].numel, shards));
}

double RecordedLayers::kept(uint32_t unit, const UnitSharers& by, int dense_shards, bool optimizer) const {
  const UnitSize& u = units[unit];
  const auto whole = double(padded_unit(u.numel, by.shards)), part = whole / by.shards;
  double bytes = weight * (by.zero == 3 ? part : whole);
  if (u.frozen) return bytes;
  bytes += grad * (by.zero >= 2 ? part : whole);
  constexpr double kSquares = 8;  // a sum of each block (optim/grad_norm.cc)
  bytes += kSquares * std::ceil(part * by.shards / by.all / double(kFlatBlock));
  if (!optimizer) return bytes;
  bytes += master * part;
  for (const StateDecl& s : state)
    bytes += double(size_of(s.dtype)) *
             (s.of_hidden ? part : std::min(std::floor(whole / dense_shards), double(u.others)));
  return bytes;
}

UnitSharers sharers_of(const LayoutSpec& l, bool experts) {
  const auto all = int(replicas_of(l));
  const int zero = effective_zero(l);
  const bool grouped = zero == 3 && l.shard_group > 0;
  if (!experts)
    return {zero, zero == 0 ? 1 : grouped ? int(std::min<int64_t>(l.shard_group, all)) : all, all};
  const auto replicas = int(replicas_of(l) * l.tp / l.ep);
  return {zero, zero == 0 ? 1 : replicas, replicas};
}

namespace {
RunSpec with_micro(RunSpec run, int64_t micro) {
  run.batch.global = run.microbatches() * run.layout.dp * micro;
  run.batch.micro = micro;
  return run;
}
}  // namespace

LayersByRows::LayersByRows(const RunSpec& run, bool split_ends)
    : run_(run), split_ends_(split_ends), one_(record_ways(with_micro(run, 1), split_ends)) {}

RecordedLayers LayersByRows::at(double sequences, Again way) {
  RecordedLayers out = one_[size_t(way)];
  if (sequences == 1) return out;
  if (two_.empty()) two_ = record_ways(with_micro(run_, 2), split_ends_);
  const RecordedLayers& twice = two_[size_t(way)];
  const auto line = [&](double one, double two) { return one + (sequences - 1) * (two - one); };
  for (size_t k = 0; k < out.kinds.size(); k++)
    for (size_t p = 0; p < kLayerPasses; p++) {
      PassBytes& pass = out.kinds[k].passes[p];
      const PassBytes& second = twice.kinds[k].passes[p];
      const std::vector<double>& two = second.totals;
      // Few rows of experts take fewer rounds.
      if (pass.totals.size() != two.size()) {
        pass.net = line(pass.net, second.net);
        pass.high = std::max({0.0, pass.net, line(pass.high, second.high)});
        pass.totals = {pass.net};
        continue;
      }
      pass.net = pass.high = 0;
      for (size_t i = 0; i < two.size(); i++) {
        pass.totals[i] = pass.net = line(pass.totals[i], two[i]);
        pass.high = std::max(pass.high, pass.net);
      }
    }
  out.batch = line(out.batch, twice.batch);
  out.boundary = line(out.boundary, twice.boundary);
  out.between = line(out.between, twice.between);
  return out;
}

namespace {
// Without units of further layers of one kind.
void keep_used_units(RecordedLayers& r) {
  const std::vector<UnitSize> all = std::exchange(r.units, {});
  std::map<uint32_t, uint32_t> number;
  const auto renumber = [&](uint32_t& unit) {
    const auto [it, fresh] = number.try_emplace(unit, uint32_t(r.units.size()));
    if (fresh) r.units.push_back(all[unit]);
    unit = it->second;
  };
  for (LayerBytes& l : r.kinds) {
    for (uint32_t& u : l.own) renumber(u);
    if (l.tied) renumber(*l.tied);
  }
}

// By way; without ways, of the run's own.
std::vector<RecordedLayers> record(RunSpec run, bool split_ends, std::span<const Recompute> ways) {
  run = recorded_run(std::move(run), split_ends);
  RecordedLayers out;
  std::vector<std::array<std::array<PassBytes, kLayerPasses>, size_t(kWorkLayers)>> passes(
      std::max<size_t>(1, ways.size()));
  const std::vector<StageRange> stages = split_evenly(run.model, int(run.layout.pp));
  for (int rank = 0; rank < int(run.layout.pp); rank++) {
    RecordedRank recorded(run, rank);
    StageRunner& r = recorded.runner();
    const auto before = uint32_t(out.units.size());
    for (const Unit& u : r.memory().params().units)
      out.units.push_back({.numel = u.numel, .others = u.others, .experts = u.experts, .frozen = u.frozen});
    double known = 0;
    const RankTapes tapes = recorded.rank();
    const FlatState& flat = r.memory().flat();
    const bool offloads = run.layout.offloads_state();
    if (rank == 0) {
      out.weight = double(size_of(flat.weights.dtype));
      out.grad = double(size_of(flat.grads.dtype));
      out.master = out.weight < 4 ? 4 : 0;
      out.wire = double(size_of(dtype_from_name(run.precision.reduce)));
      out.state = r.memory().state_decls();
      out.policy = tapes.policy;
      out.reshard_after_forward = run.layout.reshard_after_forward;
      for (const BlockSize& b : tapes.batch) out.batch += double(b.bytes);
      out.boundary = double(tapes.message.bytes);
      out.between = double(std::max(tapes.begin.sum.most_total, tapes.end.sum.most_total));
    }
    for (size_t n = 0; n < stages[size_t(rank)].layers(); n++) {
      const WorkLayer kind = kind_of(run.model, stages[size_t(rank)], n);
      LayerBytes& layer = out.kinds[size_t(kind)];
      const LayerBytes now = recorded.layer(n);
      known += now.buffers;
      for (const uint32_t u : now.own)
        known += out.kept(before + u, sharers_of(run.layout, out.units[before + u].experts), 1, !offloads);
      if (!layer.own.empty()) continue;  // a block like one before
      layer = now;
      const bool block = kind == kDenseLayer || kind == kExpertLayer;
      const std::vector<std::array<PassBytes, kLayerPasses>> by_way = recorded.passes(n, block, ways);
      for (size_t w = 0; w < by_way.size(); w++) passes[w][size_t(kind)] = by_way[w];
      for (uint32_t& u : layer.own) u += before;
      if (layer.tied) *layer.tied += before;
    }
    if (rank == 0) out.rest = double(tapes.booked.total()) - known;
  }
  keep_used_units(out);
  for (const LayerBytes& l : out.kinds) {
    out.structure += ' ';
    for (const uint32_t u : l.own) out.structure += std::to_string(u) + (out.units[u].experts ? "e" : ",");
    if (l.tied) out.structure += "t" + std::to_string(*l.tied);
  }
  std::vector<RecordedLayers> all(passes.size(), out);
  for (size_t w = 0; w < all.size(); w++)
    for (size_t k = 0; k < size_t(kWorkLayers); k++) all[w].kinds[k].passes = passes[w][k];
  return all;
}
}  // namespace

RecordedLayers record_layers(const RunSpec& run, bool split_ends) {
  return record(run, split_ends, {}).front();
}

std::vector<RecordedLayers> record_ways(const RunSpec& run, bool split_ends) {
  RunSpec other = run;
  std::vector<Recompute> ways;
  std::vector<RecordedLayers> all;
  for (const Again a : {Again::none, Again::selective, Again::full}) {
    other.layout.recompute = name_of(a);
    ways.push_back(recompute_of(other.layout, 0));
    // With fp8 the bytes that are kept of an input depend on the run's value.
    if (other.precision.fp8 != "none") all.push_back(record_layers(other, split_ends));
  }
  if (!all.empty()) return all;
  other.layout.recompute = "none";
  return record(other, split_ends, ways);
}

}  // namespace trireme
