// The gradient noise scale of a step: gradients of parts of the batch, before they are added to the others'.
//
// Several replicas: what each reduces, its sum over the step (ZeRO 0, 1) or over one microbatch (ZeRO 2, 3).
// One replica adds microbatches in place, in the rounding that training has, so only the first one is ever
// there by itself: one small batch a measurement, no bit of training changed.
#include "runtime/microbatch.h"

namespace trireme {

void StageRunner::start_noise(int64_t step) {
  measuring_ = local_norms_ && step % run_.train.noise_scale == 0;
  if (measuring_) local_norms_->start();
  sync_->measure(measuring_ && sharing_.dp > 1 ? local_norms_.get() : nullptr);
}

void StageRunner::first_microbatch_done() {
  if (!measuring_ || sharing_.dp > 1 || local_norms_->units() > 0) return;
  for (const Unit& u : params_.units) {
    for (size_t i = u.first; i < u.last; i++) {
      Param& p = params_.params[i];
      if (!p.grad_started) device_.kernels().run(ZeroArgs{.y = p.grad}, compute_);
      p.grad_started = true;
    }
    local_norms_->add(device_, flat_.grads.narrow(0, u.offset, u.padded), compute_);
  }
}

void StageRunner::finish_noise() {
  if (!measuring_) return;
  // Squared norms, and small batches: of this rank, then of all.
  std::array<double, 2> mine{};
  int64_t units = 0;
  for (const Unit& u : params_.units) units += sharing_.dp == 1 || u.numel > 0;
  mine = {local_norms_->sum(), double(local_norms_->units() / std::max<int64_t>(1, units))};
  std::array<double, 2> all = mine;
  if (comms_) {
    std::vector<std::array<double, 2>> each(size_t(comms_->world()));
    gather_bytes(comms_->control(), std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(each)));
    all = {};
    for (const auto& one : each) all[0] += one[0], all[1] += one[1];
  }
  if (!device_.has_data() || all[1] == 0) return;
  const double whole = double(run_.batch.global);
  const double part = sharing_.dp == 1 ? double(run_.batch.micro) : whole / all[1];
  // Gradients carry the loss scale, and the number of targets of the whole batch.
  const double factor = whole / part / loss_scale_.scale();
  result_.noise = NoiseSample{.small = all[0] / all[1] * factor * factor,
                              .big = result_.grad_norm * result_.grad_norm,
                              .small_sequences = part,
                              .big_sequences = whole};
  noise_scale_.add(*result_.noise);
}

}  // namespace trireme
