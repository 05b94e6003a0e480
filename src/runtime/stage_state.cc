// Weights of a StageRunner as a run starts, and tables of its layers.
#include <algorithm>
#include <cmath>

#include "device/rope_table.h"
#include "runtime/microbatch.h"

namespace trireme {
void StageRunner::bind_rope() {
  if (!stage_.rope) return;
  const ModelSpec& m = run_.model;
  RopeScaling s = m.rope_scaling;
  int64_t positions = std::max(m.max_positions, run_.data.seq_len), half = m.rope_dim() / 2;
  RopeAngles angles{.theta = m.rope_theta,
                    .scaling = rope_scaling_from_name(s.type),
                    .factor = s.factor,
                    .low_freq_factor = s.low_freq_factor,
                    .high_freq_factor = s.high_freq_factor,
                    .original_max_positions = s.original_max_positions,
                    .beta_fast = s.beta_fast,
                    .beta_slow = s.beta_slow};
  if (angles.scaling == RopeStretch::yarn)
    angles.amplitude = yarn_factors(s.factor, s.mscale, s.mscale_all_dim, s.attention_factor).amplitude;
  for (Tensor* t : {&stage_.rope->cos, &stage_.rope->sin})
    *t = memory_.hold(Bucket::scratch, Shape{positions, half}, DType::f32);
  if (!device_.has_data()) return;
  std::vector<float> cos(size_t(positions * half)), sin(cos.size());
  rope_table(angles, positions, m.rope_dim(), cos, sin);
  device_.upload(stage_.rope->cos, cos.data());
  device_.upload(stage_.rope->sin, sin.data());
}

// Every rank keeps the magnitudes of all layers, whatever stage it has.
void StageRunner::bind_fp8() {
  if (mode_ != RunMode::train || run_.precision.fp8 == "none") return;
  const StageRange whole{.first = 0, .last = run_.model.layers};
  const LayoutSpec& l = run_.layout;  // what is computed again by name wants inputs as they were
  const bool keeps = (l.recompute == "none" || l.recompute == "full") && l.recompute_rest.empty();
  fp8_.emplace(run_.precision, build_stage(run_.model, whole).declare(), keeps);
  if (!fp8_->delayed()) return;
  Tensor held[2];
  for (Tensor& t : held) {
    t = memory_.hold(Bucket::scratch, Shape{fp8_->magnitudes()}, DType::f32);
    device_.kernels().run(ZeroArgs{.y = t}, compute_);
  }
  fp8_->bind(held[0], held[1]);
}

void StageRunner::init_weights(const std::function<bool(const Param&)>& given) {
  if (!device_.has_data()) return;
  memory_.init_weights(given);
  weights_from_master();
}

void StageRunner::weights_from_master() {
  memory_.cast_masters();
  if (sync_) sync_->spread_weights();
  device_.sync(compute_);
}

}  // namespace trireme
