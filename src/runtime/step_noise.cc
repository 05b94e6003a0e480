#include "runtime/step_noise.h"

#include <algorithm>
#include <array>

#include "optim/grad_norm.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

// Of units with replicas `groups` times, each of which `parts` ranks make up.
SmallBatches small_batches(int64_t global, int64_t micro, int64_t groups, int64_t replicas,
                           bool every_microbatch) {
  const int64_t microbatches = global / (replicas * micro);
  const int64_t batches = groups * (every_microbatch ? microbatches : 1);
  if (groups == 1 && !every_microbatch) return {.reduced = false, .sequences = double(micro * replicas)};
  return {.batches = batches, .sequences = double(global) / double(batches)};
}

}  // namespace

StepNoise::StepNoise(const StageParts& parts, GradSync& sync) : StageParts(parts), sync_(sync) {
  if (run_.train.noise_scale > 0) make_norms();
}

// Are experts units of their own? On every rank alike, whatever layers it has.
bool StepNoise::experts_apart() const {
  return run_.model.moe() && comms_ && (run_.layout.ep > 1 || run_.layout.tp > 1);
}

// Ranks of edp that have parts of the same sequences' rows.
int StepNoise::edp_parts() const {
  return int(std::max<int64_t>(1, run_.layout.cp * run_.layout.tp / run_.layout.ep));
}

SmallBatches StepNoise::small_batches_of(int64_t global, bool experts) const {
  const bool each = sharing_.zero >= 2, shard = experts ? sharing_.experts.shard : sharing_.replicating.shard;
  const int64_t groups = experts ? comms_->mesh().size(Axis::edp) / edp_parts() : sharing_.dp;
  return small_batches(global, run_.batch.micro, groups, sharing_.dp, each && shard);
}

void StepNoise::make_norms() {
  static constexpr Axis kCp[] = {Axis::cp}, kEdp[] = {Axis::edp};
  SmallBatches rest = small_batches_of(run_.batch.global, false), experts;
  if (sharing_.cp.size > 1) rest.parts = &comms_->along(kCp), rest.counts = sharing_.cp.rank == 0;
  bool sums = !rest.reduced && sharing_.tp.size > 1;
  if (experts_apart()) {
    experts = small_batches_of(run_.batch.global, true);
    if (const int parts = edp_parts(); parts > 1) {
      experts.parts = &comms_->inner(kEdp, parts);
      experts.counts = comms_->mesh().coord(comms_->rank(), Axis::edp) % parts == 0;
    }
  }
  norms_ = std::make_unique<LocalNorms>(memory_.params(), rest, experts, sums || rest.parts || experts.parts,
                                        dtype_from_name(run_.precision.grads), memory_.arena());
}

void StepNoise::start_step(int64_t step) {
  step_ = step;
  measuring_ = norms_ && step % run_.train.noise_scale == 0;
  if (measuring_) norms_->start();
  sync_.measure(measuring_ ? norms_.get() : nullptr);
}

void StepNoise::stop() {
  measuring_ = false;
  sync_.measure(nullptr);
}

void StepNoise::microbatch_done(const RankShape& shape, int stage) {
  if (!measuring_) return;
  const auto s = std::find_if(shape.stages.begin(), shape.stages.end(),
                              [&](const StageShape& each) { return each.stage == stage; });
  for (size_t l = s->first; l < s->last; l++)
    for (uint32_t unit : shape.layers[l].units) {
      const Unit& u = memory_.params().units[unit];
      if (norms_->batches(u).reduced || norms_->has(unit)) continue;
      sync_.zero_unstarted(unit);
      memory_.params().mark_grads(u, true);
      norms_->add(device_, memory_.params(), unit, memory_.flat().grads.narrow(0, u.offset, u.padded),
                  sync_.sums_of(unit), compute_);
    }
}

StepNoise::Samples StepNoise::finish(double grad_norm, double scale) {
  if (!measuring_) return {};
  // Squared norms: of small batches, of the rest and of experts; of experts' whole gradients.
  std::array<double, 3> mine = {norms_->sum(false), norms_->sum(true), 0}, all = mine;
  for (const Unit& u : memory_.params().units) {
    if (!u.experts) continue;
    const Range share = own_share(u, memory_.flat().place_of(u));
    const Tensor own = memory_.flat().own(memory_.flat().grads, memory_.params(), u);
    mine[2] += norms_->squares(
        device_, own.narrow(0, share.begin - own_part(u, memory_.flat().place_of(u)).begin, share.size()),
        compute_);
  }
  if (comms_) {
    const auto world = size_t(comms_->world());
    std::vector<std::array<double, 3>> each(world);
    gather_bytes(comms_->control(), std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(each)));
    for (size_t i = 0; i < all.size(); i++) {
      std::vector<double> values;
      for (const auto& one : each) values.push_back(one[i]);
      all[i] = order_independent_sum(values);
    }
  }
  if (!device_.has_data()) return {};
  // Gradients carry the loss scale, and the number of targets of the whole batch.
  const int64_t global = global_at(run_.batch, step_);
  auto sample = [&](const SmallBatches& b, double small, double big) {
    const double whole = double(global), factor = whole / b.sequences / scale;
    return NoiseSample{.small = small / double(b.batches) * factor * factor,
                       .big = big,
                       .small_sequences = b.sequences,
                       .big_sequences = whole};
  };
  const double big = grad_norm * grad_norm, of_experts = all[2] / scale / scale;
  std::vector<NoiseSample> samples = {sample(small_batches_of(global, false), all[0], big - of_experts)};
  if (experts_apart()) samples.push_back(sample(small_batches_of(global, true), all[1], of_experts));
  scale_.add(samples);
  return {samples[0], samples.size() > 1 ? std::optional(samples[1]) : std::nullopt};
}

}  // namespace trireme
