// The gradient noise scale of a step: gradients of parts of the batch, before they are added to the others'.
//
// Several replicas: what each reduces, its sum over the step (ZeRO 0, 1) or over one microbatch (ZeRO 2, 3).
// One replica adds microbatches in place, in the rounding that training has, so only the first one is ever
// there by itself: one small batch a measurement, no bit of training changed. Experts that are units of their
// own likewise, their replicas being those of edp.
#include "runtime/microbatch.h"
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

// Are experts units of their own? On every rank alike, whatever layers it has.
bool StageRunner::experts_apart() const {
  return run_.model.moe() && comms_ && (run_.layout.ep > 1 || run_.layout.tp > 1);
}

// Ranks of edp that have parts of the same sequences' rows.
int StageRunner::edp_parts() const {
  return int(std::max<int64_t>(1, run_.layout.cp * run_.layout.tp / run_.layout.ep));
}

SmallBatches StageRunner::small_batches_of(int64_t global, bool experts) const {
  const bool each = sharing_.zero >= 2, shard = experts ? sharing_.experts.shard : sharing_.replicating.shard;
  const int64_t groups = experts ? comms_->mesh().size(Axis::edp) / edp_parts() : sharing_.dp;
  return small_batches(global, run_.batch.micro, groups, sharing_.dp, each && shard);
}

void StageRunner::make_local_norms() {
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
  local_norms_ = std::make_unique<LocalNorms>(params_, rest, experts, sums || rest.parts || experts.parts,
                                              grad_dtype_, *arena_);
}

void StageRunner::start_noise(int64_t step) {
  measuring_ = local_norms_ && step % run_.train.noise_scale == 0;
  if (measuring_) local_norms_->start();
  sync_->measure(measuring_ ? local_norms_.get() : nullptr);
}

void StageRunner::first_microbatch_done(const Chunk& c) {
  if (!measuring_) return;
  for (size_t l = c.first; l < c.last; l++)
    for (uint32_t unit : shape_.layers[l].units) {
      const Unit& u = params_.units[unit];
      if (local_norms_->batches(u).reduced || local_norms_->has(unit)) continue;
      sync_->zero_unstarted(unit);
      params_.mark_grads(u, true);
      local_norms_->add(device_, params_, unit, flat_.grads.narrow(0, u.offset, u.padded),
                        sync_->sums_of(unit), compute_);
    }
}

void StageRunner::finish_noise() {
  if (!measuring_) return;
  // Squared norms: of small batches, of the rest and of experts; of experts' whole gradients.
  std::array<double, 3> mine = {local_norms_->sum(false), local_norms_->sum(true), 0}, all = mine;
  for (const Unit& u : params_.units) {
    if (!u.experts) continue;
    const Range share = own_share(u, flat_.place_of(u));
    const Tensor own = flat_.own(flat_.grads, params_, u);
    mine[2] += local_norms_->squares(
        device_, own.narrow(0, share.begin - own_part(u, flat_.place_of(u)).begin, share.size()), compute_);
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
  if (!device_.has_data()) return;
  const double scale = loss_scale_.scale();
  // Gradients carry the loss scale, and the number of targets of the whole batch.
  const int64_t global = global_at(run_.batch, step_);
  auto sample = [&](const SmallBatches& b, double small, double big) {
    const double whole = double(global), factor = whole / b.sequences / scale;
    return NoiseSample{.small = small / double(b.batches) * factor * factor,
                       .big = big,
                       .small_sequences = b.sequences,
                       .big_sequences = whole};
  };
  const double big = result_.grad_norm * result_.grad_norm, of_experts = all[2] / scale / scale;
  std::vector<NoiseSample> samples = {sample(small_batches_of(global, false), all[0], big - of_experts)};
  if (experts_apart()) samples.push_back(sample(small_batches_of(global, true), all[1], of_experts));
  result_.noise = samples[0];
  if (samples.size() > 1) result_.noise_experts = samples[1];
  noise_scale_.add(samples);
}

}  // namespace trireme
