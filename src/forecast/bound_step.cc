#include "forecast/bound_step.h"

#include <algorithm>

namespace trireme {

const BoundStep::Compute& BoundStep::compute_of(const StepCase& c, const DeviceFigures& d,
                                                const FitValues& f) {
  const auto [it, fresh] = compute_.try_emplace({c.micro, c.tp, c.cp, c.ep, c.expert_tp});
  if (!fresh) return it->second;
  const int64_t experts = c.model.expert_blocks();
  if (experts < c.model.layers) it->second.dense = layer_compute(c, d, f, false);
  if (experts > 0) it->second.experts = layer_compute(c, d, f, true);
  return it->second;
}

BoundStep::Passes& BoundStep::passes_of(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                                        size_t kind) {
  const size_t at = 2 * kind + (c.chunks > 1);
  if (passes_.size() <= at) passes_.resize(at + 1);
  std::unique_ptr<Passes>& passes = passes_[at][size_t(c.nearest)];
  if (passes) return *passes;
  const WorkPrices prices(c, d, f);
  passes = std::make_unique<Passes>();
  const int64_t experts = c.model.expert_blocks();
  const Compute& compute = compute_of(c, d, f);
  if (experts < c.model.layers) passes->layers[kDenseLayer] = prices.passes(false, compute.dense);
  if (experts > 0) passes->layers[kExpertLayer] = prices.passes(true, compute.experts);
  passes->layers[kHeadLayer] = prices.head_passes();
  passes->message = prices.message();
  return *passes;
}

const BoundStep::Passes& BoundStep::all_of(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                                           size_t kind) {
  Passes& passes = passes_of(c, d, f, kind);
  if (!passes.more) {
    const Compute& compute = compute_of(c, d, f);
    passes.more = {.parts = step_parts(c, d, f, compute.dense, compute.experts),
                   .update = WorkPrices(c, d, f).update({}),
                   .slower = slowness(c, d, f)};
  }
  return passes;
}

void BoundStep::set_passes(const Passes& passes) {
  work_.kinds.resize(kWorkLayers);
  for (size_t k = 0; k < kWorkLayers; k++) {
    LayerWork& w = work_.kinds[k];
    const LayerWork& pass = passes.layers[k];
    w.forward = pass.forward;
    w.input = pass.input;
    w.weight = pass.weight;
    w.again = pass.again;
  }
}

BoundCase BoundStep::passes_alone(std::string_view schedule, const StepCase& c, const DeviceFigures& d,
                                  const FitValues& f, size_t kind) {
  const Passes& passes = passes_of(c, d, f, kind);
  set_passes(passes);
  work_.message = passes.message;
  return {.schedule = schedule,
          .pp = c.pp,
          .chunks = c.chunks,
          .microbatches = c.microbatches,
          .work = &work_,
          .stage_layers = c.stage_layers,
          .devices = nullptr,
          .works = {}};
}

double BoundStep::least(StepBound& bound, std::string_view schedule, const StepCase& c,
                        const DeviceFigures& d, const FitValues& f, size_t kind) {
  return 1e-9 * bound.least(passes_alone(schedule, c, d, f, kind));
}

const BoundStep::States& BoundStep::states_of(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                                              const Passes& passes, size_t sharding) {
  if (states_.size() <= sharding) states_.resize(sharding + 1);
  std::optional<States>& states = states_[sharding][size_t(c.nearest)];
  if (states) return *states;
  const WorkPrices prices(c, d, f);
  states.emplace();
  const int64_t experts = c.model.expert_blocks();
  if (experts < c.model.layers) prices.set_states(states->layers[kDenseLayer], layer_held(c, false), 1);
  if (experts > 0) prices.set_states(states->layers[kExpertLayer], layer_held(c, true), 1);
  prices.set_states(states->layers[kEmbeddingLayer], {table_held(c), 0}, 0);
  const HeldParameters all = {passes.more->parts.dense, passes.more->parts.experts};
  states->offload = offload_seconds(c, d, f, all);
  states->update = update_seconds(c, d, f, all) - states->offload + step_seconds(c, d, f);
  return *states;
}

BoundCase BoundStep::case_of(std::string_view schedule, const StepCase& c, const DeviceFigures& d,
                             const FitValues& f, const LayoutSpec& keys, const Passes& passes,
                             const States& states) {
  WorkPrices(c, d, f).set_policy(work_, keys);
  const bool tied_here = c.model.tied && c.pp * c.chunks == 1;
  work_.kinds.resize(kWorkLayers);
  for (size_t k = 0; k < kWorkLayers; k++) {
    const bool none = k == kHeadLayer && tied_here;
    const LayerWork& of = states.layers[k == kHeadLayer ? size_t(kEmbeddingLayer) : k];
    work_.kinds[k] = none ? LayerWork{} : of;
  }
  set_passes(passes);
  work_.message = passes.message;
  work_.update.assign(1, passes.more->update);
  const int64_t ranks = c.dp * c.cp * c.tp;
  return {.schedule = schedule,
          .pp = c.pp,
          .chunks = c.chunks,
          .microbatches = c.microbatches,
          .replicas = c.dp * c.cp > 1,
          .expert_replicas = ranks > c.ep,
          .exchanges = c.ep > 1,
          .recomputes = c.recompute > 0 || c.renorm,
          .reshard_after_forward = c.reshard_after_forward,
          .work = &work_,
          .stage_layers = c.stage_layers,
          .devices = nullptr,
          .works = {}};
}

BoundCase BoundStep::bounded(std::string_view schedule, const StepCase& c, const DeviceFigures& d,
                             const FitValues& f, const LayoutSpec& keys, size_t kind, size_t sharding) {
  const Passes& passes = all_of(c, d, f, kind);
  return case_of(schedule, c, d, f, keys, passes, states_of(c, d, f, passes, sharding));
}

double BoundStep::sharded(StepBound& bound, std::string_view schedule, const StepCase& c,
                          const DeviceFigures& d, const FitValues& f, const LayoutSpec& keys, size_t kind,
                          size_t sharding) {
  return 1e-9 * bound.sharded(bounded(schedule, c, d, f, keys, kind, sharding));
}

StepSeconds BoundStep::of(StepBound& bound, std::string_view schedule, const StepCase& c,
                          const DeviceFigures& d, const FitValues& f, const LayoutSpec& keys, size_t kind,
                          size_t sharding, bool exact) {
  const BoundCase at = bounded(schedule, c, d, f, keys, kind, sharding);
  return divided(bound.of(at, exact), c, d, f, kind, sharding);
}

StepSeconds BoundStep::divided(const BoundParts& b, const StepCase& c, const DeviceFigures& d,
                               const FitValues& f, size_t kind, size_t sharding) {
  const Passes& passes = all_of(c, d, f, kind);
  const States& states = states_of(c, d, f, passes, sharding);
  const StepParts& all = passes.more->parts;
  const double unit = 1e-9 / passes.more->slower;
  const double blocks = unit * (b.busiest - b.head) / all.total;
  StepSeconds s;
  s.products = blocks * all.products;
  s.attention = blocks * all.attention;
  s.elementwise = blocks * all.elementwise;
  s.host = blocks * all.host;
  s.tp = blocks * all.tp;
  s.cp = blocks * all.cp;
  s.ep = blocks * all.ep;
  s.head = unit * b.head;
  s.bubble = unit * b.bubble;
  s.messages = unit * b.messages;
  s.offload = std::min(states.offload, unit * b.update);
  s.optimizer = std::min(states.update, unit * b.update - s.offload);
  s.gradients = unit * (b.replicas + b.update) - s.offload - s.optimizer;
  s.jitter = unit * b.total * (passes.more->slower - 1);
  s.total = 1e-9 * b.total;
  return s;
}

}  // namespace trireme
